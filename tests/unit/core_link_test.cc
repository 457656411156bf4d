// SPDX-License-Identifier: Apache-2.0
// A link's acknowledgements, sending and flows. Loss recovery is in core_link_loss_test.cc.
#include "tests/unit/core_link_fixture.h"

namespace gradgate::test {
namespace {

TEST_F(LinkTest, AcknowledgesEverySixteenPackets) {
  start();
  for (uint64_t n = 1; n <= 15; ++n) receive(n);
  poll();
  EXPECT_TRUE(output_.sent.empty());
  receive(16);
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  const Frame* ack = output_.sent[0].find(GG_ACK);
  ASSERT_NE(ack, nullptr);
  EXPECT_EQ(ack->header.index, 16u);
  EXPECT_EQ(ack->header.count, 1u);
  EXPECT_EQ(gg_get32(ack->payload.data()), 15u);
  EXPECT_EQ(output_.sent[0].link.label, gg_label(1, GG_CONTEXT_LINK));
  EXPECT_EQ(link_->in_flight(), 0u) << "an ACK alone elicits none and is not in flight";
  run_until(now_ + 10 * kSecond);
  EXPECT_EQ(output_.sent.size(), 1u) << "said once";
}

TEST_F(LinkTest, AcknowledgesAtGapsAtOnce) {
  start();
  receive(1);
  receive(4);
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  const Frame& ack = output_.sent[0].frames[0];
  ASSERT_EQ(ack.header.count, 2u);
  EXPECT_EQ(ack.header.index, 4u);
  EXPECT_EQ(gg_get32(ack.payload.data()), 0u);
  EXPECT_EQ(gg_get32(ack.payload.data() + 4), 1u) << "RFC 9000 19.3.1: two missing packets are a gap of one";
  EXPECT_EQ(gg_get32(ack.payload.data() + 8), 0u);
  receive(2);  // fills a gap
  poll();
  EXPECT_EQ(output_.sent.size(), 2u);
}

TEST_F(LinkTest, AcknowledgesAfterAnEighthOfTheRttButAtMostAMillisecond) {
  start();  // 8 ms: an eighth is the cap of 1 ms
  receive(1);
  run_until(now_ + kMillisecond - 1);
  EXPECT_TRUE(output_.sent.empty());
  run_until(now_ + 1);
  ASSERT_EQ(output_.sent.size(), 1u);
  EXPECT_EQ(output_.sent[0].frames[0].header.call, 1000u) << "delay in microseconds";

  // A measured RTT of 800 us: after 100 us.
  TestSource source;
  use(source);
  for (int i = 0; i < 80; ++i) {
    source.queue(static_cast<uint32_t>(i));
    drain();
    now_ += 800 * kMicrosecond;
    ASSERT_TRUE(ack({{output_.sent.back().link.number, output_.sent.back().link.number}}));
  }
  ASSERT_NEAR(static_cast<double>(link_->smoothed_rtt()), 800'000, 1'000);
  const Nanoseconds delay = link_->smoothed_rtt() / 8;
  const size_t before = output_.sent.size();
  receive(2);
  run_until(now_ + delay - 1);
  EXPECT_EQ(output_.sent.size(), before);
  run_until(now_ + 1);
  EXPECT_EQ(output_.sent.size(), before + 1);
}

TEST_F(LinkTest, AckRidesOnData) {
  start();
  TestSource source(64);
  use(source);
  receive(1, true, true);
  source.queue(7);
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  const Frame* ack = output_.sent[0].find(GG_ACK);
  ASSERT_NE(ack, nullptr);
  EXPECT_EQ(ack->header.elements, 1u) << "packets with CE so far";
  EXPECT_EQ(output_.sent[0].link.label, source.flow.label);
  run_until(now_ + 2 * kMillisecond);
  EXPECT_EQ(output_.sent.size(), 1u) << "nothing is owed any more";
}

TEST_F(LinkTest, AcknowledgementsAloneAreNeverAcknowledged) {
  start();
  for (uint64_t n = 1; n <= 40; ++n) receive(n, false);
  receive(50, false);
  run_until(now_ + kSecond);
  EXPECT_TRUE(output_.sent.empty());
  EXPECT_EQ(scheduler_.next_deadline(), core::kNever);
}

TEST_F(LinkTest, ManyRangesStillLeaveRoomForAChunk) {
  start();
  TestSource source(1024);
  use(source);
  for (uint64_t n = 1; n <= 199; n += 2) receive(n);
  source.queue(1);
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  EXPECT_NE(output_.sent[0].find(GG_CONTRIBUTION), nullptr);
  EXPECT_EQ(output_.sent[0].find(GG_ACK)->header.count, GG_MAX_ACK_RANGES);
  EXPECT_LE(output_.sent[0].bytes, link_->config().max_packet_bytes);
}

TEST_F(LinkTest, MalformedAcksChangeNothing) {
  start();
  TestSource source;
  use(source);
  for (uint32_t i = 0; i < 5; ++i) {
    source.queue(i);
    poll();
  }
  const auto refused = [&](Frame frame, const char* why) {
    EXPECT_FALSE(link_->on_ack(frame.header, frame.payload.data(), now_)) << why;
    EXPECT_EQ(link_->in_flight(), 5u) << why;
    EXPECT_TRUE(source.delivered_indices.empty()) << why;
  };
  Frame frame = ack_frame({{1, 5}});
  frame.header.count = 0;
  refused(frame, "no range");
  frame = ack_frame({{1, 5}});
  frame.header.count = GG_MAX_ACK_RANGES + 1;
  frame.payload.resize(4 + 8 * GG_MAX_ACK_RANGES);
  frame.header.length = static_cast<uint16_t>(frame.payload.size());
  refused(frame, "too many ranges");
  frame = ack_frame({{5, 5}, {1, 1}});
  frame.header.length = 4;
  refused(frame, "shorter than its ranges");
  frame.header.length = 16;
  refused(frame, "longer than its ranges");
  refused(ack_frame({{1, 6}}), "largest never sent");
  refused(ack_frame({{0xFFFFFFFF, 0xFFFFFFFF}}), "far beyond");
  refused(ack_frame({{0, 5}}), "number 0 does not exist");
  refused(ack_frame({{0, 0}}), "only number 0");
  frame = ack_frame({{5, 5}, {1, 1}});
  gg_put32(frame.payload.data() + 4, 4);  // gap beyond number 1
  refused(frame, "gap leads below 1");
  gg_put32(frame.payload.data() + 4, 0xFFFFFFFF);
  refused(frame, "huge gap");
  frame = ack_frame({{5, 5}, {1, 2}});
  gg_put32(frame.payload.data() + 8, 3);
  refused(frame, "second range leads below 1");
  EXPECT_TRUE(ack({{4, 5}, {1, 2}}));
  EXPECT_EQ(source.delivered_indices.size(), 4u);
}

TEST_F(LinkTest, InFlightIsCapped) {
  start(8);
  TestSource source(64);
  use(source);
  source.queue(0, 20);
  drain();
  EXPECT_EQ(output_.sent.size(), 8u);
  EXPECT_EQ(link_->in_flight(), 8u);
  EXPECT_FALSE(link_->can_send(now_));
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{1, 3}}));
  drain();
  EXPECT_EQ(output_.sent.size(), 11u);
  EXPECT_EQ(link_->in_flight(), 8u);
}

