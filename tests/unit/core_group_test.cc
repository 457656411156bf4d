// SPDX-License-Identifier: Apache-2.0
// Which frames a group takes: past, in order, future, duplicate, last, other calls, strangers. One packet in, the
// expected fate out. Kinds and sites are in core_kinds_test.cc.
#include <functional>
#include <tuple>

#include "tests/unit/core_fixture.h"

namespace gradgate::test {
namespace {

using Floats = std::vector<float>;

class AdmissionTest : public GatewayTest {
 protected:
  void SetUp() override { form({}); }
  uint64_t kept() const { return lane_->counters().frames_kept.get(); }
  uint64_t duplicate() const { return lane_->counters().frames_duplicate.get(); }
  uint64_t past() const { return lane_->counters().frames_past.get(); }
  /// The link of the node owes an ACK for exactly this many packets: asked by letting it speak.
  bool acknowledged(uint32_t node, uint64_t number) {
    run_until(now_ + 2 * kMillisecond);
    for (const SentPacket& packet : output_.sent) {
      const Frame* ack = packet.neighbour == node ? packet.find(GG_ACK) : nullptr;
      if (ack == nullptr) continue;
      uint32_t last = ack->header.index, first = last - gg_get32(ack->payload.data());
      for (uint32_t i = 0; i < ack->header.count; ++i) {
        if (i > 0) {
          last = first - gg_get32(ack->payload.data() + 8 * i - 4) - 2;
          first = last - gg_get32(ack->payload.data() + 8 * i);
        }
        if (first <= number && number <= last) return true;
      }
    }
    return false;
  }
  void complete(uint32_t i) {
    contribute(0, i, all_reduce(), {1, 2});
    contribute(1, i, all_reduce(), {3, 4});
    poll();
    ack_everybody();
  }
};

TEST_F(AdmissionTest, InOrder) {
  for (uint32_t i = 0; i < 20; ++i) {
    complete(index(i));
    ASSERT_EQ(low(), index(i + 1));
  }
  EXPECT_EQ(results_to(0).size(), 20u);
  EXPECT_EQ(results_to(1).size(), 20u);
  for (const Frame& result : results_to(1)) EXPECT_EQ(floats_of(result.payload), (Floats{4, 6}));
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
}

TEST_F(AdmissionTest, Past) {
  complete(index(0));
  for (const uint32_t i : {index(0), index(0) - 1, index(0) - 1000, index(0) - 0x7FFFFFFF}) {
    const uint64_t before = past();
    contribute(0, i, all_reduce(), {9, 9});
    EXPECT_EQ(past(), before + 1) << i;
    EXPECT_TRUE(acknowledged(node_of_rank(0), nodes_[node_of_rank(0)].next_number - 1)) << i;
  }
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
}

TEST_F(AdmissionTest, LastOfTheWindow) {
  contribute(0, index(7), all_reduce(), {1, 2});
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(low(), index(0));
}

TEST_F(AdmissionTest, FutureBeyondTheWindow) {
  for (const uint32_t i : {index(8), index(9), index(1000), index(0) + 0x7FFFFFFF}) {
    const uint64_t before = frame_drops(GG_DROP_FUTURE);
    contribute(0, i, all_reduce(), {1, 2});
    EXPECT_EQ(frame_drops(GG_DROP_FUTURE), before + 1) << i;
    EXPECT_FALSE(acknowledged(node_of_rank(0), nodes_[node_of_rank(0)].next_number - 1)) << i;
  }
  EXPECT_EQ(low(), index(0));
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
}

TEST_F(AdmissionTest, DuplicateIsAcknowledgedButNotCounted) {
  contribute(0, index(0), all_reduce(), {1, 2});
  contribute(0, index(0), all_reduce(), {100, 200});
  EXPECT_EQ(duplicate(), 1u);
  EXPECT_TRUE(acknowledged(node_of_rank(0), 2));
  contribute(1, index(0), all_reduce(), {3, 4});
  contribute(1, index(0), all_reduce(), {100, 200});  // the result is known
  EXPECT_EQ(duplicate(), 2u);
  poll();
  ASSERT_EQ(results_to(0).size(), 1u);
  EXPECT_EQ(floats_of(results_to(0)[0].payload), (Floats{4, 6}));
}

TEST_F(AdmissionTest, RepeatedNumberIsDropped) {
  gg_link link = link_to(node_of_rank(0));
  const std::vector<Frame> frames{data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2})};
  deliver(link, packet_bytes(link, frames, true), nodes_[node_of_rank(0)].source);
  deliver(link, packet_bytes(link, frames, true), nodes_[node_of_rank(0)].source);
  EXPECT_EQ(packet_drops(GG_DROP_DUPLICATE_NUMBER), 1u);
}

