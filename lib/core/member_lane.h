// SPDX-License-Identifier: Apache-2.0
// One lane of a worker's group membership.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/chunking.h"
#include "core/flow.h"
#include "core/link.h"
#include "core/member.h"

namespace gradgate::core {

class MemberLane final : public FrameSource {
 public:
  MemberLane(Member& member, uint8_t lane, Nanoseconds now);

  void submit(Operation& operation, const Chunking& chunking);
  /// Copies chunks into the retained ring and queues them, as far as credit goes.
  void issue();
  bool receive(const Arrival& arrival, Nanoseconds now);
  /// A new link to the gateway; everything from low on is queued again.
  void restart(Nanoseconds now);
  /// Forgets every call: the group has failed.
  void abandon();

  Link& link() { return *link_; }
  const Link& link() const { return *link_; }
  uint32_t low() const { return low_; }
  bool drained() const { return segments_.empty() && low_ == next_; }

  bool build(Flow& flow, FrameId& id, gg_frame& frame, const Payload*& payload) override;
  void delivered(Flow& flow, const FrameId& id, Nanoseconds now) override;
  void lost(Flow& flow, const FrameId& id) override;

 private:
  struct Segment {
    Operation* operation;
    Chunking chunking;
    Chunking::Share share;
    uint64_t issued = 0;
  };
  struct Slot {
    uint32_t index = 0;
    bool used = false;
    bool source = false;
    bool expects_result = false;
    bool delivered = false;          ///< CONTRIBUTION or READY acknowledged in this epoch
    Operation* operation = nullptr;  ///< until the result is in
    uint64_t output_offset = 0;
    CallParameters call;
    Payload retained;  ///< private copy of the contribution (rule 7)
  };

  uint32_t step() const { return member_.config_.lanes; }
  Slot& slot(uint32_t index) { return slots_[index / step() & (slots_.size() - 1)]; }
  bool live(const Slot& s, uint32_t index) const { return s.used && s.index == index && !serial_less(index, low_); }
  bool receive_frame(const gg_frame& frame, uint8_t* payload, Nanoseconds now);
  bool on_result(const gg_frame& frame, const uint8_t* payload);
  bool on_low(const gg_frame& frame);
  void queue(const Slot& s);
  bool drop(gg_drop reason);
  bool drop_frame(gg_drop reason);

  Member& member_;
  const uint8_t lane_;
  std::unique_ptr<Link> link_;
  Flow flow_;
  std::deque<Segment> segments_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> memory_;  ///< window x chunk
  uint32_t low_;
  uint32_t next_;  ///< index of the next chunk to be issued
};

}  // namespace gradgate::core
