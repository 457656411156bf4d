// SPDX-License-Identifier: Apache-2.0
#include "core/gateway_lane.h"

#include <algorithm>

#include "core/group_lane.h"

namespace gradgate::core {

GatewayLane::GatewayLane(uint8_t lane, uint16_t site, BufferPool& pool, Output& output, EventSink& events)
    : lane_(lane),
      site_(site),
      pool_(pool),
      output_(output),
      events_(events),
      snapshot_(std::make_shared<Snapshot>()) {}

GatewayLane::~GatewayLane() = default;

void GatewayLane::apply(std::shared_ptr<const Snapshot> snapshot, Nanoseconds now) {
  const std::shared_ptr<const Snapshot> old = std::move(snapshot_);
  snapshot_ = std::move(snapshot);

  // Groups leave their links before links go, links come before groups join them.
  const size_t contexts = std::max(old->groups.size(), snapshot_->groups.size());
  for (size_t context = 0; context < contexts; ++context) {
    const Group* was = context < old->groups.size() ? old->groups[context].group.get() : nullptr;
    const Group* is = context < snapshot_->groups.size() ? snapshot_->groups[context].group.get() : nullptr;
    if (was != nullptr && was != is && lane_ < was->lanes.size()) was->lanes[lane_]->detach();
  }
  const size_t neighbours = std::max(old->neighbours.size(), snapshot_->neighbours.size());
  for (size_t i = 0; i < neighbours; ++i) {
    const Neighbour* was = i < old->neighbours.size() ? old->neighbours[i].get() : nullptr;
    const Neighbour* is = i < snapshot_->neighbours.size() ? snapshot_->neighbours[i].get() : nullptr;
    if (was == is) continue;
    if (was != nullptr) was->lanes[lane_]->detach();
    if (is != nullptr)
      is->lanes[lane_]->attach(links_.wheel, counters_, output_, is->budget.get(), &links_.active, now);
  }
  budgets_.clear();
  if (lane_ == 0)
    for (const auto& neighbour : snapshot_->neighbours)
      if (neighbour != nullptr && neighbour->budget != nullptr) budgets_.push_back(neighbour->budget.get());
  for (const GroupEntry& entry : snapshot_->groups) {
    if (entry.group == nullptr || lane_ >= entry.group->lanes.size()) continue;
    GroupLane& group = *entry.group->lanes[lane_];
    if (!group.attached()) group.attach({&pool_, &events_, &links_.wheel, &counters_}, now);
    group.update(entry, *snapshot_);
  }
}

uint32_t GatewayLane::drop(gg_drop reason) {
  counters_.packet_drops[reason].add();
  return kNoNeighbour;
}

uint32_t GatewayLane::receive(const Arrival& arrival, Nanoseconds now) {
  counters_.packets_received.add();
  const gg_link& header = arrival.link;
  if (header.lane != lane_) return drop(GG_DROP_BAD_LANE);
  if (gg_label_site(header.label) != site_) return drop(GG_DROP_BAD_LABEL);
  const uint32_t index = Snapshot::neighbour_of_link(header.link);
  const Neighbour* neighbour = index < snapshot_->neighbours.size() ? snapshot_->neighbours[index].get() : nullptr;
  if (neighbour == nullptr || neighbour->local_link != header.link) return drop(GG_DROP_UNKNOWN_LINK);
  if (neighbour->source != 0 && neighbour->source != arrival.source) return drop(GG_DROP_WRONG_SOURCE);

  ReceivedPacket packet;
  if (const gg_drop reason = parse_packet(arrival, neighbour->trailer_crc, packet); reason != GG_DROP_COUNT)
    return drop(reason);

  const uint32_t context = gg_label_context(header.label);
  GroupLane* group = nullptr;
  if (context != GG_CONTEXT_LINK) {
    const Group* g = context < snapshot_->groups.size() ? snapshot_->groups[context].group.get() : nullptr;
    if (g == nullptr || lane_ >= g->lanes.size()) {
      drop(GG_DROP_BAD_LABEL);
      return index;
    }
    group = g->lanes[lane_].get();
  }

  Link& link = *neighbour->lanes[lane_];
  uint64_t number = 0;
  if (!link.is_new(header.number, number)) {
    drop(GG_DROP_DUPLICATE_NUMBER);
    return index;
  }
  counters_.packets_parsed.add();
  (neighbour->peer ? counters_.wan_bytes_received : counters_.worker_bytes_received).add(arrival.length);
  link.heard(now);
  // Acknowledged only when every frame was kept or is known to be past (rule 6).
  bool all_kept = true;
  for (uint32_t i = 0; i < packet.count; ++i)
    all_kept &= receive_frame(packet.frames[i], *neighbour, index, link, group, arrival.buffer, now);
  if (all_kept) link.accept(number, packet.ack_eliciting, arrival.ce, now);
  return index;
}

bool GatewayLane::receive_frame(const ReceivedFrame& frame, const Neighbour& neighbour, uint32_t index, Link& link,
                                GroupLane* group, Buffer buffer, Nanoseconds now) {
  counters_.frames_received.add();
  gg_drop reason = GG_DROP_UNEXPECTED_FRAME;
  FrameFate fate = FrameFate::kDropped;
  if (frame.header.type == GG_ACK) {
    if (link.on_ack(frame.header, frame.payload, now)) {
      fate = FrameFate::kKept;
    } else {
      reason = GG_DROP_BAD_ACK;
    }
  } else if (frame.header.type == GG_PING) {
    fate = FrameFate::kKept;
  } else if (group != nullptr) {
    fate = neighbour.peer ? group->receive_from_peer(index, frame.header, frame.payload, buffer, now, reason)
                          : group->receive_from_member(index, frame.header, frame.payload, buffer, now, reason);
  }
  switch (fate) {
    case FrameFate::kKept:
      counters_.frames_kept.add();
      return true;
    case FrameFate::kDuplicate:
      counters_.frames_duplicate.add();
      return true;
    case FrameFate::kPast:
      counters_.frames_past.add();
      return true;
    case FrameFate::kDropped:
      break;
  }
  counters_.frame_drops[reason].add();
  return false;
}

void GatewayLane::poll(Nanoseconds now, uint32_t budget_packets) {
  links_.poll(now, budget_packets);
}

Nanoseconds GatewayLane::next_deadline() const {
  return links_.next_deadline();
}

}  // namespace gradgate::core
