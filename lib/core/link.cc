// SPDX-License-Identifier: Apache-2.0
#include "core/link.h"

#include <algorithm>
#include <bit>

namespace gradgate::core {

namespace {

constexpr uint32_t kAckFixedBytes = GG_FRAME_BYTES + 4;
/// Link header, a full ACK, and the frame headers of one packet.
constexpr uint32_t kMaxHeaderBytes =
    GG_LINK_BYTES + kAckFixedBytes + 8 * (GG_MAX_ACK_RANGES - 1) + Link::kFramesPerPacket * GG_FRAME_BYTES;
/// Pacing lets a late sender catch up by this much, so that timer granularity does not cost rate.
constexpr Nanoseconds kPacingBurst = 250 * kMicrosecond;
constexpr uint32_t kPacingBurstPackets = 16;
/// In front of the link header, in the commonest modality: the rate is that of the wire.
constexpr uint32_t kWireOverheadBytes = 14 + 20 + 8;

}  // namespace

Link::Link(const LinkConfig& config) : config_(config) {
  // Four times the window: numbers of acknowledgements and of packets declared lost take places too.
  sent_.resize(std::bit_ceil(config_.max_in_flight) * 4);
  srtt_ = config_.initial_rtt_ns;
  rttvar_ = config_.initial_rtt_ns / 2;
  timer_.owner = this;
  timer_.fire = [](void* owner, Nanoseconds now) { static_cast<Link*>(owner)->on_timer(now); };
}

Link::~Link() = default;

void Link::attach(TimerWheel& wheel, LaneCounters& counters, Output& output, PeerBudget* budget, Link** active_list,
                  Nanoseconds now) {
  wheel_ = &wheel;
  counters_ = &counters;
  output_ = &output;
  budget_ = budget;
  active_list_ = active_list;
  next_send_ = now;
  if (last_heard_.get() == 0) last_heard_.set(now);
}

void Link::detach() {
  if (wheel_ == nullptr) return;
  wheel_->disarm(timer_);
  for (Link** l = active_list_; *l != nullptr; l = &(*l)->next_active) {
    if (*l != this) continue;
    *l = next_active;
    break;
  }
  in_active_list = false;
  for (Flow* f = flows_head_; f != nullptr;) {
    Flow* following = f->next;
    f->next = nullptr;
    f->listed = false;
    f = following;
  }
  flows_head_ = flows_tail_ = nullptr;
  wheel_ = nullptr;
}

void Link::list() {
  if (in_active_list) return;
  in_active_list = true;
  next_active = *active_list_;
  *active_list_ = this;
}

void Link::activate(Flow& flow) {
  if (!flow.listed) {
    flow.listed = true;
    flow.next = nullptr;
    (flows_tail_ == nullptr ? flows_head_ : flows_tail_->next) = &flow;
    flows_tail_ = &flow;
  }
  list();
}

void Link::ping() {
  ping_pending_ = true;
  list();
}

void Link::forget(Flow& flow) {
  Flow* previous = nullptr;
  for (Flow* f = flows_head_; f != nullptr; previous = f, f = f->next) {
    if (f != &flow) continue;
    (previous == nullptr ? flows_head_ : previous->next) = f->next;
    if (flows_tail_ == f) flows_tail_ = previous;
    break;
  }
  flow.listed = false;
  flow.next = nullptr;
  for (SentPacket& packet : sent_)
    for (SentFrame& frame : packet.frame)
      if (frame.flow == &flow) frame.flow = nullptr;
}

bool Link::can_send(Nanoseconds now) const {
  if (in_flight_ >= config_.max_in_flight && probes_ == 0) return false;
  return budget_ == nullptr || next_send_ <= now;
}

bool Link::service(Nanoseconds now, uint32_t budget_packets) {
  if (budget_ != nullptr) report(now);
  bool room = true;
  while (room && budget_packets-- > 0 && has_data() && can_send(now)) room = send_packet(now);
  if (room && ack_due(now)) room = send_ack_only(now);
  if (budget_ != nullptr) budget_->set_demand(config_.lane, demand_bytes());
  rearm(now);
  return room;
}

bool Link::send_packet(Nanoseconds now) {
  uint8_t header[kMaxHeaderBytes];
  uint32_t bytes = GG_LINK_BYTES;
  if (unacked_ > 0) bytes += put_ack(header + bytes, now);

  while (next_number_ - oldest_ >= sent_.size()) {
    declare_lost(sent(oldest_));
    ++oldest_;
  }
  SentPacket& packet = sent(next_number_);
  packet.frames = 0;
  const Payload* payload = nullptr;
  uint32_t label = config_.link_label;
  Flow* flow = flows_head_;
  uint32_t saved_head = 0;
  uint16_t saved_control = 0;
  if (flow != nullptr) {
    label = flow->label;
    saved_head = flow->head;
    saved_control = flow->pending_control;
    while (payload == nullptr && packet.frames < kFramesPerPacket && !flow->empty()) {
      FrameId id;
      if (flow->pending_control != 0) {
        id.type = static_cast<uint8_t>(std::countr_zero(flow->pending_control));
        id.count = 1;
        flow->pending_control = static_cast<uint16_t>(flow->pending_control & ~(1u << id.type));
      } else {
        id = flow->front();
        flow->pop();
      }
      gg_frame frame = {};
      const Payload* frame_payload = nullptr;
      if (!flow->source->build(*flow, id, frame, frame_payload)) continue;
      if (frame_payload != nullptr && frame_payload->length > 0) payload = frame_payload;
      frame.length = payload == nullptr ? uint16_t{0} : static_cast<uint16_t>(payload->length);
      gg_frame_put(header + bytes, &frame);
      bytes += GG_FRAME_BYTES;
      packet.frame[packet.frames++] = {flow, id};
    }
  }
  if (packet.frames == 0) {
    // What was queued is no longer needed.
    if (flow != nullptr) {
      flows_head_ = flow->next;
      if (flows_head_ == nullptr) flows_tail_ = nullptr;
      flow->next = nullptr;
      flow->listed = false;
      if (!flow->empty()) activate(*flow);
    }
    if (!ping_pending_) return true;
    gg_frame ping = {};
    ping.type = GG_PING;
    gg_frame_put(header + bytes, &ping);
    bytes += GG_FRAME_BYTES;
    label = config_.link_label;
  }

  if (!transmit(header, bytes, payload, label, now)) {
    if (packet.frames != 0) {
      flow->head = saved_head;
      flow->pending_control = saved_control;
    }
    packet.state = SentState::kNone;
    return false;
  }
  if (packet.frames != 0) {
    flows_head_ = flow->next;
    if (flows_head_ == nullptr) flows_tail_ = nullptr;
    flow->next = nullptr;
    flow->listed = false;
    if (!flow->empty()) activate(*flow);  // to the end: groups take turns
  }
  ping_pending_ = false;
  packet.time = now;
  packet.bytes = bytes + (payload == nullptr ? 0 : payload->length);
  packet.state = SentState::kInFlight;
  published_in_flight_.set(++in_flight_);
  if (probes_ > 0) --probes_;
  last_eliciting_sent_ = now;
  counters_->frames_sent.add(packet.frames);
  if (unacked_ > 0) ack_sent();
  return true;
}

bool Link::send_ack_only(Nanoseconds now) {
  uint8_t header[kMaxHeaderBytes];
  if (unacked_ == 0) {
    ack_deadline_ = kNever;
    return true;
  }
  while (next_number_ - oldest_ >= sent_.size()) {
    declare_lost(sent(oldest_));
    ++oldest_;
  }
  const uint32_t bytes = GG_LINK_BYTES + put_ack(header + GG_LINK_BYTES, now);
  SentPacket& packet = sent(next_number_);
  if (!transmit(header, bytes, nullptr, config_.link_label, now)) return false;
  packet.state = SentState::kDone;
  packet.frames = 0;
  ack_sent();
  return true;
}

void Link::ack_sent() {
  unacked_ = 0;
  ack_deadline_ = kNever;
}

uint32_t Link::put_ack(uint8_t* p, Nanoseconds now) const {
  // A chunk must still fit behind the ACK: the fewest ranges are one, the most what is left of the packet.
  ReceiveWindow::Range ranges[GG_MAX_ACK_RANGES];
  const uint32_t reserved = GG_LINK_BYTES + kAckFixedBytes + kFramesPerPacket * GG_FRAME_BYTES + config_.chunk_bytes +
                            (config_.trailer_crc ? GG_CRC_BYTES : 0);
  const uint32_t room = config_.max_packet_bytes > reserved ? (config_.max_packet_bytes - reserved) / 8 : 0;
  const uint32_t count = window_.ranges(ranges, std::min(GG_MAX_ACK_RANGES, 1 + room));
  gg_frame frame = {};
  frame.type = GG_ACK;
  frame.index = static_cast<uint32_t>(ranges[0].last);
  frame.call = static_cast<uint32_t>((now - largest_time_) / kMicrosecond);
  frame.elements = ce_count_;
  frame.count = static_cast<uint16_t>(count);
  frame.length = static_cast<uint16_t>(4 + 8 * (count - 1));
  gg_frame_put(p, &frame);
  uint8_t* q = p + GG_FRAME_BYTES;
  gg_put32(q, static_cast<uint32_t>(ranges[0].last - ranges[0].first));
  q += 4;
  for (uint32_t i = 1; i < count; ++i, q += 8) {
    // RFC 9000 section 19.3.1: one less than the unacknowledged packets between, one less than the length.
    gg_put32(q, static_cast<uint32_t>(ranges[i - 1].first - ranges[i].last - 2));
    gg_put32(q + 4, static_cast<uint32_t>(ranges[i].last - ranges[i].first));
  }
  return GG_FRAME_BYTES + frame.length;
}

bool Link::transmit(uint8_t* header, uint32_t header_bytes, const Payload* payload, uint32_t label, Nanoseconds now) {
  gg_link link = {};
  link.flags = static_cast<uint8_t>(GG_VERSION << 6 | GG_HOPS_MASK);
  link.lane = config_.lane;
  link.label = label;
  link.number = static_cast<uint32_t>(next_number_);
  link.link = config_.remote_link;
  gg_link_put(header, &link);
  Datagram datagram;
  datagram.neighbour = config_.neighbour;
  datagram.lane = config_.lane;
  datagram.trailer_crc = config_.trailer_crc;
  datagram.header = header;
  datagram.header_bytes = static_cast<uint16_t>(header_bytes);
  datagram.payload = payload;
  if (!output_->send(datagram)) {
    counters_->send_blocked.add();
    return false;
  }
  ++next_number_;
  const uint64_t bytes =
      header_bytes + (payload == nullptr ? 0 : payload->length) + (config_.trailer_crc ? GG_CRC_BYTES : 0);
  counters_->packets_sent.add();
  (config_.peer ? counters_->wan_bytes_sent : counters_->worker_bytes_sent).add(bytes);
  if (budget_ != nullptr) {
    const uint64_t rate = budget_->granted(config_.lane);
    if (rate == 0) {
      next_send_ = now + budget_->interval_ns();
    } else {
      const Nanoseconds each = (bytes + kWireOverheadBytes) * 8 * kSecond / rate;
      const Nanoseconds burst = std::max(kPacingBurst, kPacingBurstPackets * each);
      next_send_ = std::max(next_send_, now > burst ? now - burst : 0) + each;
    }
  }
  return true;
}

bool Link::is_new(uint32_t low_number, uint64_t& number) const {
  number = window_.expand(low_number);
  return !window_.seen(number);
}

void Link::accept(uint64_t number, bool ack_eliciting, bool ce, Nanoseconds now) {
  if (number > window_.largest()) largest_time_ = now;
  const bool gap = window_.record(number);
  ce_count_ += ce;
  if (!ack_eliciting) return;
  ++unacked_;
  const Nanoseconds delay = std::min(srtt_ / 8, kMaxAckDelay);
  ack_deadline_ = gap || unacked_ >= kAckEvery ? 0 : std::min(ack_deadline_, now + delay);
  if (ack_deadline_ <= now) {
    list();
  } else {
    rearm(now);
  }
}

bool Link::on_ack(const gg_frame& frame, const uint8_t* payload, Nanoseconds now) {
  if (frame.count == 0 || frame.count > GG_MAX_ACK_RANGES || frame.length != 4u + 8u * (frame.count - 1u)) return false;
  const uint64_t largest = ReceiveWindow::expand_number(next_number_, frame.index);
  if (largest == 0 || largest >= next_number_) return false;
  ReceiveWindow::Range ranges[GG_MAX_ACK_RANGES];
  uint64_t below = largest;
  uint64_t length = gg_get32(payload);
  for (uint32_t i = 0; i < frame.count; ++i) {
    if (i > 0) {
      const uint64_t gap = gg_get32(payload + 4 + 8 * (i - 1));
      length = gg_get32(payload + 8 + 8 * (i - 1));
      if (below < gap + 2) return false;
      below -= gap + 2;
    }
    if (below <= length) return false;  // number 0 is never sent
    ranges[i] = {below - length, below};
    below -= length;
  }

  if (largest >= oldest_ && sent(largest).state == SentState::kInFlight) {
    const SentPacket& packet = sent(largest);
    // Only packets that elicit an acknowledgement are ever in flight.
    sample_rtt(now - packet.time, frame.call * kMicrosecond);
  }
  const uint64_t acked_before = largest_acked_;
  const uint32_t in_flight_before = in_flight_;
  largest_acked_ = std::max(largest_acked_, largest);
  for (uint32_t i = 0; i < frame.count; ++i) {
    if (ranges[i].last < oldest_) break;
    for (uint64_t n = std::max(ranges[i].first, oldest_); n <= ranges[i].last; ++n) {
      SentPacket& packet = sent(n);
      if (packet.state == SentState::kInFlight) {
        acknowledge(packet, now);
      } else if (packet.state == SentState::kLost) {
        // Spurious. If a later packet was acknowledged earlier, packets are reordered by more than we thought
        // (RFC 9002 section 6.1.1, RFC 8985 section 6.2); else a probe timeout was too early.
        counters_->packets_spurious.add();
        if (n < acked_before)
          reordering_ = static_cast<uint32_t>(
              std::min<uint64_t>(std::max<uint64_t>(reordering_, acked_before - n + 1), kMaxReordering));
        ++in_flight_;
        acknowledge(packet, now);
      }
    }
  }
  if (in_flight_ != in_flight_before) pto_count_ = 0;  // RFC 9002 section 6.2.1: something new was acknowledged
  detect_losses(now);
  if (has_data()) list();
  rearm(now);
  return true;
}

void Link::acknowledge(SentPacket& packet, Nanoseconds now) {
  packet.state = SentState::kDone;
  published_in_flight_.set(--in_flight_);
  report_.delivered_bytes += packet.bytes;
  for (uint8_t i = 0; i < packet.frames; ++i)
    if (SentFrame& frame = packet.frame[i]; frame.flow != nullptr)
      frame.flow->source->delivered(*frame.flow, frame.id, now);
}

void Link::declare_lost(SentPacket& packet) {
  if (packet.state != SentState::kInFlight) return;
  packet.state = SentState::kLost;
  published_in_flight_.set(--in_flight_);
  counters_->packets_lost.add();
  report_.lost_bytes += packet.bytes;
  for (uint8_t i = 0; i < packet.frames; ++i) {
    SentFrame& frame = packet.frame[i];
    if (frame.flow == nullptr) continue;
    counters_->frames_resent.add();
    frame.flow->source->lost(*frame.flow, frame.id);
  }
}

void Link::detect_losses(Nanoseconds now) {
  const Nanoseconds delay = loss_delay();
  loss_time_ = kNever;
  // Below oldest_ stand newer numbers in the same places.
  first_in_flight_ = std::max(first_in_flight_, oldest_);
  while (first_in_flight_ < next_number_ && sent(first_in_flight_).state != SentState::kInFlight) ++first_in_flight_;
  for (uint64_t n = first_in_flight_; n < largest_acked_; ++n) {
    SentPacket& packet = sent(n);
    if (packet.state != SentState::kInFlight) continue;
    if (largest_acked_ - n >= reordering_ || packet.time + delay <= now) {
      declare_lost(packet);
    } else {
      // Later packets were sent later and are nearer to the largest: none of them is lost yet.
      loss_time_ = packet.time + delay;
      break;
    }
  }
  // Packets declared lost stay for a while, so that a late acknowledgement shows that they were only reordered.
  const Nanoseconds keep = 3 * srtt_ + kMillisecond;
  while (oldest_ < next_number_) {
    const SentPacket& packet = sent(oldest_);
    if (packet.state == SentState::kInFlight) break;
    if (packet.state == SentState::kLost && packet.time + keep > now) break;
    ++oldest_;
  }
}

void Link::on_timer(Nanoseconds now) {
  if (loss_time_ <= now) {
    detect_losses(now);
  } else if (in_flight_ > 0 && last_eliciting_sent_ + pto() <= now) {
    probe(now);
  }
  if (has_data() || ack_due(now)) list();
  rearm(now);
}

void Link::probe(Nanoseconds now) {
  // DESIGN section 6: probes carry the unacknowledged frames themselves.
  counters_->probe_timeouts.add();
  ++pto_count_;
  probes_ = 2;
  last_eliciting_sent_ = now;
  uint32_t chosen = 0;
  for (uint64_t n = std::max(first_in_flight_, oldest_); n < next_number_ && chosen < 2; ++n) {
    if (sent(n).state != SentState::kInFlight) continue;
    declare_lost(sent(n));
    ++chosen;
  }
  if (!has_data()) ping_pending_ = true;
}

void Link::sample_rtt(Nanoseconds rtt, Nanoseconds ack_delay) {
  // RFC 9002 section 5.3.
  const bool first = min_rtt_ == 0;
  min_rtt_ = first ? rtt : std::min(min_rtt_, rtt);
  ack_delay = std::min(ack_delay, kMaxAckDelay);
  latest_rtt_ = rtt >= min_rtt_ + ack_delay ? rtt - ack_delay : rtt;
  if (first) {
    srtt_ = latest_rtt_;
    rttvar_ = latest_rtt_ / 2;
  } else {
    const Nanoseconds deviation = srtt_ > latest_rtt_ ? srtt_ - latest_rtt_ : latest_rtt_ - srtt_;
    rttvar_ = (3 * rttvar_ + deviation) / 4;
    srtt_ = (7 * srtt_ + latest_rtt_) / 8;
  }
  report_.rtt_ns = latest_rtt_;
  published_rtt_.set(srtt_);
}

Nanoseconds Link::loss_delay() const {
  // RFC 9002 section 6.1.2: 9/8 of the larger of both, at least the timer's granularity.
  return std::max(std::max(srtt_, latest_rtt_) * 9 / 8, kMillisecond);
}

Nanoseconds Link::pto() const {
  // RFC 9002 section 6.2.1.
  const Nanoseconds base = srtt_ + std::max(4 * rttvar_, kMillisecond) + kMaxAckDelay;
  return std::min(std::max(base, config_.min_pto_ns) << std::min(pto_count_, 12u), kMaxPto + srtt_);
}

void Link::rearm(Nanoseconds now) {
  Nanoseconds deadline = std::min(ack_deadline_, loss_time_);
  if (in_flight_ > 0) deadline = std::min(deadline, last_eliciting_sent_ + pto());
  if (budget_ != nullptr && has_data() && next_send_ > now) deadline = std::min(deadline, next_send_);
  wheel_->arm(timer_, deadline);
}

void Link::report(Nanoseconds now) {
  if (now < next_report_) return;
  next_report_ = now + budget_->interval_ns();
  report_.demand_bytes = demand_bytes();
  budget_->report(config_.lane, report_);
  report_ = {};
}

}  // namespace gradgate::core
