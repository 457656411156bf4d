// SPDX-License-Identifier: Apache-2.0
#include "core/member.h"

#include <algorithm>

#include "core/chunking.h"
#include "core/member_lane.h"

namespace gradgate::core {

Member::Member(const MemberConfig& config, Output& output, Observer& observer, Nanoseconds now)
    : config_(config), output_(output), observer_(observer) {
  config_.link.neighbour = 0;
  config_.link.chunk_bytes = config_.chunk_bytes;
  for (uint8_t lane = 0; lane < config_.lanes; ++lane) lanes_.push_back(std::make_unique<MemberLane>(*this, lane, now));
}

Member::~Member() = default;

void Member::submit(Operation& operation, Nanoseconds) {
  if (failed_) return;
  const Chunking chunking(operation.kind, uint64_t{operation.elements} * gg_dtype_bytes(operation.dtype),
                          config_.chunk_bytes, config_.size);
  operation.call = next_call_++;
  operation.done = false;
  const bool scatter = operation.kind == GG_REDUCE_SCATTER;
  const bool gather = operation.kind == GG_ALL_GATHER;
  const bool from_root = operation.kind == GG_BROADCAST;
  const bool to_root = operation.kind == GG_REDUCE;
  const uint64_t own = chunking.chunks / chunking.owners;
  const bool root = operation.root == config_.rank;
  operation.contributions = gather ? own : from_root && !root ? 0 : chunking.chunks;
  operation.results = scatter ? own : to_root && !root ? 0 : chunking.chunks;
  for (auto& lane : lanes_) lane->submit(operation, chunking);
  for (auto& lane : lanes_) lane->issue();
}

bool Member::receive(const Arrival& arrival, Nanoseconds now) {
  counters_.packets_received.add();
  if (arrival.link.lane >= config_.lanes) {
    counters_.packet_drops[GG_DROP_BAD_LANE].add();
    return false;
  }
  return lanes_[arrival.link.lane]->receive(arrival, now);
}

void Member::poll(Nanoseconds now, uint32_t budget_packets) {
  links_.poll(now, budget_packets);
}

Nanoseconds Member::next_deadline() const {
  return links_.next_deadline();
}

void Member::ping() {
  for (auto& lane : lanes_) lane->link().ping();
}

void Member::gateway_restarted(uint32_t remote_link, uint32_t local_link, uint32_t group_label, uint32_t own_label,
                               Nanoseconds now) {
  config_.link.remote_link = remote_link;
  config_.link.link_label = gg_label(gg_label_site(group_label), GG_CONTEXT_LINK);
  config_.local_link = local_link;
  config_.group_label = group_label;
  config_.own_label = own_label;
  for (auto& lane : lanes_) lane->restart(now);
}

std::vector<uint32_t> Member::low() const {
  std::vector<uint32_t> low;
  for (const auto& lane : lanes_) low.push_back(lane->low());
  return low;
}

bool Member::drained() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->drained(); });
}

Nanoseconds Member::last_heard() const {
  Nanoseconds latest = 0;
  for (const auto& lane : lanes_) latest = std::max(latest, lane->link().last_heard());
  return latest;
}

void Member::finish(Operation& operation) {
  if (operation.done) return;
  operation.done = true;
  observer_.operation_done(operation);
}

void Member::fail(const std::string& text) {
  if (failed_) return;
  failed_ = true;
  for (auto& lane : lanes_) lane->abandon();
  observer_.group_failed(text);
}

}  // namespace gradgate::core
