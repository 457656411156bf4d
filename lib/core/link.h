// SPDX-License-Identifier: Apache-2.0
// The reliable packet flow between two adjacent nodes on one lane (DESIGN section 6): QUIC's loss recovery
// (RFC 9002) over frames that are looked up again when they are lost.
#pragma once

#include <cstdint>
#include <vector>

#include "core/counters.h"
#include "core/flow.h"
#include "core/io.h"
#include "core/rate.h"
#include "core/receive_window.h"
#include "core/timer_wheel.h"
#include "core/types.h"

namespace gradgate::core {

struct LinkConfig {
  uint32_t neighbour = kNoNeighbour;
  uint8_t lane = 0;
  uint32_t remote_link = 0;          ///< the receiver's link id
  uint32_t link_label = 0;           ///< label of packets that belong to no group: the receiver's site, context 0
  bool trailer_crc = false;          ///< packets that we send end in a CRC32C
  uint32_t max_packet_bytes = 1472;  ///< link header to trailer
  uint32_t chunk_bytes = 1024;       ///< largest payload of a frame; an ACK leaves room for it
  uint32_t max_in_flight = 256;      ///< packets; a power of two
  Nanoseconds initial_rtt_ns = kMillisecond;
  Nanoseconds min_pto_ns = 2 * kMillisecond;  ///< below it a busy machine looks like a loss
  bool peer = false;                          ///< counts as WAN traffic
};

class Link {
 public:
  /// Acknowledge at the latest after this many packets (DESIGN section 6).
  static constexpr uint32_t kAckEvery = 16;
  static constexpr Nanoseconds kMaxAckDelay = kMillisecond;
  static constexpr Nanoseconds kMaxPto = kSecond;
  static constexpr uint32_t kInitialReordering = 3;  // RFC 9002 section 6.1.1
  static constexpr uint32_t kMaxReordering = 1024;
  static constexpr uint32_t kFramesPerPacket = 4;

  explicit Link(const LinkConfig& config);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Before first use, by the lane that owns it. `budget` may be nullptr: not paced.
  void attach(TimerWheel& wheel, LaneCounters& counters, Output& output, PeerBudget* budget, Link** active_list,
              Nanoseconds now);
  /// Takes the link off the lane's lists and forgets every flow.
  void detach();

  // ---- sending
  /// The flow has something to send.
  void activate(Flow& flow);
  /// Asks for a packet that elicits an ACK, to show that we live.
  void ping();
  /// Forgets everything about a flow: its group ends, or the flow moves to another link.
  void forget(Flow& flow);
  /// Sends what the rate, the window and the output allow, at most `budget_packets`. Returns false if the output had
  /// no room.
  bool service(Nanoseconds now, uint32_t budget_packets);
  /// An acknowledgement is due now: at the end of a burst those go out that no data carried.
  bool ack_due(Nanoseconds now) const { return ack_deadline_ <= now; }
  /// Whether service() can make progress now.
  bool can_send(Nanoseconds now) const;
  bool has_data() const { return flows_head_ != nullptr || ping_pending_; }
  /// Something could go out at once: more than the turn allowed, or the output had no room.
  bool wants_turn(Nanoseconds now) const { return ack_due(now) || (has_data() && can_send(now)); }
  /// Puts the link into its lane's list of those that want to send.
  void list();

  // ---- receiving
  /// Rebuilds the number of an arrival and tells whether it is new.
  bool is_new(uint32_t low_number, uint64_t& number) const;
  /// Every frame of the packet was kept or is known to be past.
  void accept(uint64_t number, bool ack_eliciting, bool ce, Nanoseconds now);
  /// An ACK frame. False: acknowledges what was never sent, or is malformed.
  bool on_ack(const gg_frame& frame, const uint8_t* payload, Nanoseconds now);
  void heard(Nanoseconds now) { last_heard_.set(now); }

  Nanoseconds last_heard() const { return last_heard_.get(); }
  Nanoseconds smoothed_rtt() const { return published_rtt_.get(); }
  /// Packets that wait for an acknowledgement; control reads it at any time.
  uint32_t in_flight() const { return static_cast<uint32_t>(published_in_flight_.get()); }
  const LinkConfig& config() const { return config_; }

  Link* next_active = nullptr;  ///< in the lane's list of links with something to do
  bool in_active_list = false;

 private:
  struct SentFrame {
    Flow* flow = nullptr;
    FrameId id;
  };
  enum class SentState : uint8_t { kNone, kInFlight, kDone, kLost };
  struct SentPacket {
    Nanoseconds time = 0;
    uint32_t bytes = 0;
    SentState state = SentState::kNone;
    uint8_t frames = 0;
    SentFrame frame[kFramesPerPacket];
  };

  SentPacket& sent(uint64_t number) { return sent_[number & (sent_.size() - 1)]; }
  bool send_packet(Nanoseconds now);
  bool send_ack_only(Nanoseconds now);
  uint32_t put_ack(uint8_t* p, Nanoseconds now) const;
  void ack_sent();
  bool transmit(uint8_t* header, uint32_t header_bytes, const Payload* payload, uint32_t label, Nanoseconds now);
  void acknowledge(SentPacket& packet, Nanoseconds now);
  void declare_lost(SentPacket& packet);
  void detect_losses(Nanoseconds now);
  void on_timer(Nanoseconds now);
  void probe(Nanoseconds now);
  void sample_rtt(Nanoseconds rtt, Nanoseconds ack_delay);
  Nanoseconds pto() const;
  Nanoseconds loss_delay() const;
  void rearm(Nanoseconds now);
  void report(Nanoseconds now);
  uint64_t demand_bytes() const { return has_data() ? config_.max_packet_bytes : 0; }

  LinkConfig config_;
  TimerWheel* wheel_ = nullptr;
  LaneCounters* counters_ = nullptr;
  Output* output_ = nullptr;
  PeerBudget* budget_ = nullptr;
  Link** active_list_ = nullptr;
  Timer timer_;

  // sending
  Flow* flows_head_ = nullptr;
  Flow* flows_tail_ = nullptr;
  std::vector<SentPacket> sent_;
  uint64_t next_number_ = 1;
  uint64_t oldest_ = 1;           ///< numbers below it are forgotten
  uint64_t first_in_flight_ = 1;  ///< no number below it is in flight
  uint64_t largest_acked_ = 0;
  uint32_t in_flight_ = 0;
  uint32_t reordering_ = kInitialReordering;
  uint32_t pto_count_ = 0;
  uint32_t probes_ = 0;  ///< packets that may go out beyond the window
  bool ping_pending_ = false;
  Nanoseconds last_eliciting_sent_ = 0;
  Nanoseconds loss_time_ = kNever;
  Nanoseconds next_send_ = 0;  ///< pacing
  Nanoseconds srtt_ = 0, rttvar_ = 0, latest_rtt_ = 0, min_rtt_ = 0;
  Nanoseconds next_report_ = 0;
  LaneReport report_;

  // receiving
  ReceiveWindow window_;
  uint32_t unacked_ = 0;  ///< ack-eliciting packets received since the last ACK went out
  uint32_t ce_count_ = 0;
  Nanoseconds ack_deadline_ = kNever;
  Nanoseconds largest_time_ = 0;
  Counter last_heard_;
  Counter published_rtt_;
  Counter published_in_flight_;
};

}  // namespace gradgate::core
