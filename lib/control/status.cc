// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "control/metrics.h"
#include "control/version.h"

namespace gradgate::control {

namespace {

constexpr const char* kDropNames[] = {
#define GG_DROP_NAME(symbol, name, text) name,
    GG_DROP_REASONS(GG_DROP_NAME)
#undef GG_DROP_NAME
};
constexpr const char* kDropTexts[] = {
#define GG_DROP_TEXT(symbol, name, text) text,
    GG_DROP_REASONS(GG_DROP_TEXT)
#undef GG_DROP_TEXT
};

}  // namespace

std::string_view state_name(GroupState state) {
  switch (state) {
    case GroupState::kPlanned:
      return "forming";
    case GroupState::kRunning:
      return "running";
    case GroupState::kRecovering:
      return "recovering";
    case GroupState::kFailed:
      return "failed";
  }
  return "";
}

core::Nanoseconds peer_rtt(const SnapshotBuilder& builder, size_t peer) {
  core::Nanoseconds rtt = 0;
  if (const core::Neighbour* neighbour = builder.peer(peer))
    for (const auto& link : neighbour->lanes) rtt = std::max(rtt, link->smoothed_rtt());
  return rtt;
}

uint64_t peer_in_flight(const SnapshotBuilder& builder, size_t peer) {
  uint64_t packets = 0;
  if (const core::Neighbour* neighbour = builder.peer(peer))
    for (const auto& link : neighbour->lanes) packets += link->in_flight();
  return packets;
}

core::Nanoseconds stalled_ns(const View& view, const Group& group) {
  // Reports repeat every period while the stall lasts.
  const core::Nanoseconds since = view.dataplane.now_ns() - group.stall_at;
  if (group.state != GroupState::kRunning || group.stall_at == 0 || since > view.site.group.stall_report_ns * 3 / 2)
    return 0;
  return group.stall_waited_ns + since;
}

Json status_json(const View& view) {
  Json counters = Json::object();
#define GG_COUNTER_SUM(name, help)                                                                   \
  {                                                                                                  \
    uint64_t total = 0;                                                                              \
    for (const core::LaneCounters* lane : view.dataplane.lane_counters()) total += lane->name.get(); \
    counters[#name] = total;                                                                         \
  }
  GG_LANE_COUNTERS(GG_COUNTER_SUM)
#undef GG_COUNTER_SUM

  Json ports = Json::array();
  for (const dataplane::PortStatus& port : view.dataplane.ports()) {
    char mac[18];
    std::snprintf(mac, sizeof mac, "%02x:%02x:%02x:%02x:%02x:%02x", port.mac[0], port.mac[1], port.mac[2], port.mac[3],
                  port.mac[4], port.mac[5]);
    ports.push_back({{"name", port.name},
                     {"device", port.device},
                     {"driver", port.driver},
                     {"link_up", port.link_up},
                     {"mtu", port.mtu},
                     {"mac", mac},
                     {"rx_packets", port.rx_packets},
                     {"rx_bytes", port.rx_bytes},
                     {"rx_missed", port.rx_missed},
                     {"rx_no_buffer_polls", port.rx_no_buffer_polls},
                     {"answered", port.answered},
                     {"tx_packets", port.tx_packets},
                     {"tx_bytes", port.tx_bytes},
                     {"buffers", port.buffers},
                     {"buffers_free", port.buffers_free},
                     {"xdp_redirected", port.xdp_redirected},
                     {"xdp_passed", port.xdp_passed},
                     {"xdp_no_socket", port.xdp_no_socket}});
  }
  Json peers = Json::array();
  for (size_t i = 0; i < view.site.peers.size(); ++i) {
    const config::Peer& peer = view.site.peers[i];
    peers.push_back({{"site", peer.site},
                     {"id", peer.id},
                     {"up", view.peers.up(peer.id)},
                     {"rtt_us", static_cast<double>(peer_rtt(view.builder, i)) / 1000.0},
                     {"in_flight_packets", peer_in_flight(view.builder, i)},
                     {"rate_bits_per_second", peer.rate_bits_per_second},
                     {"control", config::format(peer.control)}});
  }
  Json lcores = Json::array();
  for (const dataplane::LcoreStatus& lcore : view.dataplane.lcores())
    lcores.push_back({{"lcore", lcore.lcore},
                      {"busy_s", static_cast<double>(lcore.busy_ns) / 1e9},
                      {"idle_s", static_cast<double>(lcore.idle_ns) / 1e9},
                      {"polls", lcore.polls},
                      {"sleeps", lcore.sleeps}});
  Json tenants = Json::array();
  for (const config::Tenant& tenant : view.site.tenants)
    tenants.push_back({{"name", tenant.name},
                       {"memory_bytes", tenant.memory_bytes},
                       {"used_bytes", view.membership.tenant_bytes_used(tenant.name)}});
  return {
      {"site", {{"name", view.site.name}, {"id", view.site.id}}},
      {"version", kVersion},
      {"uptime_s", static_cast<double>(view.dataplane.now_ns() - view.started_ns) / 1e9},
      {"counters", counters},
      {"ports", ports},
      {"peers", peers},
      {"groups", view.membership.groups().size() + view.membership.forming().size()},
      {"lcores", lcores},
      {"tenants", tenants},
      {"buffers", {{"admissible", view.dataplane.admissible_buffers()}, {"reserved", view.membership.buffers_used()}}}};
}

Json groups_json(const View& view) {
  Json out = Json::array();
  for (const auto& [name, forming] : view.membership.forming()) {
    Json sites = Json::array();
    RankSet here;
    for (const auto& [rank, member] : forming.members) here.insert(rank);
    if (!here.empty()) sites.push_back({{"id", view.site.id}, {"name", view.site.name}, {"ranks", here}});
    for (const auto& [site, remote] : forming.remotes)
      sites.push_back({{"id", site}, {"name", view.membership.site_name(site)}, {"ranks", remote.ranks}});
    out.push_back({{"tenant", name.tenant},
                   {"job", name.job},
                   {"group", name.group},
                   {"group_id", nullptr},
                   {"size", forming.size},
                   {"state", "forming"},
                   {"sites", sites},
                   {"missing", view.membership.missing_ranks(forming)}});
  }
  for (const auto& [id, group] : view.membership.groups()) {
    Json sites = Json::array();
    for (const PlanSite& site : group.plan.sites)
      sites.push_back({{"id", site.id}, {"name", site.name}, {"ranks", site.ranks}});
    RankSet missing;
    if (group.state == GroupState::kRecovering)
      for (uint16_t rank : group.plan.site(view.site.id)->ranks)
        if (!group.members.contains(rank)) missing.insert(rank);
    const core::Nanoseconds stalled = stalled_ns(view, group);
    out.push_back({{"tenant", group.plan.tenant},
                   {"job", group.plan.job},
                   {"group", group.plan.group},
                   {"group_id", id},
                   {"size", group.plan.size},
                   {"state", state_name(group.state)},
                   {"sites", sites},
                   {"window", group.plan.window},
                   {"lanes", group.plan.lanes},
                   {"chunk_bytes", group.plan.chunk_bytes},
                   {"slots_in_use", group.context == 0 ? 0 : view.builder.slots_in_use(group.context)},
                   {"memory_bytes", view.membership.group_memory_bytes(group)},
                   {"missing", missing},
                   {"left", group.left},
                   {"stall", group.stall.empty() ? Json(nullptr) : Json(group.stall)},
                   {"stalled_s", static_cast<double>(stalled) / 1e9},
                   {"error", group.error.empty() ? Json(nullptr) : Json(group.error)}});
  }
  return out;
}

Json drops_json(const View& view) {
  Json packet = Json::object(), frame = Json::object(), port = Json::object(), xdp = Json::object(),
       texts = Json::object();
  const auto lanes = view.dataplane.lane_counters();
  const auto ports = view.dataplane.ports();
  for (size_t reason = 0; reason < GG_DROP_COUNT; ++reason) {
    uint64_t in_packets = 0, in_frames = 0, on_ports = 0, in_xdp = 0;
    for (const core::LaneCounters* lane : lanes) {
      in_packets += lane->packet_drops[reason].get();
      in_frames += lane->frame_drops[reason].get();
    }
    for (const dataplane::PortStatus& status : ports) {
      on_ports += status.drops[reason];
      in_xdp += status.xdp_drops[reason];
    }
    const char* name = kDropNames[reason];
    packet[name] = in_packets;
    frame[name] = in_frames;
    port[name] = on_ports;
    xdp[name] = in_xdp;
    texts[name] = kDropTexts[reason];
  }
  return {{"packet", packet}, {"frame", frame}, {"port", port}, {"xdp", xdp}, {"texts", texts}};
}

}  // namespace gradgate::control
