// SPDX-License-Identifier: Apache-2.0
#include "core/rate.h"

namespace gradgate::core {

PeerBudget::PeerBudget(CongestionController& controller, uint8_t lanes, Nanoseconds interval_ns)
    : controller_(controller), lanes_(lanes), interval_ns_(interval_ns) {
  for (uint8_t lane = 0; lane < lanes_; ++lane)
    mailboxes_[lane].grant.store(controller_.rate_bits_per_second() / lanes_, std::memory_order_relaxed);
}

void PeerBudget::report(uint8_t lane, const LaneReport& report) {
  Mailbox& mailbox = mailboxes_[lane];
  mailbox.delivered_bytes.add(report.delivered_bytes);
  mailbox.lost_bytes.add(report.lost_bytes);
  mailbox.ce_packets.add(report.ce_packets);
  if (report.rtt_ns != 0) mailbox.rtt_ns.set(report.rtt_ns);
  mailbox.demand_bytes.set(report.demand_bytes);
}

void PeerBudget::run(Nanoseconds now) {
  if (now < next_run_) return;
  next_run_ = now + interval_ns_;
  unsigned demanding = 0;
  for (uint8_t lane = 0; lane < lanes_; ++lane) {
    const Mailbox& mailbox = mailboxes_[lane];
    Seen& seen = seen_[lane];
    LaneReport fresh;
    fresh.delivered_bytes = mailbox.delivered_bytes.get() - seen.delivered_bytes;
    fresh.lost_bytes = mailbox.lost_bytes.get() - seen.lost_bytes;
    fresh.ce_packets = mailbox.ce_packets.get() - seen.ce_packets;
    fresh.rtt_ns = mailbox.rtt_ns.get();
    fresh.demand_bytes = mailbox.demand_bytes.get();
    seen = {seen.delivered_bytes + fresh.delivered_bytes, seen.lost_bytes + fresh.lost_bytes,
            seen.ce_packets + fresh.ce_packets};
    demanding += fresh.demand_bytes != 0;
    controller_.on_report(fresh, now);
  }
  busy_ = demanding != 0;
  // A lane without demand keeps 1/(4 lanes) of the rate, so that its first packets need not wait for the next run;
  // the demanding ones share all of it.
  const uint64_t rate = controller_.rate_bits_per_second();
  for (uint8_t lane = 0; lane < lanes_; ++lane) {
    const bool demands = mailboxes_[lane].demand_bytes.get() != 0;
    uint64_t grant = rate / lanes_;
    if (demanding != 0) grant = demands ? rate / demanding : rate / lanes_ / 4;
    mailboxes_[lane].grant.store(grant, std::memory_order_relaxed);
  }
}

}  // namespace gradgate::core
