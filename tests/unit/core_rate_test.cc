// SPDX-License-Identifier: Apache-2.0
// Pacing, the budget that a peer's lanes share, and the links' turns.
#include "tests/unit/core_link_fixture.h"

namespace gradgate::test {
namespace {

class PacingTest : public LinkTest, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(PacingTest, SendsAtTheConfiguredRate) {
  core::FixedRate rate(GetParam());
  core::PeerBudget budget(rate, 1, kMillisecond);
  start(1 << 20, &budget);
  TestSource source(1024);
  use(source);
  uint64_t bytes = 0;
  uint32_t next = 0;
  const Nanoseconds begin = now_, span = GetParam() > 1'000'000'000 ? 20 * kMillisecond : kSecond;
  while (now_ < begin + span) {
    if (source.flow.queued() < 200) {
      source.queue(next, 1000);
      next += 1000;
    }
    poll();
    // The rate is that of the wire: Ethernet, IPv4 and UDP headers count.
    for (const SentPacket& packet : output_.sent) bytes += packet.bytes + 14 + 20 + 8;
    if (!output_.sent.empty())
      link_->on_ack(ack_frame({{1, output_.sent.back().link.number}}).header,
                    ack_frame({{1, output_.sent.back().link.number}}).payload.data(), now_);
    output_.sent.clear();
    now_ = std::min(begin + span, std::max(now_ + 1, scheduler_.next_deadline()));
  }
  const double expected = static_cast<double>(GetParam()) / 8 * static_cast<double>(span) / 1e9;
  EXPECT_NEAR(static_cast<double>(bytes), expected, 0.01 * expected + 20 * 1100);
}

INSTANTIATE_TEST_SUITE_P(Rates, PacingTest, ::testing::Values(10'000'000, 100'000'000, 1'000'000'000, 10'000'000'000));

TEST_F(LinkTest, IdleTimeGivesNoCreditBeyondTheBurst) {
  core::FixedRate rate(100'000'000);
  core::PeerBudget budget(rate, 1, kMillisecond);
  start(4096, &budget);
  TestSource source(1024);
  use(source);
  run_until(now_ + kSecond);
  source.queue(0, 1000);
  drain();
  EXPECT_LE(output_.sent.size(), 17u);
  EXPECT_GE(output_.sent.size(), 16u);
}

core::LaneReport demand(uint64_t bytes) {
  core::LaneReport report;
  report.demand_bytes = bytes;
  return report;
}

TEST(PeerBudget, GrantsFollowDemandAndSumToTheRate) {
  core::FixedRate rate(8'000'000'000);
  core::PeerBudget budget(rate, 4, kMillisecond);
  for (uint8_t lane = 0; lane < 4; ++lane) EXPECT_EQ(budget.granted(lane), 2'000'000'000u);
  budget.report(1, demand(1000));
  budget.report(2, demand(1000));
  budget.run(kSecond);
  EXPECT_EQ(budget.granted(1), 4'000'000'000u);
  EXPECT_EQ(budget.granted(2), 4'000'000'000u);
  EXPECT_EQ(budget.granted(0), 500'000'000u) << "a sixteenth, so that first packets need not wait";
  budget.report(1, demand(0));
  budget.run(kSecond + kMillisecond - 1);
  EXPECT_EQ(budget.granted(2), 4'000'000'000u) << "once an interval";
  budget.run(kSecond + kMillisecond);
  EXPECT_EQ(budget.granted(2), 8'000'000'000u);
  budget.report(2, demand(0));
  budget.run(kSecond + 2 * kMillisecond);
  for (uint8_t lane = 0; lane < 4; ++lane) EXPECT_EQ(budget.granted(lane), 2'000'000'000u);
}

class RecordingController final : public core::CongestionController {
 public:
  core::LaneReport sum;
  void on_report(const core::LaneReport& report, Nanoseconds) override {
    sum.delivered_bytes += report.delivered_bytes;
    sum.lost_bytes += report.lost_bytes;
    sum.ce_packets += report.ce_packets;
    if (report.rtt_ns != 0) sum.rtt_ns = report.rtt_ns;
  }
  uint64_t rate_bits_per_second() const override { return 1'000'000'000; }
};

TEST(PeerBudget, ControllerHearsEverythingOnce) {
  RecordingController controller;
  core::PeerBudget budget(controller, 2, kMillisecond);
  for (int i = 0; i < 10; ++i) {
    budget.report(0, {100, 10, 1, 5000, 0});
    budget.report(1, {200, 20, 2, 0, 0});
    if (i % 3 == 0) budget.run(kSecond + static_cast<Nanoseconds>(i) * kMillisecond);
  }
  budget.run(2 * kSecond);
  EXPECT_EQ(controller.sum.delivered_bytes, 3000u);
  EXPECT_EQ(controller.sum.lost_bytes, 300u);
  EXPECT_EQ(controller.sum.ce_packets, 30u);
  EXPECT_EQ(controller.sum.rtt_ns, 5000u);
}

/// Several links of one lane with more to send than a poll allows.
class TurnsTest : public ::testing::Test {
 protected:
  struct End {
    std::unique_ptr<core::Link> link;
    TestSource source{64};
  };
  void start(unsigned links) {
    for (unsigned i = 0; i < links; ++i) {
      auto end = std::make_unique<End>();
      core::LinkConfig config;
      config.neighbour = i;
      config.max_in_flight = 4096;
      end->link = std::make_unique<core::Link>(config);
      end->link->attach(scheduler_.wheel, counters_, output_, nullptr, &scheduler_.active, kSecond);
      end->source.flow.link = end->link.get();
      end->source.queue(0, 1000);
      ends_.push_back(std::move(end));
    }
  }
  std::vector<unsigned> sent_by_link() const {
    std::vector<unsigned> counts(ends_.size());
    for (const SentPacket& packet : output_.sent) ++counts[packet.neighbour];
    return counts;
  }
  core::LinkScheduler scheduler_;
  core::LaneCounters counters_;
  TestOutput output_;
  std::vector<std::unique_ptr<End>> ends_;
};

TEST_F(TurnsTest, NoLinkStarvesWhenThePollsBudgetIsShort) {
  start(8);
  for (int i = 0; i < 8; ++i) scheduler_.poll(kSecond, 32);  // two turns a poll
  for (const unsigned count : sent_by_link()) EXPECT_EQ(count, 32u);
}

TEST_F(TurnsTest, NoLinkStarvesWhenTheOutputIsFull) {
  start(8);
  for (int i = 0; i < 80; ++i) {
    output_.room = 16;
    scheduler_.poll(kSecond, 64);
  }
  for (const unsigned count : sent_by_link()) EXPECT_NEAR(count, 160u, 32u);
}

}  // namespace
}  // namespace gradgate::test
