// SPDX-License-Identifier: Apache-2.0
// Congestion control and pacing budget, one per peer across its lanes (DESIGN section 6).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"
#include "wire/gg_wire.h"

namespace gradgate::core {

/// What a lane has seen of its peer since the last report.
struct LaneReport {
  uint64_t delivered_bytes = 0;
  uint64_t lost_bytes = 0;
  uint64_t ce_packets = 0;
  Nanoseconds rtt_ns = 0;     ///< latest sample, 0 = none
  uint64_t demand_bytes = 0;  ///< queued and not sent
};

/// Decides how fast all lanes together may send to one peer.
class CongestionController {
 public:
  virtual ~CongestionController() = default;
  virtual void on_report(const LaneReport& report, Nanoseconds now) = 0;
  virtual uint64_t rate_bits_per_second() const = 0;
};

/// The configured rate, whatever happens.
class FixedRate final : public CongestionController {
 public:
  explicit FixedRate(uint64_t bits_per_second) : bits_per_second_(bits_per_second) {}
  void on_report(const LaneReport&, Nanoseconds) override {}
  uint64_t rate_bits_per_second() const override { return bits_per_second_; }

 private:
  uint64_t bits_per_second_;
};

/// One peer's budget. Lanes on other cores leave their latest report in a mailbox of their own and read their grant;
/// the core that owns lane 0 runs the controller. Each mailbox has one writer.
class PeerBudget {
 public:
  PeerBudget(CongestionController& controller, uint8_t lanes, Nanoseconds interval_ns);

  /// By the lane's core: adds to what lane 0 has not read yet.
  void report(uint8_t lane, const LaneReport& report);
  /// By the lane's core: whether packets wait for the rate. A lane that has nothing to send leaves its share to others.
  void set_demand(uint8_t lane, uint64_t bytes) { mailboxes_[lane].demand_bytes.set(bytes); }
  /// By the lane's core: bits per second that the lane may send now.
  uint64_t granted(uint8_t lane) const { return mailboxes_[lane].grant.load(std::memory_order_relaxed); }
  /// By lane 0's core, at every poll; acts once an interval.
  void run(Nanoseconds now);
  /// When run() wants to be called again: kNever while no lane had anything to send.
  Nanoseconds next_run() const { return busy_ ? next_run_ : kNever; }

  Nanoseconds interval_ns() const { return interval_ns_; }

 private:
  /// Running totals, so that a reader that comes late misses nothing.
  struct alignas(64) Mailbox {
    Counter delivered_bytes, lost_bytes, ce_packets, rtt_ns, demand_bytes;
    std::atomic<uint64_t> grant{0};
  };
  struct Seen {
    uint64_t delivered_bytes = 0, lost_bytes = 0, ce_packets = 0;
  };

  CongestionController& controller_;
  const uint8_t lanes_;
  const Nanoseconds interval_ns_;
  Nanoseconds next_run_ = 0;
  bool busy_ = false;
  std::array<Mailbox, GG_MAX_LANES> mailboxes_;
  std::array<Seen, GG_MAX_LANES> seen_;
};

}  // namespace gradgate::core
