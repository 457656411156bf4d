// SPDX-License-Identifier: Apache-2.0
// The slots of one group on one lane of a gateway: DESIGN section 5.
#pragma once

#include <cstdint>
#include <vector>

#include "core/call.h"
#include "core/counters.h"
#include "core/event.h"
#include "core/flow.h"
#include "core/group.h"
#include "core/io.h"
#include "core/link.h"
#include "core/snapshot.h"
#include "core/timer_wheel.h"

namespace gradgate::core {

/// What became of a frame.
enum class FrameFate : uint8_t { kKept, kDuplicate, kPast, kDropped };

class GroupLane final : public FrameSource {
 public:
  /// How often an index that waits is looked at, and its call announced to the peers.
  static constexpr Nanoseconds kLook = 250 * kMillisecond;
  /// Watermarks go out at the latest after this, or when an eighth of the window has passed.
  static constexpr Nanoseconds kFlush = kMillisecond;

  GroupLane(const GroupConfig& config, uint8_t lane, uint16_t site, uint32_t low);
  GroupLane(const GroupLane&) = delete;
  GroupLane& operator=(const GroupLane&) = delete;

  struct Environment {
    BufferPool* pool;
    EventSink* events;
    TimerWheel* wheel;
    LaneCounters* counters;
  };
  void attach(const Environment& environment, Nanoseconds now);
  /// Gives every buffer back and leaves every link.
  void detach();
  bool attached() const { return environment_.pool != nullptr; }

  /// Labels and the error of the group's entry; links of its neighbours. A link that changed is a new epoch: what
  /// the neighbour may have lost is queued again (rule 7).
  void update(const GroupEntry& entry, const Snapshot& snapshot);

  FrameFate receive_from_member(uint32_t neighbour, const gg_frame& frame, uint8_t* payload, Buffer buffer,
                                Nanoseconds now, gg_drop& reason);
  FrameFate receive_from_peer(uint32_t neighbour, const gg_frame& frame, uint8_t* payload, Buffer buffer,
                              Nanoseconds now, gg_drop& reason);

  bool build(Flow& flow, FrameId& id, gg_frame& frame, const Payload*& payload) override;
  void delivered(Flow& flow, const FrameId& id, Nanoseconds now) override;
  void lost(Flow& flow, const FrameId& id) override;

  /// First index not complete everywhere; control reads it at any time.
  uint32_t low() const { return static_cast<uint32_t>(published_low_.get()); }
  uint32_t slots_in_use() const { return static_cast<uint32_t>(published_used_.get()); }
  const GroupConfig& config() const { return config_; }

 private:
  enum : uint8_t { kUsed = 1, kPartialDone = 2, kResultDone = 4, kResultIsPartial = 8, kLengthKnown = 16 };
  enum : uint8_t { kContributed = 1, kReady = 2, kQueued = 4, kDelivered = 8 };  // of a member in a slot
  enum : uint8_t { kHavePartial = 1, kSiteQueued = 4, kSiteDelivered = 8 };      // of a site in a slot

  struct Slot {
    uint32_t index = 0;
    uint8_t flags = 0;
    uint16_t first_rank = 0;  ///< who named the call first
    uint16_t sources = 0, contributed = 0;
    uint16_t sinks = 0, delivered = 0;
    uint16_t source_sites = 0, partials = 0;
    CallParameters call;
    Nanoseconds since = 0;
    Payload partial;  ///< own site's sum, retained until low passes
    Payload result;
  };

  uint32_t sequence(uint32_t index) const { return index >> lane_shift_; }
  uint32_t position(uint32_t index) const { return sequence(index) & (config_.window - 1); }
  Slot& slot(uint32_t index) { return slots_[position(index)]; }
  uint8_t& member_state(uint32_t pos, uint32_t member) { return member_states_[pos * members_ + member]; }
  uint8_t& site_state(uint32_t pos, uint32_t site) { return site_states_[pos * sites_ + site]; }
  Payload& contribution(uint32_t pos, uint32_t member) { return contributions_[pos * members_ + member]; }
  Payload& site_partial(uint32_t pos, uint32_t site) { return site_partials_[pos * sites_ + site]; }
  uint32_t window_span() const { return config_.window << lane_shift_; }
  uint32_t step() const { return 1u << lane_shift_; }
  bool live(const Slot& s, uint32_t index) const { return (s.flags & kUsed) != 0 && s.index == index; }

