// SPDX-License-Identifier: Apache-2.0
// Frames in, sums, results: the packet path of a group's lane. What goes out is in group_lane_send.cc; links, timers
// and reports are in group_lane_control.cc.
#include <algorithm>

#include "core/group_lane.h"
#include "reduce/reduce.h"

namespace gradgate::core {

CallParameters GroupLane::call_of(const gg_frame& frame) {
  CallParameters call;
  call.call = frame.call;
  call.elements = frame.elements;
  call.root = frame.root;
  call.kind = frame.kind;
  call.dtype = frame.dtype;
  call.op = frame.op;
  call.length = frame.length;
  return call;
}

bool GroupLane::refuses(const gg_frame& frame, gg_drop& reason) const {
  reason = failed_ ? GG_DROP_GROUP_FAILED : GG_DROP_BAD_FRAME;
  return failed_ || frame.root >= config_.size;
}

FrameFate GroupLane::receive_from_member(uint32_t neighbour, const gg_frame& frame, uint8_t* payload, Buffer buffer,
                                         Nanoseconds now, gg_drop& reason) {
  const uint16_t member = frame.source < config_.size ? member_of_rank_[frame.source] : kNoMember;
  if (member == kNoMember || config_.members[member].neighbour != neighbour) {
    reason = GG_DROP_WRONG_SOURCE;
    return FrameFate::kDropped;
  }
  if (refuses(frame, reason)) return FrameFate::kDropped;
  switch (frame.type) {
    case GG_CONTRIBUTION:
      return on_contribution(member, frame, payload, buffer, now, reason);
    case GG_READY:
      return on_ready(member, frame, now, reason);
    default:
      reason = GG_DROP_UNEXPECTED_FRAME;
      return FrameFate::kDropped;
  }
}

FrameFate GroupLane::receive_from_peer(uint32_t neighbour, const gg_frame& frame, uint8_t* payload, Buffer buffer,
                                       Nanoseconds now, gg_drop& reason) {
  uint32_t site = 0;
  while (site < sites_ && config_.sites[site].site != frame.source) ++site;
  if (site == sites_ || config_.sites[site].neighbour != neighbour) {
    reason = GG_DROP_WRONG_SOURCE;
    return FrameFate::kDropped;
  }
  if (refuses(frame, reason)) return FrameFate::kDropped;
  switch (frame.type) {
    case GG_PARTIAL:
      return on_partial(site, frame, payload, buffer, now, reason);
    case GG_RESULT:
      return on_result(site, frame, payload, buffer, now, reason);
    case GG_WATERMARK:
      return on_watermark(site, frame, reason, now);
    case GG_READY:
      return on_announcement(site, frame, now, reason);
    default:
      reason = GG_DROP_UNEXPECTED_FRAME;
      return FrameFate::kDropped;
  }
}

/// Finds or opens the slot of the frame's index and compares the call. kKept: `out` is the slot.
FrameFate GroupLane::admit(const gg_frame& frame, uint16_t rank, Nanoseconds now, gg_drop& reason, Slot*& out) {
  const uint32_t index = frame.index;
  if ((index & (step() - 1)) != lane_) {
    reason = GG_DROP_BAD_LANE;
    return FrameFate::kDropped;
  }
  if (serial_less(index, low_)) return FrameFate::kPast;
  const uint32_t proven_low = index - window_span() + step();
  if (serial_less(low_, proven_low)) {
    // An honest sender has index inside its own [low, low + window): it knows a newer low (C2 of the protocol
    // review). But low never exceeds this site's own watermark.
    if (serial_less(site_watermarks_[self_], proven_low)) {
      reason = GG_DROP_FUTURE;
      return FrameFate::kDropped;
    }
    update_low(proven_low, now);
  }
  const CallParameters call = call_of(frame);
  const bool has_length = frame.type != GG_READY;
  Slot& s = slot(index);
  if ((s.flags & kUsed) == 0) {
    const bool fits =
        has_length ? is_consistent(call) && call.length <= config_.chunk_bytes : call.kind != GG_KIND_NONE;
    if (!fits) {
      reason = GG_DROP_BAD_FRAME;
      return FrameFate::kDropped;
    }
    s.index = index;
    s.flags = static_cast<uint8_t>(kUsed | (has_length ? kLengthKnown : 0));
    s.first_rank = rank;
    s.call = call;
    s.since = now;
    s.sources = s.sinks = s.source_sites = 0;
    s.contributed = s.delivered = s.partials = 0;
    for (const GroupMember& member : config_.members) {
      s.sources = static_cast<uint16_t>(s.sources + is_source(call, member.rank));
      s.sinks = static_cast<uint16_t>(s.sinks + is_sink(call, member.rank));
    }
    for (uint32_t site = 0; site < sites_; ++site)
      s.source_sites = static_cast<uint16_t>(s.source_sites + site_has_source(site, call));
    published_used_.set(++used_);
  } else {
    // A READY covers chunks of different lengths, so it says none.
    CallParameters expected = s.call;
    if (!has_length || (s.flags & kLengthKnown) == 0) expected.length = call.length;
    if (!(call == expected)) return mismatch(s, frame, rank, reason);
    if (has_length && (s.flags & kLengthKnown) == 0) {
      if (!is_consistent(call) || call.length > config_.chunk_bytes) {
        reason = GG_DROP_BAD_FRAME;
        return FrameFate::kDropped;
      }
      s.call.length = call.length;
      s.flags |= kLengthKnown;
    }
  }
  out = &s;
  return FrameFate::kKept;
}

FrameFate GroupLane::mismatch(const Slot& s, const gg_frame& frame, uint16_t rank, gg_drop& reason) {
  Event event;
  event.type = Event::Type::kMismatch;
  event.index = s.index;
  event.call = s.call;
  event.rank = s.first_rank;
  event.other_call = call_of(frame);
  event.other_rank = rank;
  // A report that does not get through is made again by the frame's next repetition.
  if (emit(event)) failed_ = true;
  reason = GG_DROP_MISMATCH;
  return FrameFate::kDropped;
}

Payload GroupLane::keep(uint8_t* data, uint32_t length, Buffer buffer) {
  Payload payload;
  payload.data = data;
  payload.length = length;
  if (length > 0) {
    payload.buffer = buffer;
    environment_.pool->retain(buffer);
  }
  return payload;
}

void GroupLane::release(Payload& payload) {
  if (payload.buffer != nullptr) environment_.pool->release(payload.buffer);
  payload = {};
}

FrameFate GroupLane::on_contribution(uint32_t member, const gg_frame& frame, uint8_t* payload, Buffer buffer,
                                     Nanoseconds now, gg_drop& reason) {
  const uint16_t rank = frame.source;
  if (!is_source(call_of(frame), rank)) {
    reason = GG_DROP_NOT_A_SOURCE;
    return FrameFate::kDropped;
  }
  Slot* s = nullptr;
  const FrameFate fate = admit(frame, rank, now, reason, s);
  if (fate != FrameFate::kKept) return fate;
  const uint32_t pos = position(frame.index);
  uint8_t& state = member_state(pos, member);
  // Tested before the buffer is kept (rule 6).
  if ((state & kContributed) != 0) return FrameFate::kDuplicate;
  if (frame.length > 0 && environment_.pool->below_reserve()) {
    reason = GG_DROP_POOL_EXHAUSTED;
    return FrameFate::kDropped;
  }
  state |= kContributed;
  contribution(pos, member) = keep(payload, frame.length, buffer);
  if (++s->contributed == s->sources) complete_partial(*s, now);
  if (is_sink(s->call, rank)) {
    state |= kReady;
    queue_result(*s, member);
  }
  return FrameFate::kKept;
}

FrameFate GroupLane::on_ready(uint32_t member, const gg_frame& frame, Nanoseconds now, gg_drop& reason) {
  const CallParameters call = call_of(frame);
  if (frame.count == 0 || frame.count > config_.window || frame.length != 0 || !is_sink(call, frame.source) ||
      is_source(call, frame.source)) {
    reason = GG_DROP_BAD_FRAME;
    return FrameFate::kDropped;
  }
  FrameFate fate = FrameFate::kPast;
  for (uint32_t i = frame.count; i-- > 0;) {
    gg_frame one = frame;
    one.index = frame.index - (i << lane_shift_);
    Slot* s = nullptr;
    const FrameFate each = admit(one, frame.source, now, reason, s);
    if (each == FrameFate::kDropped) return each;
    if (each != FrameFate::kKept) continue;
    uint8_t& state = member_state(position(one.index), member);
    if ((state & kReady) != 0) {
      if (fate == FrameFate::kPast) fate = FrameFate::kDuplicate;
      continue;
    }
    state |= kReady;
    queue_result(*s, member);
    fate = FrameFate::kKept;
  }
  return fate;
}

FrameFate GroupLane::on_partial(uint32_t site, const gg_frame& frame, uint8_t* payload, Buffer buffer, Nanoseconds now,
                                gg_drop& reason) {
  // Before a slot is opened: a refused frame must not say what the others are compared with.
  const CallParameters call = call_of(frame);
  if (!decides(self_, call, frame.index)) {
    reason = GG_DROP_WRONG_ROOT;
    return FrameFate::kDropped;
  }
  if (!site_has_source(site, call)) {
    reason = GG_DROP_NOT_A_SOURCE;
    return FrameFate::kDropped;
  }
  Slot* s = nullptr;
  const FrameFate fate = admit(frame, rank_of_site(site, call), now, reason, s);
  if (fate != FrameFate::kKept) return fate;
  const uint32_t pos = position(frame.index);
  uint8_t& state = site_state(pos, site);
  if ((state & kHavePartial) != 0 || (s->flags & kResultDone) != 0) return FrameFate::kDuplicate;
  if (frame.length > 0 && environment_.pool->below_reserve()) {
    reason = GG_DROP_POOL_EXHAUSTED;
    return FrameFate::kDropped;
  }
  state |= kHavePartial;
  site_partial(pos, site) = keep(payload, frame.length, buffer);
  ++s->partials;
  try_complete_result(*s, now);
  return FrameFate::kKept;
}

FrameFate GroupLane::on_result(uint32_t site, const gg_frame& frame, uint8_t* payload, Buffer buffer, Nanoseconds now,
                               gg_drop& reason) {
  const CallParameters call = call_of(frame);
  if (!sharded(call) || root_site(frame.index) != site) {
    reason = GG_DROP_WRONG_ROOT;
    return FrameFate::kDropped;
  }
  Slot* s = nullptr;
  const FrameFate fate = admit(frame, rank_of_site(site, call), now, reason, s);
  if (fate != FrameFate::kKept) return fate;
  if ((s->flags & kResultDone) != 0) return FrameFate::kDuplicate;
  if (frame.length > 0 && environment_.pool->below_reserve()) {
    reason = GG_DROP_POOL_EXHAUSTED;
    return FrameFate::kDropped;
  }
  s->result = keep(payload, frame.length, buffer);
  result_known(*s, now);
  return FrameFate::kKept;
}

/// A peer says which call it waits in: nothing to sum, but two sites that wait for each other in different calls
/// find out.
FrameFate GroupLane::on_announcement(uint32_t site, const gg_frame& frame, Nanoseconds now, gg_drop& reason) {
  if (frame.length != 0 || frame.count != 1) {
    reason = GG_DROP_BAD_FRAME;
    return FrameFate::kDropped;
  }
  Slot* s = nullptr;
  return admit(frame, rank_of_site(site, call_of(frame)), now, reason, s);
}

FrameFate GroupLane::on_watermark(uint32_t site, const gg_frame& frame, gg_drop& reason, Nanoseconds now) {
  const uint32_t watermark = frame.index;
  const uint32_t low = frame.call;
  // Nobody completes what is beyond the window, which starts at the newer of both lows; and low is at most everybody's
  // watermark, ours included.
  const bool own_lane = (watermark & (step() - 1)) == lane_ && (low & (step() - 1)) == lane_;
  if (!own_lane || serial_less(site_watermarks_[self_], low) ||
      serial_less(serial_max(low_, low) + window_span(), watermark)) {
    reason = GG_DROP_BAD_WATERMARK;
    return FrameFate::kDropped;
  }
  site_watermarks_[site] = serial_max(site_watermarks_[site], watermark);
  uint32_t minimum = site_watermarks_[0];
  for (const uint32_t w : site_watermarks_)
    if (serial_less(w, minimum)) minimum = w;
  update_low(serial_max(minimum, low), now);
  return FrameFate::kKept;
}

/// All local sources are in: one pass in rank order into the first one's buffer (rule 2).
void GroupLane::complete_partial(Slot& s, Nanoseconds now) {
  const uint32_t pos = position(s.index);
  uint32_t n = 0;
  Payload sum;
  for (uint32_t member = 0; member < members_; ++member) {
    Payload& payload = contribution(pos, member);
    if ((member_state(pos, member) & kContributed) == 0) continue;
    operands_[n++] = payload.data;
    if (n == 1) {
      sum = payload;
      payload = {};
    }
  }
  // A group of one site divides an average in this pass; with more sites the last sum does.
  const uint32_t divisor = sites_ == 1 && s.call.op == GG_AVERAGE ? config_.size : 1;
  if (s.call.length > 0 && (n > 1 || divisor > 1))
    reduce::sum(s.call.dtype, sum.data, operands_.data(), n, s.call.length, divisor);
  for (uint32_t member = 0; member < members_; ++member) release(contribution(pos, member));
  environment_.counters->chunks_summed.add();
  environment_.counters->bytes_summed.add(uint64_t{n} * s.call.length);
  s.partial = sum;
  s.flags |= kPartialDone;

  // To every decider that has not passed the index, even if the result is known here (rule 7).
  for (uint32_t site = 0; site < sites_; ++site)
    if (site != self_ && decides(site, s.call, s.index)) queue_to_site(s, site, GG_PARTIAL);
  if (decides(self_, s.call, s.index) && (s.flags & kResultDone) == 0) {
    site_state(pos, self_) |= kHavePartial;
    ++s.partials;
    try_complete_result(s, now);
  }
  if (s.sinks == 0 && s.index == site_watermarks_[self_]) advance_watermark(now);
}

/// All partials are in: sum in site order. The own partial is retained for peers that crash, so the sum goes into a
/// remote one's buffer; with one partial there is nothing to sum.
void GroupLane::try_complete_result(Slot& s, Nanoseconds now) {
  if (s.partials != s.source_sites || (s.flags & kResultDone) != 0) return;
  const uint32_t pos = position(s.index);
  uint32_t n = 0;
  Payload* target = nullptr;
  for (uint32_t site = 0; site < sites_; ++site) {
    if ((site_state(pos, site) & kHavePartial) == 0) continue;
    Payload& payload = site == self_ ? s.partial : site_partial(pos, site);
    operands_[n++] = payload.data;
    if (site != self_ && target == nullptr) target = &payload;
  }
  if (target == nullptr) {
    s.result = s.partial;
    s.flags |= kResultIsPartial;
  } else {
    const uint32_t divisor = s.call.op == GG_AVERAGE ? config_.size : 1;
    if (s.call.length > 0 && n > 1)
      reduce::sum(s.call.dtype, target->data, operands_.data(), n, s.call.length, divisor);
    s.result = *target;
    *target = {};
    for (uint32_t site = 0; site < sites_; ++site) release(site_partial(pos, site));
  }
  result_known(s, now);
}

void GroupLane::result_known(Slot& s, Nanoseconds now) {
  s.flags |= kResultDone;
  environment_.counters->results_completed.add();
  if (sharded(s.call) && root_site(s.index) == self_)
    for (uint32_t site = 0; site < sites_; ++site)
      if (site != self_ && site_has_sink(site, s.call)) queue_to_site(s, site, GG_RESULT);
  for (uint32_t member = 0; member < members_; ++member) queue_result(s, member);
  if (s.sinks == 0 && s.index == site_watermarks_[self_]) advance_watermark(now);
}

bool GroupLane::sharded(const CallParameters& call) const {
  return sites_ >= 3 && call.kind == GG_ALL_REDUCE &&
         uint64_t{call.elements} * gg_dtype_bytes(call.dtype) > config_.exchange_limit_bytes;
}

uint32_t GroupLane::root_site(uint32_t index) const {
  uint32_t ticket = sequence(index) % total_weight_;
  uint32_t site = 0;
  while (ticket >= config_.sites[site].weight) ticket -= config_.sites[site++].weight;
  return site;
}

bool GroupLane::decides(uint32_t site, const CallParameters& call, uint32_t index) const {
  return sharded(call) ? root_site(index) == site : site_has_sink(site, call);
}

bool GroupLane::site_has_sink(uint32_t site, const CallParameters& call) const {
  return (call.kind != GG_REDUCE_SCATTER && call.kind != GG_REDUCE) || site_position_of_rank_[call.root] == site;
}

bool GroupLane::site_has_source(uint32_t site, const CallParameters& call) const {
  return (call.kind != GG_ALL_GATHER && call.kind != GG_BROADCAST) || site_position_of_rank_[call.root] == site;
}

/// A rank of the site that made this call: every local rank agreed before the site spoke.
uint16_t GroupLane::rank_of_site(uint32_t site, const CallParameters& call) const {
  if (call.root < config_.size && site_position_of_rank_[call.root] == site) return call.root;
  for (uint16_t rank = 0; rank < config_.size; ++rank)
    if (site_position_of_rank_[rank] == site) return rank;
  return 0;
}

void GroupLane::queue_result(Slot& s, uint32_t member) {
  uint8_t& state = member_state(position(s.index), member);
  if ((s.flags & kResultDone) == 0 || (state & kReady) == 0 || (state & (kQueued | kDelivered)) != 0) return;
  state |= kQueued;
  push(member_flow(member), {s.index, 1, GG_RESULT});
}

void GroupLane::queue_to_site(Slot& s, uint32_t site, uint8_t type) {
  uint8_t& state = site_state(position(s.index), site);
  if ((state & (kSiteQueued | kSiteDelivered)) != 0 || serial_less(s.index, site_watermarks_[site])) return;
  state |= kSiteQueued;
  push(site_flow(site), {s.index, 1, type});
}

bool GroupLane::passed(const Slot& s) const {
  return s.sinks > 0 ? s.delivered == s.sinks : (s.flags & kPartialDone) != 0;
}

void GroupLane::advance_watermark(Nanoseconds now) {
  uint32_t& watermark = site_watermarks_[self_];
  const uint32_t end = low_ + window_span();
  while (watermark != end) {
    const Slot& s = slot(watermark);
    if (!live(s, watermark) || !passed(s)) break;
    watermark += step();
  }
  uint32_t minimum = watermark;
  for (const uint32_t w : site_watermarks_)
    if (serial_less(w, minimum)) minimum = w;
  update_low(minimum, now);
  announce_progress(now);
}

void GroupLane::update_low(uint32_t candidate, Nanoseconds now) {
  if (!serial_less(low_, candidate)) return;
  while (low_ != candidate) {
    Slot& s = slot(low_);
    if (live(s, low_)) release_slot(s);
    low_ += step();
  }
  for (uint32_t& w : site_watermarks_) w = serial_max(w, low_);
  published_low_.set(low_);
  announce_progress(now);
}

void GroupLane::release_slot(Slot& s) {
  const uint32_t pos = position(s.index);
  for (uint32_t member = 0; member < members_; ++member) {
    release(contribution(pos, member));
    member_state(pos, member) = 0;
  }
  for (uint32_t site = 0; site < sites_; ++site) {
    release(site_partial(pos, site));
    site_state(pos, site) = 0;
  }
  if ((s.flags & kResultIsPartial) == 0) release(s.result);
  release(s.partial);
  s = Slot{};
  published_used_.set(--used_);
}

}  // namespace gradgate::core
