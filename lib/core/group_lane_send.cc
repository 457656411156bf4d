// SPDX-License-Identifier: Apache-2.0
// Frames out: what a link asks of a group's lane when it sends, and what it tells about what it sent.
#include "core/group_lane.h"

namespace gradgate::core {

bool GroupLane::build(Flow& flow, FrameId& id, gg_frame& frame, const Payload*& payload) {
  frame.type = id.type;
  frame.source = config_.sites[self_].site;
  if (id.type == GG_WATERMARK) {
    const bool to_member = flow.position < members_;
    frame.index = to_member ? low_ : site_watermarks_[self_];
    frame.call = low_;
    return true;
  }
  if (id.type == GG_ERROR) {
    payload = &error_payload_;
    return true;
  }
  if (id.type == GG_READY) id.index = site_watermarks_[self_];
  if (id.type != GG_READY && !needed(flow, id)) return false;
  const Slot& s = slot(id.index);
  if (!live(s, id.index)) return false;
  frame.kind = s.call.kind;
  frame.dtype = s.call.dtype;
  frame.index = s.index;
  frame.call = s.call.call;
  frame.elements = s.call.elements;
  frame.root = s.call.root;
  frame.op = s.call.op;
  frame.count = id.count;
  if (id.type == GG_READY) return true;
  frame.count = id.type == GG_PARTIAL ? s.sources : config_.size;
  payload = id.type == GG_PARTIAL ? &s.partial : &s.result;
  return true;
}

bool GroupLane::needed(const Flow& flow, const FrameId& id) {
  const Slot& s = slot(id.index);
  if (!live(s, id.index)) return false;
  const uint32_t pos = position(id.index);
  if (flow.position < members_) return (member_state(pos, flow.position) & kDelivered) == 0;
  const uint32_t site = flow.position - members_;
  return (site_state(pos, site) & kSiteDelivered) == 0 && !serial_less(id.index, site_watermarks_[site]);
}

void GroupLane::delivered(Flow& flow, const FrameId& id, Nanoseconds now) {
  if (id.type != GG_RESULT && id.type != GG_PARTIAL) return;
  Slot& s = slot(id.index);
  if (!live(s, id.index)) return;
  const uint32_t pos = position(id.index);
  if (flow.position >= members_) {
    site_state(pos, flow.position - members_) |= kSiteDelivered;
    return;
  }
  uint8_t& state = member_state(pos, flow.position);
  if ((state & kDelivered) != 0) return;
  state |= kDelivered;
  ++s.delivered;
  if (s.index == site_watermarks_[self_]) advance_watermark(now);
}

void GroupLane::lost(Flow& flow, const FrameId& id) {
  switch (id.type) {
    case GG_WATERMARK:  // the current value goes out, not the lost one (rule 5)
    case GG_ERROR:
      queue_control(flow, id.type);
      return;
    case GG_READY:  // repeated anyway for as long as the call waits
      return;
    default:
      if (needed(flow, id)) push(flow, id);
  }
}

}  // namespace gradgate::core
