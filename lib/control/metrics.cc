// SPDX-License-Identifier: Apache-2.0
#include "control/metrics.h"

#include <fmt/format.h>

#include <iterator>

#include "control/version.h"

namespace gradgate::control {

namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

/// Writes families of the text exposition format; each name, help and type stand once, before its samples.
class Text {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }

  template <typename Number>
  void sample(const Labels& labels, Number value) {
    out_ += name_;
    if (!labels.empty()) {
      char separator = '{';
      for (const auto& [label, text] : labels) {
        out_ += separator;
        out_ += label;
        out_ += "=\"";
        escape(text);
        out_ += '"';
        separator = ',';
      }
      out_ += '}';
    }
    fmt::format_to(std::back_inserter(out_), " {}\n", value);
  }

  std::string take() { return std::move(out_); }

 private:
  void escape(std::string_view text) {
    for (char c : text) {
      if (c == '\n') {
        out_ += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') out_ += '\\';
      out_ += c;
    }
  }

  std::string out_;
  std::string_view name_;
};

double seconds(uint64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

void lanes(Text& text, const View& view) {
  const auto counters = view.dataplane.lane_counters();
#define GG_COUNTER_FAMILY(name, help)                       \
  text.family("gradgate_" #name "_total", "counter", help); \
  for (size_t lane = 0; lane < counters.size(); ++lane)     \
    text.sample({{"lane", std::to_string(lane)}}, counters[lane]->name.get());
  GG_LANE_COUNTERS(GG_COUNTER_FAMILY)
#undef GG_COUNTER_FAMILY
}

void drops(Text& text, const View& view) {
  text.family("gradgate_drops_total", "counter", "packets and frames dropped, by reason and by who dropped them");
  const Json all = drops_json(view);
  for (const char* where : {"xdp", "port", "packet", "frame"})
    for (const auto& [reason, count] : all.at(where).items())
      text.sample({{"reason", reason}, {"where", where}}, count.get<uint64_t>());
}

void ports(Text& text, const View& view) {
  const std::vector<dataplane::PortStatus> all = view.dataplane.ports();
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    text.family(name, type, help);
    for (const dataplane::PortStatus& port : all)
      text.sample({{"port", port.name}, {"device", port.device}}, value(port));
  };
  using Port = dataplane::PortStatus;
  family("gradgate_port_up", "gauge", "1 if the port has a link", [](const Port& p) { return p.link_up ? 1 : 0; });
  family("gradgate_port_rx_packets_total", "counter", "packets received", [](const Port& p) { return p.rx_packets; });
  family("gradgate_port_rx_bytes_total", "counter", "bytes received", [](const Port& p) { return p.rx_bytes; });
  family("gradgate_port_rx_missed_total", "counter", "packets lost because the receive ring was full",
         [](const Port& p) { return p.rx_missed; });
  family("gradgate_port_rx_no_buffer_polls_total", "counter", "polls that found the buffer pool empty",
         [](const Port& p) { return p.rx_no_buffer_polls; });
  family("gradgate_port_tx_packets_total", "counter", "packets sent", [](const Port& p) { return p.tx_packets; });
  family("gradgate_port_tx_bytes_total", "counter", "bytes sent", [](const Port& p) { return p.tx_bytes; });
  family("gradgate_port_buffers", "gauge", "packet buffers of the pool", [](const Port& p) { return p.buffers; });
  family("gradgate_port_buffers_free", "gauge", "packet buffers not in use",
         [](const Port& p) { return p.buffers_free; });
  family("gradgate_port_xdp_redirected_total", "counter", "packets that XDP gave to the gateway",
         [](const Port& p) { return p.xdp_redirected; });
  family("gradgate_port_xdp_passed_total", "counter", "packets that XDP left to the kernel",
         [](const Port& p) { return p.xdp_passed; });
  family("gradgate_port_xdp_no_socket_total", "counter", "packets for the gateway on a queue without a socket",
         [](const Port& p) { return p.xdp_no_socket; });
}

void lcores(Text& text, const View& view) {
  const std::vector<dataplane::LcoreStatus> all = view.dataplane.lcores();
  const auto label = [](const dataplane::LcoreStatus& lcore) { return Labels{{"lcore", std::to_string(lcore.lcore)}}; };
  text.family("gradgate_lcore_busy_seconds_total", "counter", "time spent on packets");
  for (const auto& lcore : all) text.sample(label(lcore), seconds(lcore.busy_ns));
  text.family("gradgate_lcore_idle_seconds_total", "counter", "time spent without packets");
  for (const auto& lcore : all) text.sample(label(lcore), seconds(lcore.idle_ns));
  text.family("gradgate_lcore_sleeps_total", "counter", "times that the lcore slept");
  for (const auto& lcore : all) text.sample(label(lcore), lcore.sleeps);
}

void groups(Text& text, const View& view) {
  const auto family = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "gauge", help);
    for (const auto& [id, group] : view.membership.groups())
      text.sample(
          {{"tenant", group.plan.tenant}, {"job", group.plan.job}, {"group", group.plan.group}, {"group_id", id}},
          value(group));
  };
  family("gradgate_group_size", "ranks of the group", [](const Group& g) { return g.plan.size; });
  family("gradgate_group_window", "slots per lane", [](const Group& g) { return g.plan.window; });
  family("gradgate_group_slots", "slots in all lanes",
         [](const Group& g) { return uint64_t{g.plan.window} * g.plan.lanes; });
  family("gradgate_group_slots_in_use", "slots that hold an index",
         [&](const Group& g) { return g.context == 0 ? uint64_t{0} : view.builder.slots_in_use(g.context); });
  family("gradgate_group_memory_bytes", "packet memory reserved",
         [&](const Group& g) { return view.membership.group_memory_bytes(g); });
  family("gradgate_group_stalled_seconds", "how long the group has waited for a rank; 0 if it does not",
         [&](const Group& g) { return seconds(stalled_ns(view, g)); });
  text.family("gradgate_group_state", "gauge", "1 for the state that the group is in");
  for (const auto& [id, group] : view.membership.groups())
    for (const GroupState state :
         {GroupState::kPlanned, GroupState::kRunning, GroupState::kRecovering, GroupState::kFailed})
      text.sample({{"tenant", group.plan.tenant},
                   {"job", group.plan.job},
                   {"group", group.plan.group},
                   {"group_id", id},
                   {"state", std::string(state_name(state))}},
                  group.state == state ? 1 : 0);
  text.family("gradgate_groups_forming", "gauge", "groups that wait for ranks");
  text.sample({}, view.membership.forming().size());
  text.family("gradgate_groups_failed_total", "counter", "groups that have failed");
  text.sample({}, view.membership.failed_total());
  text.family("gradgate_tenant_memory_bytes", "gauge", "packet memory that the tenant may reserve");
  for (const config::Tenant& tenant : view.site.tenants) text.sample({{"tenant", tenant.name}}, tenant.memory_bytes);
  text.family("gradgate_tenant_memory_used_bytes", "gauge", "packet memory that the tenant has reserved");
  for (const config::Tenant& tenant : view.site.tenants)
    text.sample({{"tenant", tenant.name}}, view.membership.tenant_bytes_used(tenant.name));
}

