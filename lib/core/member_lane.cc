// SPDX-License-Identifier: Apache-2.0
#include "core/member_lane.h"

#include <cstring>

#include "core/packet.h"

namespace gradgate::core {

MemberLane::MemberLane(Member& member, uint8_t lane, Nanoseconds now)
    : member_(member), lane_(lane), low_(member.config_.start[lane]), next_(low_) {
  slots_.resize(member.config_.window);
  memory_.resize(size_t{member.config_.window} * member.config_.chunk_bytes);
  flow_.source = this;
  // Twice the window: an index may stand behind its slot's former one that went stale in the queue.
  flow_.reserve(member.config_.window * 2);
  restart(now);
}

void MemberLane::restart(Nanoseconds now) {
  if (link_ != nullptr) link_->detach();
  LinkConfig config = member_.config_.link;
  config.lane = lane_;
  link_ = std::make_unique<Link>(config);
  link_->attach(member_.links_.wheel, member_.counters_, member_.output_, nullptr, &member_.links_.active, now);
  flow_.link = link_.get();
  flow_.label = member_.config_.group_label;
  flow_.clear_chunks();
  if (member_.failed_) return;
  for (uint32_t index = low_; index != next_; index += step()) {
    Slot& s = slot(index);
    s.delivered = false;
    queue(s);
  }
}

void MemberLane::abandon() {
  segments_.clear();
  for (Slot& s : slots_) s.operation = nullptr;
  flow_.clear_chunks();
}

void MemberLane::submit(Operation& operation, const Chunking& chunking) {
  const Chunking::Share share = chunking.share(operation.call, lane_, member_.config_.lanes);
  if (share.count > 0) segments_.push_back({&operation, chunking, share, 0});
}

void MemberLane::issue() {
  const MemberConfig& config = member_.config_;
  while (!segments_.empty() && next_ - low_ < config.window * step()) {
    Segment& segment = segments_.front();
    Operation& operation = *segment.operation;
    const uint64_t k = segment.share.first + segment.issued * segment.share.stride;
    const bool owned =
        segment.chunking.owners > 1 || operation.kind == GG_REDUCE_SCATTER || operation.kind == GG_ALL_GATHER;
    Slot& s = slot(next_);
    s.index = next_;
    s.used = true;
    s.delivered = false;
    s.call.call = operation.call;
    s.call.elements = operation.elements;
    s.call.root = owned ? segment.chunking.owner(k) : operation.root;
    s.call.kind = operation.kind;
    s.call.dtype = operation.dtype;
    s.call.op = operation.op;
    s.call.length = static_cast<uint16_t>(segment.chunking.length(k));
    s.source = is_source(s.call, config.rank);
    s.expects_result = is_sink(s.call, config.rank);
    s.operation = s.expects_result ? &operation : nullptr;
    // Reduce-scatter's output and all-gather's input are one shard; the other side is the whole.
    s.output_offset =
        operation.kind == GG_REDUCE_SCATTER ? segment.chunking.shard_offset(k) : segment.chunking.offset(k);
    if (s.source) {
      const uint64_t input_offset =
          operation.kind == GG_ALL_GATHER ? segment.chunking.shard_offset(k) : segment.chunking.offset(k);
      // Never the user's buffer again: results overwrite it (rule 7).
      s.retained.data = memory_.data() + size_t{next_ / step() & (config.window - 1)} * config.chunk_bytes;
      s.retained.length = s.call.length;
      s.retained.sum = 0;
      if (s.call.length > 0) std::memcpy(s.retained.data, operation.input + input_offset, s.call.length);
      --operation.contributions;
    }
    queue(s);
    next_ += step();
    if (++segment.issued == segment.share.count) segments_.pop_front();
    if (operation.contributions == 0 && operation.results == 0) member_.finish(operation);
  }
}

void MemberLane::queue(const Slot& s) {
  flow_.make_room([&](const FrameId& id) {
    const Slot& other = slot(id.index);
    return live(other, id.index) && !other.delivered;
  });
  flow_.push({s.index, 1, static_cast<uint8_t>(s.source ? GG_CONTRIBUTION : GG_READY)});
  link_->activate(flow_);
}

bool MemberLane::build(Flow& flow, FrameId& id, gg_frame& frame, const Payload*& payload) {
  const Slot& s = slot(id.index);
  if (!live(s, id.index) || s.delivered) return false;
  // READYs of one call go out as a range that ends at the last index; its count has 16 bits.
  while (id.type == GG_READY && id.count != 0xFFFF && flow.has_chunks()) {
    const FrameId& following = flow.front();
    const Slot& other = slot(following.index);
    if (following.index != id.index + step() || following.type != GG_READY || !live(other, following.index) ||
        other.delivered || other.call.call != s.call.call || other.call.root != s.call.root)
      break;
    id.index = following.index;
    ++id.count;
    flow.pop();
  }
  frame.type = id.type;
  frame.kind = s.call.kind;
  frame.dtype = s.call.dtype;
  frame.index = id.index;
  frame.call = s.call.call;
  frame.elements = s.call.elements;
  frame.source = member_.config_.rank;
  frame.root = s.call.root;
  frame.count = id.count;
  frame.op = s.call.op;
  if (id.type == GG_CONTRIBUTION) payload = &s.retained;
  return true;
}

void MemberLane::delivered(Flow&, const FrameId& id, Nanoseconds) {
  for (uint32_t i = 0; i < id.count; ++i) {
    const uint32_t index = id.index - i * step();
    if (Slot& s = slot(index); live(s, index)) s.delivered = true;
  }
}

void MemberLane::lost(Flow&, const FrameId& id) {
  if (member_.failed_) return;
  for (uint32_t i = id.count; i-- > 0;) {
    const uint32_t index = id.index - i * step();
    if (const Slot& s = slot(index); live(s, index) && !s.delivered) queue(s);
  }
}

bool MemberLane::drop(gg_drop reason) {
  member_.counters_.packet_drops[reason].add();
  return false;
}

bool MemberLane::drop_frame(gg_drop reason) {
  member_.counters_.frame_drops[reason].add();
  return false;
}

bool MemberLane::receive(const Arrival& arrival, Nanoseconds now) {
  const MemberConfig& config = member_.config_;
  if (arrival.link.link != config.local_link) return drop(GG_DROP_UNKNOWN_LINK);
  if (arrival.link.label != config.own_label) return drop(GG_DROP_BAD_LABEL);
  ReceivedPacket packet;
  if (const gg_drop reason = parse_packet(arrival, config.trailer_crc_receive, packet); reason != GG_DROP_COUNT)
    return drop(reason);
  uint64_t number = 0;
  if (!link_->is_new(arrival.link.number, number)) return drop(GG_DROP_DUPLICATE_NUMBER);
  member_.counters_.packets_parsed.add();
  member_.counters_.worker_bytes_received.add(arrival.length);
  link_->heard(now);
  bool all_kept = true;
  for (uint32_t i = 0; i < packet.count; ++i) {
    member_.counters_.frames_received.add();
    all_kept &= receive_frame(packet.frames[i].header, packet.frames[i].payload, now);
  }
  if (all_kept) link_->accept(number, packet.ack_eliciting, arrival.ce, now);
  return true;
}

bool MemberLane::receive_frame(const gg_frame& frame, uint8_t* payload, Nanoseconds now) {
  LaneCounters& counters = member_.counters_;
  switch (frame.type) {
    case GG_ACK:
      if (!link_->on_ack(frame, payload, now)) return drop_frame(GG_DROP_BAD_ACK);
      counters.frames_kept.add();
      return true;
    case GG_PING:
      counters.frames_kept.add();
      return true;
    case GG_RESULT:
      return on_result(frame, payload);
    case GG_WATERMARK:
      return on_low(frame);
    case GG_ERROR: {
      counters.frames_kept.add();
      std::string text(reinterpret_cast<const char*>(payload), frame.length);
      while (!text.empty() && text.back() == ' ') text.pop_back();  // padding to an even length
      member_.fail(text);
      return true;
    }
    default:
      return drop_frame(GG_DROP_UNEXPECTED_FRAME);
  }
}

bool MemberLane::on_result(const gg_frame& frame, const uint8_t* payload) {
  LaneCounters& counters = member_.counters_;
  if (member_.failed_) return drop_frame(GG_DROP_GROUP_FAILED);
  if ((frame.index & (step() - 1)) != lane_) return drop_frame(GG_DROP_BAD_LANE);
  if (serial_less(frame.index, low_)) {
    counters.frames_past.add();
    return true;
  }
  if (!serial_less(frame.index, next_)) return drop_frame(GG_DROP_FUTURE);
  Slot& s = slot(frame.index);
  const CallParameters call{frame.call, frame.elements, frame.root, frame.kind, frame.dtype, frame.op, frame.length};
  if (!(call == s.call) || !s.expects_result) return drop_frame(GG_DROP_MISMATCH);
  if (s.operation == nullptr) {
    counters.frames_duplicate.add();
    return true;
  }
  Operation& operation = *s.operation;
  if (frame.length > 0) std::memcpy(operation.output + s.output_offset, payload, frame.length);
  s.operation = nullptr;
  counters.frames_kept.add();
  counters.results_completed.add();
  --operation.results;
  if (operation.contributions == 0 && operation.results == 0) member_.finish(operation);
  return true;
}

bool MemberLane::on_low(const gg_frame& frame) {
  if ((frame.index & (step() - 1)) != lane_ || serial_less(next_, frame.index))
    return drop_frame(GG_DROP_BAD_WATERMARK);
  member_.counters_.frames_kept.add();
  if (serial_less(low_, frame.index)) {
    for (; low_ != frame.index; low_ += step()) slot(low_).used = false;
    issue();
  }
  return true;
}

}  // namespace gradgate::core
