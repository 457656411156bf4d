// SPDX-License-Identifier: Apache-2.0
// What a group has to say to one neighbour on one lane: the queue between a group's slots and a link.
#pragma once

#include <cstdint>
#include <vector>

#include "core/io.h"
#include "core/types.h"
#include "wire/gg_wire.h"

namespace gradgate::core {

class Link;
struct Flow;

/// Names a frame without holding it: what is sent again is looked up anew (DESIGN section 6).
struct FrameId {
  uint32_t index = 0;
  uint16_t count = 0;  ///< READY: indices of the lane up to `index`; else 1
  uint8_t type = 0;    ///< enum gg_frame_type
};

/// A group's lane: builds the frames that its flows announce and hears what became of them.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  /// Fills `frame` (and `payload`, if it has one). May change id.count and id.index. False: no longer needed, or the
  /// slot has moved on.
  virtual bool build(Flow& flow, FrameId& id, gg_frame& frame, const Payload*& payload) = 0;
  virtual void delivered(Flow& flow, const FrameId& id, Nanoseconds now) = 0;
  virtual void lost(Flow& flow, const FrameId& id) = 0;
};

/// Frames waiting for one neighbour. Chunk frames stand in a ring, control frames (one of a type) in a bit set.
struct Flow {
  FrameSource* source = nullptr;
  Link* link = nullptr;
  uint32_t label = 0;            ///< the receiver's label of the group
  uint16_t position = 0;         ///< the owner's number of this flow
  uint16_t pending_control = 0;  ///< bit = frame type
  Flow* next = nullptr;          ///< in the link's list of flows with something to send
  bool listed = false;

  std::vector<FrameId> ring;  ///< capacity fixed when the group forms; a power of two
  uint32_t head = 0, tail = 0;

  void reserve(uint32_t capacity) { ring.resize(capacity); }
  bool has_chunks() const { return head != tail; }
  bool empty() const { return head == tail && pending_control == 0; }
  uint32_t queued() const { return tail - head; }
  void push(const FrameId& id) { ring[tail++ & (ring.size() - 1)] = id; }
  FrameId& front() { return ring[head & (ring.size() - 1)]; }
  void pop() { ++head; }
  void clear_chunks() { head = tail = 0; }
  /// If the ring is full, drops the frames that `needed(id)` denies: only stale ones can have filled it.
  template <class Needed>
  void make_room(Needed needed) {
    if (queued() < ring.size()) return;
    const uint32_t end = tail;
    tail = head;
    for (uint32_t i = head; i != end; ++i)
      if (const FrameId id = ring[i & (ring.size() - 1)]; needed(id)) push(id);
  }
};

}  // namespace gradgate::core
