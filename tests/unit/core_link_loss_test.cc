// SPDX-License-Identifier: Apache-2.0
// Loss detection and probe timeouts of a link (RFC 9002), and its memory of numbers.
#include "tests/unit/core_link_fixture.h"

namespace gradgate::test {
namespace {

TEST_F(LinkTest, PacketThreshold) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 6);
  drain();
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{2, 3}}));
  EXPECT_EQ(lost(), 0u) << "two later packets are not enough";
  EXPECT_TRUE(ack({{2, 4}}));
  EXPECT_EQ(lost(), 1u) << "RFC 9002 section 6.1.1: three later ones are";
  EXPECT_EQ(source.lost_indices, (Indices{0}));
  const size_t before = output_.sent.size();
  drain();
  EXPECT_EQ(indices_sent(before), (Indices{0}));
  EXPECT_EQ(output_.sent.back().link.number, 7u) << "a new number for the same frame";
}

TEST_F(LinkTest, TimeThreshold) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 2);
  drain();
  const Nanoseconds sent = now_;
  now_ += 4 * kMillisecond;
  EXPECT_TRUE(ack({{2, 2}}));
  // RFC 9002 section 6.1.2: 9/8 of the RTT after it was sent; the first sample is 4 ms.
  run_until(sent + 4 * kMillisecond * 9 / 8 - 1);
  EXPECT_EQ(lost(), 0u);
  run_until(sent + 4 * kMillisecond * 9 / 8);
  EXPECT_EQ(lost(), 1u);
  EXPECT_EQ(counters_.probe_timeouts.get(), 0u);
  EXPECT_EQ(indices_sent(2), (Indices{0}));
}

TEST_F(LinkTest, ReorderingWidensTheThreshold) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 10);
  drain();
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{2, 7}}));
  EXPECT_EQ(lost(), 1u);
  EXPECT_TRUE(ack({{1, 7}}));  // it was only late
  EXPECT_EQ(counters_.packets_spurious.get(), 1u);
  EXPECT_EQ(link_->in_flight(), 3u);
  EXPECT_EQ(source.delivered_indices.size(), 7u);
  const uint64_t first = 11;
  source.queue(100, 12);
  drain();
  const uint64_t base = output_.sent.back().link.number - 11;
  EXPECT_GE(base, first);
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{base + 1, base + 6}, {1, base - 1}}));
  EXPECT_EQ(lost(), 1u) << "six later ones are no sign of loss now";
  EXPECT_TRUE(ack({{base + 1, base + 7}, {1, base - 1}}));
  EXPECT_EQ(lost(), 2u);
}

// A path that is slower for once makes the probe timeout declare packets lost that then arrive in order: no sign of
// reordering (RFC 8985 section 6.2 compares with what was acknowledged before).
TEST_F(LinkTest, SpuriousProbeTimeoutDoesNotWidenTheThreshold) {
  start();
  TestSource source(64);
  use(source);
  source.queue(0, 100);
  drain();
  run_until(now_ + 100 * kMillisecond);
  ASSERT_GT(counters_.probe_timeouts.get(), 0u);
  EXPECT_TRUE(ack({{1, output_.sent.back().link.number}}));
  ASSERT_GT(counters_.packets_spurious.get(), 0u);
  drain();
  source.queue(200, 8);
  drain();
  const uint64_t last = output_.sent.back().link.number;
  const uint64_t lost_before = lost();
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{last - 3, last}}));
  EXPECT_EQ(lost() - lost_before, 4u) << "the threshold is still three, and one for each further";
}