TEST_F(AdmissionTest, SlotIsNotReusedBeforeLowPasses) {
  for (uint32_t i = 0; i < 8; ++i) contribute(0, index(i), all_reduce(), {1, 2});
  for (uint32_t i = 1; i < 8; ++i) contribute(1, index(i), all_reduce(), {3, 4});
  poll();
  ack_everybody();  // 1 to 7 are complete, 0 is not
  EXPECT_EQ(low(), index(0));
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 8u);
  contribute(0, index(8), all_reduce(), {1, 2});
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u);
  contribute(1, index(0), all_reduce(), {3, 4});
  poll();
  ack_everybody();
  EXPECT_EQ(low(), index(8));
  contribute(0, index(8), all_reduce(), {1, 2});
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u);
}

TEST_F(AdmissionTest, ResultIsSentUntilEverySinkHasAcknowledged) {
  contribute(0, index(0), all_reduce(), {1, 2});
  contribute(1, index(0), all_reduce(), {3, 4});
  poll();
  ack(node_of_rank(0));
  EXPECT_EQ(low(), index(0));
  run_until(now_ + 100 * kMillisecond);
  EXPECT_EQ(results_to(0).size(), 1u);
  EXPECT_GT(results_to(1).size(), 1u);
  ack(node_of_rank(1));
  EXPECT_EQ(low(), index(1));
}

struct Difference {
  const char* what;
  std::function<void(core::CallParameters&)> apply;
};

TEST_F(AdmissionTest, OtherCallsAreOneMismatchThatNamesBoth) {
  const std::vector<Difference> differences{
      {"call", [](auto& c) { c.call = 1; }},          {"kind", [](auto& c) { c.kind = GG_REDUCE; }},
      {"dtype", [](auto& c) { c.dtype = GG_INT32; }}, {"op", [](auto& c) { c.op = GG_AVERAGE; }},
      {"root", [](auto& c) { c.root = 1; }},          {"elements", [](auto& c) { c.elements = 3; }},
      {"length", [](auto& c) { c.length = 4; }},
  };
  for (const Difference& difference : differences) {
    SCOPED_TRACE(difference.what);
    form({});
    events_.seen.clear();
    core::CallParameters other = all_reduce();
    difference.apply(other);
    contribute(0, index(0), all_reduce(), {1, 2});
    contribute(1, index(0), other, Floats(other.length / 4, 1));
    contribute(1, index(0), other, Floats(other.length / 4, 1));
    EXPECT_EQ(frame_drops(GG_DROP_MISMATCH), 1u);
    EXPECT_EQ(frame_drops(GG_DROP_GROUP_FAILED), 1u);
    ASSERT_EQ(events_.seen.size(), 1u) << "once";
    const core::Event& event = events_.seen[0];
    EXPECT_EQ(event.type, core::Event::Type::kMismatch);
    EXPECT_EQ(event.context, kContext);
    EXPECT_EQ(event.generation, 7u);
    EXPECT_EQ(event.index, index(0));
    EXPECT_EQ(event.rank, 0);
    EXPECT_EQ(event.other_rank, 1);
    EXPECT_EQ(event.call, all_reduce());
    EXPECT_EQ(event.other_call, other);
    TearDown();
  }
}

TEST_F(AdmissionTest, LostMismatchReportIsMadeAgain) {
  events_.full = true;
  contribute(0, index(0), all_reduce(), {1, 2});
  contribute(1, index(0), all_reduce(8, 1), {3, 4});
  EXPECT_EQ(lane_->counters().events_lost.get(), 1u);
  events_.full = false;
  contribute(1, index(0), all_reduce(8, 1), {3, 4});
  EXPECT_EQ(events_.seen.size(), 1u);
}

