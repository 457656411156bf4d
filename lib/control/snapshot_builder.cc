// SPDX-License-Identifier: Apache-2.0
#include "control/snapshot_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "core/group_lane.h"

namespace gradgate::control {

namespace {

constexpr uint32_t kMaxNeighbours = 1 << 16;  // the index half of a link id
constexpr uint32_t kUdp4HeaderBytes = GG_IPV4_BYTES + GG_UDP_BYTES;

/// A FixedRate and the budget that refers to it, in one allocation.
struct FixedBudget {
  FixedBudget(uint64_t rate, uint8_t lanes, core::Nanoseconds interval)
      : controller(rate), budget(controller, lanes, interval) {}
  core::FixedRate controller;
  core::PeerBudget budget;
};

std::shared_ptr<core::PeerBudget> fixed_budget(const config::Peer& peer, uint8_t lanes) {
  const core::Nanoseconds interval = std::max<core::Nanoseconds>(peer.rtt_ns / 8, core::kMillisecond);
  auto owner = std::make_shared<FixedBudget>(peer.rate_bits_per_second, lanes, interval);
  return {owner, &owner->budget};
}

/// Twice the bandwidth-delay product in chunks, so that a lost packet's repetition does not stop the flow.
uint32_t peer_max_in_flight(const config::Peer& peer, uint32_t chunk_bytes, unsigned lanes) {
  constexpr double kMost = 1 << 20;
  const double bits = 2.0 * static_cast<double>(peer.rate_bits_per_second) * static_cast<double>(peer.rtt_ns) / 1e9;
  const double packets = std::min(std::ceil(bits / (8.0 * chunk_bytes * lanes)), kMost);
  return std::max<uint32_t>(64, std::bit_ceil(static_cast<uint32_t>(packets)));
}

}  // namespace

SnapshotBuilder::SnapshotBuilder(const config::Site& site, dataplane::Dataplane& dataplane, Random random)
    : site_(site), dataplane_(dataplane), random_(std::move(random)) {
  neighbours_.resize(site_.peers.size());
  endpoints_.resize(site_.peers.size());
  groups_.resize(1);
}

uint32_t SnapshotBuilder::draw_peer_link(size_t peer) {
  return link_of(static_cast<uint32_t>(peer));
}

void SnapshotBuilder::set_peer(size_t position, uint32_t local_link, uint32_t remote_link, uint16_t udp_port) {
  const config::Peer& peer = site_.peers[position];
  const uint8_t lanes = static_cast<uint8_t>(site_.dataplane.lanes);
  core::LinkConfig link;
  link.neighbour = static_cast<uint32_t>(position);
  link.remote_link = remote_link;
  link.link_label = gg_label(peer.id, GG_CONTEXT_LINK);
  link.trailer_crc = true;
  link.chunk_bytes = site_.dataplane.chunk_bytes;
  link.max_in_flight = peer_max_in_flight(peer, link.chunk_bytes, lanes);
  link.initial_rtt_ns = peer.rtt_ns;
  link.peer = true;

  dataplane::Endpoint endpoint;
  endpoint.port = static_cast<uint16_t>(peer.port);
  endpoint.modality = static_cast<uint8_t>(peer.modality);
  endpoint.udp_port = udp_port;
  const unsigned mtu = site_.ports[peer.port].mtu_bytes;
  uint64_t source = 0;
  if (const auto* ip = std::get_if<config::Ip4>(&peer.address)) {
    endpoint.ip = ip->bytes;
    source = dataplane::source_tag(ip->bytes, 0);
    link.max_packet_bytes = mtu - kUdp4HeaderBytes;
  } else {
    endpoint.mac = std::get<config::Mac>(peer.address).bytes;
    link.max_packet_bytes = mtu - GG_UDP_BYTES;
  }

  auto neighbour = std::make_shared<core::Neighbour>(link, lanes);
  neighbour->peer = true;
  neighbour->site = peer.id;
  neighbour->local_link = local_link;
  neighbour->source = source;
  neighbour->trailer_crc = true;
  neighbour->budget = fixed_budget(peer, lanes);
  neighbours_[position] = std::move(neighbour);
  endpoints_[position] = endpoint;
  changed_ = true;
}

uint32_t SnapshotBuilder::worker_max_in_flight(size_t workers) const {
  const uint64_t flows = uint64_t{site_.dataplane.lanes} * workers;
  return static_cast<uint32_t>(std::clamp<uint64_t>(std::bit_floor(kWorkerBurst / flows), 16, 64));
}

std::optional<SnapshotBuilder::Attachment> SnapshotBuilder::attachment(const config::Ip4& ip) const {
  std::set<size_t> wan;
  for (const config::Peer& peer : site_.peers) wan.insert(peer.port);
  std::optional<Attachment> best;
  int best_rank = 0;
  for (size_t port = 0; port < site_.ports.size(); ++port) {
    for (const config::Cidr& cidr : site_.ports[port].addresses) {
      const auto* own = std::get_if<config::Ip4>(&cidr.address);
      if (own == nullptr) continue;
      // A worker behind a router is more likely on a port that no peer uses.
      const int rank = config::contains(cidr, ip) ? 3 : wan.contains(port) ? 1 : 2;
      if (rank <= best_rank) continue;
      best_rank = rank;
      best = Attachment{static_cast<uint16_t>(port), *own};
    }
  }
  return best;
}

bool SnapshotBuilder::has_room_for(size_t workers) const {
  const auto reusable = std::count_if(free_indices_.begin(), free_indices_.end(),
                                      [this](const FreeIndex& index) { return adopted(index.generation); });
  return kMaxNeighbours - neighbours_.size() + static_cast<size_t>(reusable) >= workers;
}

uint32_t SnapshotBuilder::take_index() {
  // A lane may still know the old neighbour until it has adopted the generation without it.
  if (!free_indices_.empty() && adopted(free_indices_.front().generation)) {
    const uint32_t index = free_indices_.front().index;
    free_indices_.pop_front();
    return index;
  }
  neighbours_.emplace_back();
  endpoints_.emplace_back();
  return static_cast<uint32_t>(neighbours_.size() - 1);
}

uint32_t SnapshotBuilder::take_context(core::Nanoseconds now) {
  if (!free_contexts_.empty() && now - free_contexts_.front().since >= kQuarantine) {
    const uint32_t context = free_contexts_.front().context;
    free_contexts_.pop_front();
    return context;
  }
  if (groups_.size() > GG_CONTEXT_MASK) return 0;
  groups_.emplace_back();
  return static_cast<uint32_t>(groups_.size() - 1);
}

void SnapshotBuilder::put_worker(uint32_t index, uint32_t label, const WorkerAddress& address, size_t workers) {
  const Attachment attached = attachment(address.ip).value_or(Attachment{});
  core::LinkConfig link;
  link.neighbour = index;
  link.remote_link = address.link;
  link.link_label = label;
  link.trailer_crc = false;  // the UDP checksum is always valid towards sockets (DESIGN section 4)
  link.max_packet_bytes = site_.ports[attached.port].mtu_bytes - kUdp4HeaderBytes;
  link.chunk_bytes = site_.dataplane.chunk_bytes;
  link.max_in_flight = worker_max_in_flight(workers);
  link.initial_rtt_ns = core::kMillisecond;

  auto neighbour = std::make_shared<core::Neighbour>(link, static_cast<uint8_t>(site_.dataplane.lanes));
  neighbour->local_link = link_of(index);
  neighbour->source = dataplane::source_tag(address.ip.bytes, address.udp_port);
  neighbour->trailer_crc = true;
  neighbours_[index] = std::move(neighbour);

  dataplane::Endpoint endpoint;
  endpoint.port = attached.port;
  endpoint.ip = address.ip.bytes;
  endpoint.udp_port = address.udp_port;
  endpoint.port_per_lane = false;
  endpoints_[index] = endpoint;
  changed_ = true;
}

core::GroupConfig SnapshotBuilder::group_config(const Plan& plan, uint32_t context,
                                                const std::vector<Worker>& workers) const {
  core::GroupConfig config;
  config.name = plan.name();
  config.context = context;
  config.generation = group_generation_;
  config.size = plan.size;
  config.chunk_bytes = plan.chunk_bytes;
  config.lanes = plan.lanes;
  config.window = plan.window;
  config.exchange_limit_bytes = plan.exchange_limit_bytes;
  config.start = plan.start;
  config.stall_report_ns = site_.group.stall_report_ns;
  config.call_timeout_ns = site_.group.call_timeout_ns;
  for (const Worker& worker : workers)
    config.members.push_back({worker.rank, worker.index, gg_label(site_.id, context)});
  config.site_of_rank.resize(plan.size);
  for (const PlanSite& site : plan.sites) {
    core::GroupSite entry;
    entry.site = site.id;
    entry.weight = site.weight;
    for (size_t i = 0; i < site_.peers.size(); ++i)
      if (site_.peers[i].id == site.id) entry.neighbour = static_cast<uint32_t>(i);
    config.sites.push_back(entry);
    for (uint16_t rank : site.ranks) config.site_of_rank[rank] = site.id;
  }
  return config;
}

uint32_t SnapshotBuilder::add_group(const Plan& plan, const std::map<uint16_t, WorkerAddress>& addresses,
                                    const std::vector<uint32_t>& low, core::Nanoseconds now) {
  const uint32_t context = take_context(now);
  if (context == 0) return 0;
  ++group_generation_;
  std::vector<Worker> workers;
  for (const auto& [rank, address] : addresses) {
    const uint32_t index = take_index();
    put_worker(index, gg_label(site_.id, context), address, addresses.size());
    workers.push_back({rank, index});
  }
  core::GroupEntry& entry = groups_[context];
  entry.group = std::make_shared<core::Group>(group_config(plan, context, workers), site_.id, low);
  entry.site_labels.assign(plan.sites.size(), 0);
  entry.error = nullptr;
  workers_[context] = std::move(workers);
  changed_ = true;
  return context;
}

uint32_t SnapshotBuilder::worker_index(uint32_t context, uint16_t rank) const {
  for (const Worker& worker : workers_.at(context))
    if (worker.rank == rank) return worker.index;
  throw std::logic_error("no worker of this rank in the group");
}

uint32_t SnapshotBuilder::worker_link(uint32_t context, uint16_t rank) const {
  return neighbours_[worker_index(context, rank)]->local_link;
}

void SnapshotBuilder::replace_worker(uint32_t context, uint16_t rank, const WorkerAddress& address) {
  put_worker(worker_index(context, rank), gg_label(site_.id, context), address, workers_.at(context).size());
}

void SnapshotBuilder::set_site_label(uint32_t context, uint16_t site, uint32_t label) {
  core::GroupEntry& entry = groups_[context];
  const std::vector<core::GroupSite>& sites = entry.group->config.sites;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].site != site || entry.site_labels[i] == label) continue;
    entry.site_labels[i] = label;
    changed_ = true;
  }
}