TEST_F(LinkTest, ProbeTimeoutCarriesTheFramesAndBacksOff) {
  start();
  TestSource source(64);
  use(source);
  source.queue(5, 3);
  drain();
  std::vector<Nanoseconds> times;
  const Nanoseconds begin = now_;
  uint64_t seen = 0;
  while (times.size() < 12 && now_ < begin + 60 * kSecond) {
    now_ = std::max(now_ + 1, scheduler_.next_deadline());
    poll();
    if (counters_.probe_timeouts.get() == seen) continue;
    seen = counters_.probe_timeouts.get();
    times.push_back(now_);
  }
  ASSERT_EQ(times.size(), 12u);
  // RFC 9002 section 6.2.1: srtt + 4 rttvar + the largest ACK delay, before the first sample 8 + 16 + 1 ms.
  EXPECT_EQ(times[0] - begin, 25 * kMillisecond);
  EXPECT_EQ(times[1] - times[0], 50 * kMillisecond);
  EXPECT_EQ(times[2] - times[1], 100 * kMillisecond);
  EXPECT_LE(times[11] - times[10], kSecond + kRtt) << "capped, so that a cut link comes back soon";
  EXPECT_EQ(output_.frames(3, GG_PING).size(), 0u);
  const Indices sent = indices_sent(3);
  EXPECT_EQ(Indices(sent.begin(), sent.begin() + 2), (Indices{5, 6}));
  EXPECT_EQ(counters_.frames_resent.get(), sent.size());
}

TEST_F(LinkTest, ProbesGoOutBeyondTheWindow) {
  start(4);
  TestSource source(64);
  use(source);
  source.queue(0, 8);
  drain();
  ASSERT_EQ(link_->in_flight(), 4u);
  run_until(now_ + 30 * kMillisecond);
  EXPECT_EQ(counters_.probe_timeouts.get(), 1u);
  EXPECT_EQ(output_.sent.size(), 6u);
}

TEST_F(LinkTest, ProbeWithNothingLeftToSayPings) {
  start();
  TestSource source(64);
  use(source);
  source.queue(5);
  drain();
  link_->forget(source.flow);
  run_until(now_ + 30 * kMillisecond);
  EXPECT_EQ(output_.frames(3, GG_PING).size(), 1u);
}

TEST_F(LinkTest, EveryFrameArrivesWhateverIsLost) {
  start(32);
  TestSource source(64);
  use(source);
  source.queue(0, 500);
  uint64_t state = 3;
  std::set<uint64_t> arrived;
  size_t looked = 0;
  const Nanoseconds end = now_ + 100 * kSecond;
  while (now_ < end &&
         std::set<uint32_t>(source.delivered_indices.begin(), source.delivered_indices.end()).size() < 500) {
    poll();
    for (; looked < output_.sent.size(); ++looked) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      if ((state >> 33) % 5 != 0) arrived.insert(output_.sent[looked].link.number);
    }
    now_ += 4 * kMillisecond;
    std::vector<AckRange> ranges;
    for (auto it = arrived.rbegin(); it != arrived.rend() && ranges.size() < 32; ++it) {
      if (!ranges.empty() && ranges.back().first == *it + 1) {
        ranges.back().first = *it;
      } else {
        ranges.push_back({*it, *it});
      }
    }
    if (ranges.size() == 32) ranges.pop_back();
    EXPECT_TRUE(ranges.empty() || ack(ranges));
    EXPECT_LE(link_->in_flight(), 32u);
  }
  EXPECT_LT(now_, end);
  run_until(now_ + kMillisecond);
}

// A node that mostly receives uses up numbers for its ACKs while one packet of its own waits for its probe timeout:
// the places of numbers are used again, and the newest packet must not be taken for the oldest.
TEST_F(LinkTest, NumbersOfAcknowledgementsDoNotDisturbThePacketsInFlight) {
  start(4);  // 16 places
  TestSource source(64);
  use(source);
  source.queue(0);
  drain();
  uint64_t number = 0;
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) receive(++number);
    poll();
  }
  // Number 1 gave up its place: its frame is lost and queued again, and has gone out with a later number.
  ASSERT_EQ(source.lost_indices, (Indices{0}));
  drain();
  ASSERT_EQ(link_->in_flight(), 1u);
  source.queue(1, 3);
  drain();
  const uint64_t last = output_.sent.back().link.number;
  now_ += kMillisecond;
  EXPECT_TRUE(ack({{last - 2, last - 2}}));
  EXPECT_EQ(source.lost_indices, (Indices{0})) << "nothing else was lost";
  EXPECT_EQ(link_->in_flight(), 3u);
}

}  // namespace
}  // namespace gradgate::test