TEST_F(AdmissionTest, InconsistentCallsAreBadFrames) {
  const std::vector<Difference> differences{
      {"no kind", [](auto& c) { c.kind = GG_KIND_NONE; }},
      {"bytes cannot be summed", [](auto& c) { c.dtype = GG_BYTES; }},
      {"no operation", [](auto& c) { c.op = GG_OP_NONE; }},
      {"root beyond the group", [](auto& c) { c.root = 2; }},
      {"half an element", [](auto& c) { c.length = 6; }},
      {"longer than a chunk", [](auto& c) { c.length = 68; }},
      {"barrier with payload", [](auto& c) { c.kind = GG_BARRIER, c.op = GG_OP_NONE; }},
      {"broadcast with an operation", [](auto& c) { c.kind = GG_BROADCAST; }},
  };
  for (const Difference& difference : differences) {
    const uint64_t before = frame_drops(GG_DROP_BAD_FRAME);
    core::CallParameters call = all_reduce();
    difference.apply(call);
    Frame frame = call_frame(GG_CONTRIBUTION, 0, index(0), call);
    frame.payload.resize(call.length);
    frame.header.length = call.length;
    deliver(node_of_rank(0), {frame});
    EXPECT_EQ(frame_drops(GG_DROP_BAD_FRAME), before + 1) << difference.what;
    EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u) << difference.what;
  }
  EXPECT_TRUE(events_.seen.empty());
}

TEST_F(AdmissionTest, Strangers) {
  const std::vector<Frame> frames{data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2})};
  const uint32_t node = node_of_rank(0);
  const auto packet = [&](std::function<void(gg_link&)> change) {
    gg_link link = link_to(node);
    change(link);
    return std::make_pair(link, packet_bytes(link, frames, true));
  };
  const uint64_t source = nodes_[node].source;

  auto [link, bytes] = packet([](gg_link&) {});
  EXPECT_EQ(deliver(link, bytes, source + 1), core::kNoNeighbour);
  EXPECT_EQ(packet_drops(GG_DROP_WRONG_SOURCE), 1u) << "another source address";

  bytes.back() ^= 1;
  EXPECT_EQ(deliver(link, bytes, source), core::kNoNeighbour);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_TRAILER), 1u);

  std::tie(link, bytes) = packet([](gg_link& l) { l.link += 1u << 16; });
  EXPECT_EQ(deliver(link, bytes, source), core::kNoNeighbour);
  std::tie(link, bytes) = packet([](gg_link& l) { l.link |= 0xFFFF; });
  EXPECT_EQ(deliver(link, bytes, source), core::kNoNeighbour);
  EXPECT_EQ(packet_drops(GG_DROP_UNKNOWN_LINK), 2u) << "old epoch; no such neighbour";

  std::tie(link, bytes) = packet([](gg_link& l) { l.lane = 1; });
  EXPECT_EQ(deliver(link, bytes, source), core::kNoNeighbour);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_LANE), 1u);

  std::tie(link, bytes) = packet([](gg_link& l) { l.label = gg_label(99, kContext); });
  EXPECT_EQ(deliver(link, bytes, source), core::kNoNeighbour);
  std::tie(link, bytes) = packet([](gg_link& l) { l.label += 1; });
  EXPECT_EQ(deliver(link, bytes, source), node);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_LABEL), 2u) << "another site; no such group";

  deliver(node_of_rank(1), frames);
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_SOURCE), 1u) << "rank 0's frame over rank 1's link";
  deliver(node, {data_frame(GG_CONTRIBUTION, 2, index(0), all_reduce(), {1, 2})});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_SOURCE), 2u) << "a rank beyond the group";

  std::tie(link, bytes) = packet([](gg_link& l) { l.label = gg_label(11, GG_CONTEXT_LINK); });
  deliver(link, bytes, source);
  EXPECT_EQ(frame_drops(GG_DROP_UNEXPECTED_FRAME), 1u) << "a group's frame under the link's label";

  for (const uint8_t type : {GG_PARTIAL, GG_RESULT, GG_WATERMARK, GG_CLOSE, GG_ERROR, GG_DATA}) {
    const uint64_t before = frame_drops(GG_DROP_UNEXPECTED_FRAME);
    deliver(node, {call_frame(static_cast<uint8_t>(type), 0, index(0), all_reduce())});
    EXPECT_EQ(frame_drops(GG_DROP_UNEXPECTED_FRAME), before + 1) << type;
  }
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
  EXPECT_FALSE(acknowledged(node, 1));
}