  static CallParameters call_of(const gg_frame& frame);
  bool refuses(const gg_frame& frame, gg_drop& reason) const;
  FrameFate admit(const gg_frame& frame, uint16_t rank, Nanoseconds now, gg_drop& reason, Slot*& out);
  FrameFate mismatch(const Slot& s, const gg_frame& frame, uint16_t rank, gg_drop& reason);
  FrameFate on_contribution(uint32_t member, const gg_frame& frame, uint8_t* payload, Buffer buffer, Nanoseconds now,
                            gg_drop& reason);
  FrameFate on_ready(uint32_t member, const gg_frame& frame, Nanoseconds now, gg_drop& reason);
  FrameFate on_partial(uint32_t site, const gg_frame& frame, uint8_t* payload, Buffer buffer, Nanoseconds now,
                       gg_drop& reason);
  FrameFate on_result(uint32_t site, const gg_frame& frame, uint8_t* payload, Buffer buffer, Nanoseconds now,
                      gg_drop& reason);
  FrameFate on_announcement(uint32_t site, const gg_frame& frame, Nanoseconds now, gg_drop& reason);
  FrameFate on_watermark(uint32_t site, const gg_frame& frame, gg_drop& reason, Nanoseconds now);

  Payload keep(uint8_t* payload, uint32_t length, Buffer buffer);
  void release(Payload& payload);
  void complete_partial(Slot& s, Nanoseconds now);
  void try_complete_result(Slot& s, Nanoseconds now);
  void result_known(Slot& s, Nanoseconds now);
  bool sharded(const CallParameters& call) const;
  uint32_t root_site(uint32_t index) const;
  bool decides(uint32_t site, const CallParameters& call, uint32_t index) const;
  bool site_has_sink(uint32_t site, const CallParameters& call) const;
  bool site_has_source(uint32_t site, const CallParameters& call) const;
  uint16_t rank_of_site(uint32_t site, const CallParameters& call) const;
  void queue_result(Slot& s, uint32_t member);
  void queue_to_site(Slot& s, uint32_t site, uint8_t type);
  void requeue_member(uint32_t member);
  void requeue_site(uint32_t site);
  void push(Flow& flow, const FrameId& id);
  bool needed(const Flow& flow, const FrameId& id);
  bool passed(const Slot& s) const;
  void advance_watermark(Nanoseconds now);
  void update_low(uint32_t candidate, Nanoseconds now);
  void release_slot(Slot& s);
  void announce_progress(Nanoseconds now);
  void flush_watermarks();
  void queue_control(Flow& flow, uint8_t type);
  void look(Nanoseconds now);
  bool report_wait(const Slot& s, Event::Type type, Nanoseconds now);
  bool emit(const Event& event);
  void fail();
  Flow& member_flow(uint32_t member) { return flows_[member]; }
  Flow& site_flow(uint32_t site) { return flows_[members_ + site]; }

  const GroupConfig& config_;
  const uint8_t lane_;
  const uint8_t lane_shift_;
  const uint32_t members_;
  const uint32_t sites_;
  uint32_t self_ = 0;  ///< position of this site in config.sites
  uint32_t total_weight_ = 0;

  Environment environment_{};
  Timer look_timer_;
  Timer flush_timer_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> member_states_, site_states_;
  std::vector<Payload> contributions_, site_partials_;
  std::vector<const uint8_t*> operands_;   ///< scratch of one sum
  std::vector<Flow> flows_;                ///< members, then sites
  std::vector<uint16_t> member_of_rank_;   ///< position in config.members, or kNoMember
  std::vector<uint32_t> site_watermarks_;  ///< by position in config.sites
  std::vector<const Link*> site_links_;    ///< whose watermark that is: a new link is a new epoch
  std::vector<uint16_t> site_position_of_rank_;
  uint32_t low_ = 0;
  uint32_t announced_low_ = 0, announced_watermark_ = 0;
  uint32_t used_ = 0;
  bool failed_ = false;  ///< frames are dropped: a mismatch was seen, or control says so
  bool timed_out_ = false;
  Nanoseconds last_stall_report_ = 0;
  std::string error_;
  Payload error_payload_;
  Counter published_low_, published_used_;

  static constexpr uint16_t kNoMember = 0xFFFF;
};

}  // namespace gradgate::core