void peers(Text& text, const View& view) {
  const auto family = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "gauge", help);
    for (size_t i = 0; i < view.site.peers.size(); ++i) text.sample({{"site", view.site.peers[i].site}}, value(i));
  };
  family("gradgate_peer_up", "1 if the control connection to the site stands",
         [&](size_t i) { return view.peers.up(view.site.peers[i].id) ? 1 : 0; });
  family("gradgate_peer_rtt_seconds", "smoothed round-trip time of the slowest lane; 0 before the first sample",
         [&](size_t i) { return seconds(peer_rtt(view.builder, i)); });
  family("gradgate_peer_in_flight_packets", "packets sent and not acknowledged",
         [&](size_t i) { return peer_in_flight(view.builder, i); });
}

}  // namespace

std::string metrics_text(const View& view) {
  Text text;
  text.family("gradgate_build_info", "gauge", "version of the gateway, and its site");
  text.sample({{"version", kVersion}, {"site", view.site.name}, {"id", std::to_string(view.site.id)}}, 1);
  text.family("gradgate_uptime_seconds", "gauge", "time since the gateway started");
  text.sample({}, seconds(view.dataplane.now_ns() - view.started_ns));
  lanes(text, view);
  drops(text, view);
  ports(text, view);
  lcores(text, view);
  groups(text, view);
  peers(text, view);
  text.family("gradgate_control_connections", "gauge", "open HTTP connections");
  text.sample({}, view.connections);
  text.family("gradgate_control_connections_refused_total", "counter", "HTTP connections beyond the limit");
  text.sample({}, view.connections_refused);
  return text.take();
}

}  // namespace gradgate::control