TEST_F(AdmissionTest, MalformedPackets) {
  const uint32_t node = node_of_rank(0);
  const uint64_t source = nodes_[node].source;
  gg_link link = link_to(node);
  deliver(link, packet_bytes(link, {}, true), source);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_FRAME), 1u) << "no frame";
  Frame longer = data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2});
  longer.header.length = 9;
  deliver(link, packet_bytes(link, {longer}, true), source);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_FRAME), 2u) << "payload beyond the packet";
  deliver(link, packet_bytes(link, std::vector<Frame>(GG_MAX_FRAMES + 1, call_frame(GG_PING, 0, 0, {})), true), source);
  EXPECT_EQ(packet_drops(GG_DROP_TOO_MANY_FRAMES), 1u);
  deliver(link, std::vector<uint8_t>(GG_LINK_BYTES), source);
  EXPECT_EQ(packet_drops(GG_DROP_BAD_TRAILER), 1u) << "too short for a trailer";
}

TEST_F(AdmissionTest, PacketOfAcksIsNeverAcknowledged) {
  complete(index(0));
  const size_t before = output_.sent.size();
  run_until(now_ + 500 * kMicrosecond);
  for (int i = 0; i < 40; ++i) deliver(node_of_rank(0), {ack_frame({{1, 1}})});
  poll();
  for (size_t i = before; i < output_.sent.size(); ++i)
    if (output_.sent[i].neighbour == node_of_rank(0)) {
      EXPECT_NE(output_.sent[i].find(GG_WATERMARK), nullptr);
    }
}

TEST_F(AdmissionTest, PacketWithOneBadFrameIsNotAcknowledged) {
  deliver(node_of_rank(0), {data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2}),
                            data_frame(GG_CONTRIBUTION, 0, index(9), all_reduce(), {1, 2})});
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u);
  EXPECT_FALSE(acknowledged(node_of_rank(0), 1));
  // Sent again, the good one is a duplicate.
  deliver(node_of_rank(0), {data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2})});
  EXPECT_EQ(duplicate(), 1u);
  EXPECT_TRUE(acknowledged(node_of_rank(0), 2));
}

TEST_F(AdmissionTest, BadAckIsNamedAndDropped) {
  deliver(node_of_rank(0), {ack_frame({{1, 1}})});
  EXPECT_EQ(frame_drops(GG_DROP_BAD_ACK), 1u);
}

TEST_F(AdmissionTest, BelowTheReservePayloadIsDroppedAndTakenLater) {
  pool_.exhausted = true;
  contribute(0, index(0), all_reduce(), {1, 2});
  EXPECT_EQ(frame_drops(GG_DROP_POOL_EXHAUSTED), 1u);
  EXPECT_FALSE(acknowledged(node_of_rank(0), 1));
  EXPECT_EQ(pool_.live(), 0);
  core::CallParameters barrier;
  barrier.call = 1;
  barrier.kind = GG_BARRIER;
  contribute(0, index(1), barrier, {});  // holds no memory
  EXPECT_EQ(kept(), 1u);
  pool_.exhausted = false;
  contribute(0, index(0), all_reduce(), {1, 2});
  contribute(1, index(0), all_reduce(), {3, 4});
  poll();
  EXPECT_EQ(results_to(0).size(), 1u);
}

TEST_F(AdmissionTest, SeveralPayloadsInOnePacketShareItsBuffer) {
  deliver(node_of_rank(0), {data_frame(GG_CONTRIBUTION, 0, index(0), all_reduce(), {1, 2}),
                            data_frame(GG_CONTRIBUTION, 0, index(1), all_reduce(8, 1), {5, 6})});
  EXPECT_EQ(pool_.live(), 1);
  contribute(1, index(0), all_reduce(), {3, 4});
  contribute(1, index(1), all_reduce(8, 1), {7, 8});
  poll();
  ack_everybody();
  ASSERT_EQ(results_to(1).size(), 2u);
  EXPECT_EQ(floats_of(results_to(1)[0].payload), (Floats{4, 6}));
  EXPECT_EQ(floats_of(results_to(1)[1].payload), (Floats{12, 14}));
  EXPECT_EQ(pool_.live(), 0) << "low has passed both";
}

}  // namespace
}  // namespace gradgate::test