void SnapshotBuilder::fail_group(uint32_t context, const std::string& text) {
  groups_[context].error = std::make_shared<const std::string>(text);
  changed_ = true;
}

void SnapshotBuilder::remove_group(uint32_t context, core::Nanoseconds now) {
  groups_[context] = {};
  for (const Worker& worker : workers_.at(context)) {
    neighbours_[worker.index] = nullptr;
    free_indices_.push_back({worker.index, generation_ + 1});
  }
  workers_.erase(context);
  free_contexts_.push_back({context, now});
  changed_ = true;
}

std::vector<uint32_t> SnapshotBuilder::low(uint32_t context) const {
  std::vector<uint32_t> out;
  for (const auto& lane : groups_[context].group->lanes) out.push_back(lane->low());
  return out;
}

uint64_t SnapshotBuilder::slots_in_use(uint32_t context) const {
  uint64_t used = 0;
  for (const auto& lane : groups_[context].group->lanes) used += lane->slots_in_use();
  return used;
}

core::Nanoseconds SnapshotBuilder::heard(const core::Neighbour* neighbour) {
  core::Nanoseconds latest = 0;
  if (neighbour == nullptr) return latest;
  for (const auto& link : neighbour->lanes) latest = std::max(latest, link->last_heard());
  return latest;
}

core::Nanoseconds SnapshotBuilder::worker_heard(uint32_t context, uint16_t rank) const {
  return heard(neighbours_[worker_index(context, rank)].get());
}

core::Nanoseconds SnapshotBuilder::peer_heard(size_t position) const {
  return heard(neighbours_[position].get());
}

uint64_t SnapshotBuilder::publish() {
  if (!changed_) return generation_;
  changed_ = false;
  auto core = std::make_shared<core::Snapshot>();
  core->generation = ++generation_;
  core->site = site_.id;
  core->neighbours = neighbours_;
  core->groups = groups_;
  auto snapshot = std::make_shared<dataplane::Snapshot>();
  snapshot->core = std::move(core);
  snapshot->endpoints = endpoints_;
  published_.push_back(snapshot);
  dataplane_.publish(std::move(snapshot));
  collect();
  return generation_;
}

void SnapshotBuilder::collect() {
  // The lanes' last reference must not be the last one: memory is freed here, not on an lcore.
  const uint64_t oldest_in_use = dataplane_.adopted_generation();
  while (published_.size() > 1 && published_.front()->core->generation < oldest_in_use) published_.pop_front();
}

}  // namespace gradgate::control