TEST_F(LinkTest, RefusedPacketsAreNotLostAndKeepTheirOrder) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 10);
  source.stale = {3};
  source.flow.pending_control = 1u << GG_WATERMARK;
  output_.room = 0;
  poll();
  EXPECT_TRUE(output_.sent.empty());
  EXPECT_EQ(link_->in_flight(), 0u);
  EXPECT_EQ(counters_.send_blocked.get(), 1u);
  EXPECT_EQ(scheduler_.next_deadline(), 0u) << "tries again at the next poll";
  for (int i = 0; i < 9; ++i) {
    output_.room = 1;
    poll();
  }
  output_.room = ~0u;
  drain();
  EXPECT_EQ(indices_sent(), (Indices{0, 1, 2, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(output_.frames(3, GG_WATERMARK).size(), 1u);
  for (size_t i = 0; i < output_.sent.size(); ++i)
    EXPECT_EQ(output_.sent[i].link.number, i + 1) << "numbers without holes";
}

TEST_F(LinkTest, RefusedAcknowledgementIsSentLater) {
  start();
  receive(2);
  output_.room = 0;
  poll();
  EXPECT_TRUE(output_.sent.empty());
  output_.room = 1;
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  EXPECT_NE(output_.sent[0].find(GG_ACK), nullptr);
}

TEST_F(LinkTest, GroupsOnOneLinkTakeTurns) {
  start();
  TestSource a(64, gg_label(1, 9)), b(64, gg_label(1, 10));
  use(a);
  use(b);
  a.queue(100, 4);
  b.queue(200, 2);
  drain();
  EXPECT_EQ(indices_sent(), (Indices{100, 200, 101, 201, 102, 103}));
  for (const SentPacket& packet : output_.sent)
    EXPECT_EQ(packet.link.label, packet.frames[0].header.index < 200 ? a.flow.label : b.flow.label);
}

TEST_F(LinkTest, EmptyChunksShareAPacket) {
  start();
  TestSource source;
  use(source);
  source.queue(0, 6);
  drain();
  ASSERT_EQ(output_.sent.size(), 2u);
  EXPECT_EQ(output_.sent[0].frames.size(), core::Link::kFramesPerPacket);
}

TEST_F(LinkTest, ForgottenFlowHearsNothingAnyMore) {
  start();
  TestSource other(64, gg_label(1, 10));
  {
    TestSource source(64);
    use(source);
    use(other);
    source.queue(0, 3);
    drain();
    source.queue(3, 3);  // still waiting
    other.queue(50);
    link_->forget(source.flow);
    EXPECT_FALSE(source.flow.listed);
    now_ += kMillisecond;
    EXPECT_TRUE(ack({{3, 3}}));  // 1 and 2 stay to be lost
    EXPECT_TRUE(source.delivered_indices.empty());
  }
  run_until(now_ + kSecond);  // ASan would see a touch of the flow
  EXPECT_GT(output_.sent.size(), 3u);
  for (const uint32_t index : indices_sent(3)) EXPECT_EQ(index, 50u);
}

TEST_F(LinkTest, ForgettingTheLastListedFlowKeepsTheListWhole) {
  start();
  TestSource a(64), b(64), c(64);
  for (TestSource* s : {&a, &b, &c}) use(*s);
  a.queue(1);
  b.queue(2);
  c.queue(3);
  link_->forget(c.flow);
  link_->forget(a.flow);
  TestSource d(64);
  use(d);
  d.queue(4);
  drain();
  EXPECT_EQ(indices_sent(), (Indices{2, 4}));
}

TEST_F(LinkTest, DetachedLinkLeavesEveryList) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 3);
  receive(1);
  link_->detach();
  EXPECT_EQ(scheduler_.active, nullptr);
  EXPECT_EQ(scheduler_.next_deadline(), core::kNever);
  EXPECT_FALSE(source.flow.listed);
  link_.reset();
  run_until(now_ + kSecond);
  EXPECT_TRUE(output_.sent.empty());
}

TEST_F(LinkTest, PingElicitsAnAcknowledgement) {
  start();
  link_->ping();
  poll();
  ASSERT_EQ(output_.sent.size(), 1u);
  EXPECT_NE(output_.sent[0].find(GG_PING), nullptr);
  EXPECT_EQ(output_.sent[0].link.label, gg_label(1, GG_CONTEXT_LINK));
  EXPECT_EQ(link_->in_flight(), 1u);
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{1, 1}}));
  EXPECT_EQ(link_->in_flight(), 0u);
  EXPECT_EQ(link_->smoothed_rtt(), kMillisecond);
}

}  // namespace
}  // namespace gradgate::test
