// SPDX-License-Identifier: Apache-2.0
// The worker's side of a group: turns calls into chunks, keeps what it sent until the group's low passes it, and puts
// results where they belong. Single-threaded: all methods from one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/call.h"
#include "core/counters.h"
#include "core/io.h"
#include "core/link.h"
#include "core/link_scheduler.h"

namespace gradgate::core {

struct MemberConfig {
  uint16_t rank = 0;
  uint16_t size = 1;
  uint32_t chunk_bytes = 1024;
  uint8_t lanes = 1;
  uint32_t window = 64;         ///< slots per lane
  std::vector<uint32_t> start;  ///< first index of each lane
  uint32_t group_label = 0;     ///< the gateway's label, put into packets to it
  uint32_t own_label = 0;       ///< the label that packets to us carry
  uint32_t local_link = 0;      ///< link id that packets to us carry
  bool trailer_crc_receive = false;
  LinkConfig link;  ///< to the gateway; lane is filled in
};

/// One collective. Owned by the caller, alive until `done`. Memory at `input` and `output` must stay valid until then;
/// they may be the same where the kind allows (all-reduce, broadcast, reduce).
struct Operation {
  uint8_t kind = GG_KIND_NONE;
  uint8_t dtype = GG_FLOAT32;
  uint16_t op = GG_OP_NONE;
  uint16_t root = 0;
  /// Of the whole call: all-reduce, broadcast, reduce: elements of the buffer. Reduce-scatter: of the input;
  /// all-gather: of the output; both a multiple of the group's size. Barrier: 0.
  uint32_t elements = 0;
  /// all-reduce, reduce, reduce-scatter: `elements`; all-gather: elements / size; broadcast: `elements`, at the root.
  const uint8_t* input = nullptr;
  /// all-reduce, broadcast, all-gather: `elements`; reduce: `elements`, at the root; reduce-scatter: elements / size.
  uint8_t* output = nullptr;
  void* user = nullptr;  ///< for the caller

  // Set by the core.
  uint32_t call = 0;
  bool done = false;
  uint64_t contributions = 0;  ///< chunks that still have to be copied out of `input`
  uint64_t results = 0;        ///< chunks still expected
};

class MemberLane;

class Member {
 public:
  /// Called when an operation is done (all results are in `output`, `input` may be written again).
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void operation_done(Operation& operation) = 0;
    /// The group has failed; `text` says why. No operation will be done any more.
    virtual void group_failed(const std::string& text) = 0;
  };

  Member(const MemberConfig& config, Output& output, Observer& observer, Nanoseconds now);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Starts a collective; they take effect in the order of submission.
  void submit(Operation& operation, Nanoseconds now);
  /// Takes one packet. False: dropped and counted.
  bool receive(const Arrival& arrival, Nanoseconds now);
  /// Timers and sending; as GatewayLane::poll.
  void poll(Nanoseconds now, uint32_t budget_packets = 64);
  Nanoseconds next_deadline() const;
  /// Elicits an ACK on every lane, as a sign of life.
  void ping();

  /// The gateway came back with a new epoch: new link ids and labels as in MemberConfig; everything from low on is
  /// sent again (DESIGN section 5, rule 7).
  void gateway_restarted(uint32_t remote_link, uint32_t local_link, uint32_t group_label, uint32_t own_label,
                         Nanoseconds now);

  /// First index of each lane that is not known to be complete everywhere.
  std::vector<uint32_t> low() const;
  /// Every index of every submitted call is complete everywhere.
  bool drained() const;
  bool failed() const { return failed_; }
  /// When a packet of the gateway last came in on any lane.
  Nanoseconds last_heard() const;
  const LaneCounters& counters() const { return counters_; }
  LaneCounters& counters() { return counters_; }
  const MemberConfig& config() const { return config_; }

 private:
  friend class MemberLane;
  void finish(Operation& operation);
  void fail(const std::string& text);

  MemberConfig config_;
  Output& output_;
  Observer& observer_;
  LaneCounters counters_;
  LinkScheduler links_;
  std::vector<std::unique_ptr<MemberLane>> lanes_;
  uint32_t next_call_ = 0;
  bool failed_ = false;
};

}  // namespace gradgate::core
