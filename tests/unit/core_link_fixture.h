// SPDX-License-Identifier: Apache-2.0
// One link whose other end is the test.
#pragma once

#include <set>

#include "core/link_scheduler.h"
#include "tests/unit/core_fixture.h"

namespace gradgate::test {

/// Chunks of a fixed size that say their index; what is lost is queued again, as groups do.
class TestSource final : public core::FrameSource {
 public:
  explicit TestSource(uint32_t payload_bytes = 0, uint32_t label = gg_label(1, 9)) : bytes_(payload_bytes) {
    flow.source = this;
    flow.label = label;
    flow.reserve(4096);
    payload_.data = bytes_.data();
    payload_.length = payload_bytes;
  }
  core::Flow flow;
  std::vector<uint32_t> delivered_indices, lost_indices;
  std::set<uint32_t> stale;

  void queue(uint32_t first, uint32_t count = 1) {
    for (uint32_t i = 0; i < count; ++i) flow.push({first + i, 1, GG_CONTRIBUTION});
    flow.link->activate(flow);
  }
  bool build(core::Flow&, core::FrameId& id, gg_frame& frame, const core::Payload*& payload) override {
    if (stale.count(id.index) != 0) return false;
    frame.type = id.type;
    frame.index = id.index;
    if (payload_.length > 0) payload = &payload_;
    return true;
  }
  void delivered(core::Flow&, const core::FrameId& id, Nanoseconds) override { delivered_indices.push_back(id.index); }
  void lost(core::Flow& flow_of_frame, const core::FrameId& id) override {
    lost_indices.push_back(id.index);
    flow_of_frame.push(id);
    flow_of_frame.link->activate(flow_of_frame);
  }

 private:
  std::vector<uint8_t> bytes_;
  core::Payload payload_;
};

class LinkTest : public ::testing::Test {
 protected:
  static constexpr Nanoseconds kRtt = 8 * kMillisecond;

  void start(uint32_t max_in_flight = 256, core::PeerBudget* budget = nullptr) {
    core::LinkConfig config;
    config.neighbour = 3;
    config.remote_link = 0x1234;
    config.link_label = gg_label(1, GG_CONTEXT_LINK);
    config.max_in_flight = max_in_flight;
    config.initial_rtt_ns = kRtt;
    link_ = std::make_unique<core::Link>(config);
    scheduler_.wheel.advance(now_);
    link_->attach(scheduler_.wheel, counters_, output_, budget, &scheduler_.active, now_);
  }
  void use(TestSource& source) { source.flow.link = link_.get(); }

  void poll(uint32_t budget = 64) {
    output_.now = now_;
    scheduler_.poll(now_, budget);
  }
  void run_until(Nanoseconds end) {
    while (now_ < end) {
      now_ = std::min(end, std::max(now_ + 1, scheduler_.next_deadline()));
      poll();
    }
  }
  /// Sends everything that may go out at once.
  void drain() {
    for (int i = 0; i < 1000 && scheduler_.active != nullptr; ++i) poll();
  }

  bool ack(const std::vector<AckRange>& ranges, uint32_t delay_us = 0) {
    const Frame frame = ack_frame(ranges, delay_us);
    return link_->on_ack(frame.header, frame.payload.data(), now_);
  }
  void receive(uint64_t number, bool eliciting = true, bool ce = false) {
    uint64_t rebuilt = 0;
    ASSERT_TRUE(link_->is_new(static_cast<uint32_t>(number), rebuilt));
    ASSERT_EQ(rebuilt, number);
    link_->accept(rebuilt, eliciting, ce, now_);
  }
  /// Indices carried by packets, in the order sent.
  std::vector<uint32_t> indices_sent(size_t from = 0) const {
    std::vector<uint32_t> indices;
    for (size_t i = from; i < output_.sent.size(); ++i)
      for (const Frame& frame : output_.sent[i].frames)
        if (frame.header.type == GG_CONTRIBUTION) indices.push_back(frame.header.index);
    return indices;
  }
  uint64_t lost() const { return counters_.packets_lost.get(); }

  core::LinkScheduler scheduler_;
  core::LaneCounters counters_;
  TestOutput output_;
  std::unique_ptr<core::Link> link_;
  Nanoseconds now_ = kSecond;
};

using Indices = std::vector<uint32_t>;

}  // namespace gradgate::test
