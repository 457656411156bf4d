// SPDX-License-Identifier: Apache-2.0
// A worker's core whose gateway is the test.
#pragma once

#include <map>
#include <set>

#include "core/chunking.h"
#include "core/member.h"
#include "tests/unit/core_fixture.h"

namespace gradgate::test {

class MemberTest : public ::testing::Test, public core::Member::Observer {
 protected:
  static inline const uint32_t kOwnLabel = gg_label(11, 100), kGroupLabel = gg_label(11, 5);

  struct Setup {
    uint16_t rank = 0, size = 2;
    uint32_t chunk_bytes = 64;
    uint8_t lanes = 1;
    uint32_t window = 8;
    uint32_t start = 0xFFFFFFF8u;  ///< a multiple of every number of lanes, just short of the wrap
  };
  void join(const Setup& setup) {
    setup_ = setup;
    core::MemberConfig config;
    config.rank = setup.rank;
    config.size = setup.size;
    config.chunk_bytes = setup.chunk_bytes;
    config.lanes = setup.lanes;
    config.window = setup.window;
    for (uint8_t lane = 0; lane < setup.lanes; ++lane) config.start.push_back(setup.start + lane);
    config.group_label = kGroupLabel;
    config.own_label = kOwnLabel;
    config.local_link = local_link_;
    config.trailer_crc_receive = true;
    config.link.remote_link = 0x42;
    config.link.link_label = gg_label(11, GG_CONTEXT_LINK);
    config.link.max_in_flight = 4096;
    output_.sent.clear();
    numbers_.assign(setup.lanes, 1);
    member_ = std::make_unique<core::Member>(config, output_, *this, now_);
  }

  void operation_done(core::Operation& operation) override { done_.push_back(&operation); }
  void group_failed(const std::string& text) override { failures_.push_back(text); }

  core::Operation operation(uint8_t kind, uint32_t elements, const void* input, void* output, uint16_t root = 0) const {
    core::Operation o;
    o.kind = kind;
    o.elements = elements;
    o.root = root;
    o.op = kind == GG_ALL_REDUCE || kind == GG_REDUCE || kind == GG_REDUCE_SCATTER ? GG_SUM : GG_OP_NONE;
    o.dtype = kind == GG_BARRIER ? GG_BYTES : GG_FLOAT32;
    o.input = static_cast<const uint8_t*>(input);
    o.output = static_cast<uint8_t*>(output);
    return o;
  }

  void poll() {
    output_.now = now_;
    for (int i = 0; i < 1000; ++i) {
      member_->poll(now_, 64);
      if (member_->next_deadline() > now_) break;
    }
  }
  void run_until(Nanoseconds end) {
    while (now_ < end) {
      now_ = std::min(end, std::max(now_ + 1, member_->next_deadline()));
      poll();
    }
  }

  bool deliver(uint8_t lane, const std::vector<Frame>& frames) {
    gg_link link = {};
    link.lane = lane;
    link.label = own_label_;
    link.number = static_cast<uint32_t>(numbers_[lane]++);
    link.link = local_link_;
    return deliver(link, packet_bytes(link, frames, true));
  }
  bool deliver(const gg_link& link, std::vector<uint8_t> bytes) {
    core::Arrival arrival;
    arrival.link = link;
    arrival.packet = bytes.data();
    arrival.length = static_cast<uint32_t>(bytes.size());
    return member_->receive(arrival, now_);
  }
  static uint8_t lane_of(const Setup& setup, uint32_t index) {
    return static_cast<uint8_t>(index & (setup.lanes - 1u));
  }
  /// The RESULT that answers what the member sent for the index.
  static Frame answer(const Frame& sent, std::vector<uint8_t> payload) {
    Frame result = sent;
    result.header.type = GG_RESULT;
    result.header.source = 11;
    result.header.length = static_cast<uint16_t>(payload.size());
    result.payload = std::move(payload);
    return result;
  }
  void tell_low(uint8_t lane, uint32_t low) { deliver(lane, {watermark_frame(11, low, low)}); }
  void ack_all(uint8_t lane) {
    uint64_t largest = 0;
    for (const SentPacket& packet : output_.sent)
      if (packet.link.lane == lane) largest = std::max<uint64_t>(largest, packet.link.number);
    if (largest > 0) deliver(lane, {ack_frame({{1, largest}})});
  }
  std::vector<Frame> contributions() const { return output_.frames(0, GG_CONTRIBUTION); }
  std::vector<Frame> readies() const { return output_.frames(0, GG_READY); }
  uint64_t frame_drops(gg_drop reason) const { return member_->counters().frame_drops[reason].get(); }
  uint64_t packet_drops(gg_drop reason) const { return member_->counters().packet_drops[reason].get(); }

  void TearDown() override {
    if (member_ == nullptr) return;
    const core::LaneCounters& c = member_->counters();
    uint64_t packets = c.packets_parsed.get();
    uint64_t frames = c.frames_kept.get() + c.frames_duplicate.get() + c.frames_past.get();
    for (const core::Counter& drop : c.packet_drops) packets += drop.get();
    for (const core::Counter& drop : c.frame_drops) frames += drop.get();
    EXPECT_EQ(packets, c.packets_received.get());
    EXPECT_EQ(frames, c.frames_received.get());
  }

  Setup setup_;
  TestOutput output_;
  std::unique_ptr<core::Member> member_;
  std::vector<core::Operation*> done_;
  std::vector<std::string> failures_;
  std::vector<uint64_t> numbers_;
  uint32_t local_link_ = 0x777, own_label_ = kOwnLabel;
  Nanoseconds now_ = kSecond;
};

}  // namespace gradgate::test
