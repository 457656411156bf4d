// SPDX-License-Identifier: Apache-2.0
// A group's rare side: failure, stalls, announcements, labels and epochs that change (DESIGN section 5, rules 7, 9).
#include <algorithm>

#include "tests/unit/core_fixture.h"

namespace gradgate::test {
namespace {

using Floats = std::vector<float>;
using Type = core::Event::Type;

class RecoveryTest : public GatewayTest {
 protected:
  core::CallParameters broadcast(uint16_t root) {
    core::CallParameters c = all_reduce();
    c.kind = GG_BROADCAST;
    c.op = GG_OP_NONE;
    c.root = root;
    return c;
  }
  void fail_group(const std::string& text) {
    error_ = std::make_shared<const std::string>(text);
    publish();
  }
};

TEST_F(RecoveryTest, FailureTellsEveryMemberAndFreesMemoryAtOnce) {
  form({.workers_of_site = {2, 1}});
  for (uint32_t i = 0; i < 4; ++i) {
    contribute(0, index(i), all_reduce(), {1, 1});
    partial(1, index(i), all_reduce(), {1, 1});
  }
  contribute(1, index(0), all_reduce(), {1, 1});
  poll();
  EXPECT_GT(pool_.live(), 0);
  const size_t before = output_.sent.size();
  fail_group("rank 1 of site haidian: gone");
  EXPECT_EQ(pool_.live(), 0);
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
  poll();
  for (const uint16_t rank : {uint16_t{0}, uint16_t{1}}) {
    const auto errors = output_.frames(node_of_rank(rank), GG_ERROR);
    ASSERT_EQ(errors.size(), 1u);
    const std::string text(errors[0].payload.begin(), errors[0].payload.end());
    EXPECT_EQ(text, "rank 1 of site haidian: gone");
  }
  EXPECT_EQ(partials_to(1).size(), 1u) << "nothing more to the peer";
  contribute(1, index(1), all_reduce(), {1, 1});
  partial(1, index(4), all_reduce(), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_GROUP_FAILED), 2u);
  run_until(now_ + 300 * kMillisecond);
  EXPECT_GT(output_.frames(node_of_rank(0), GG_ERROR).size(), 1u) << "until it is acknowledged";
  for (size_t i = before; i < output_.sent.size(); ++i) EXPECT_EQ(output_.sent[i].find(GG_RESULT), nullptr);
  ack_everybody();
  const size_t told = output_.frames(node_of_rank(0), GG_ERROR).size();
  run_until(now_ + kSecond);
  EXPECT_EQ(output_.frames(node_of_rank(0), GG_ERROR).size(), told);
}

TEST_F(RecoveryTest, ErrorTextIsOfEvenLengthAndBounded) {
  form({.workers_of_site = {1}});
  fail_group(std::string(2001, 'x'));
  poll();
  ASSERT_EQ(output_.frames(0, GG_ERROR).size(), 1u);
  EXPECT_EQ(output_.frames(0, GG_ERROR)[0].payload.size(), 900u);
  TearDown();
  error_.reset();
  form({.workers_of_site = {1}});
  fail_group("odd");
  poll();
  EXPECT_EQ(output_.frames(0, GG_ERROR).back().payload.size(), 4u);
}

TEST_F(RecoveryTest, WorkerThatComesAfterTheFailureHearsOfIt) {
  form({.workers_of_site = {2}});
  const std::shared_ptr<core::Neighbour> late = nodes_[1].neighbour;
  nodes_[1].neighbour = nullptr;
  publish();
  fail_group("no");
  nodes_[1].neighbour = late;
  new_epoch(1, false, 0);
  publish();
  poll();
  EXPECT_EQ(output_.frames(1, GG_ERROR).size(), 1u);
}

TEST_F(RecoveryTest, VanishedGroupIsAStranger) {
  form({.workers_of_site = {2}});
  contribute(0, index(0), all_reduce(), {1, 1});
  group_.reset();
  publish();
  EXPECT_EQ(pool_.live(), 0);
  contribute(0, index(0), all_reduce(), {1, 1});
  EXPECT_EQ(packet_drops(GG_DROP_BAD_LABEL), 1u);
}

TEST_F(RecoveryTest, StallNamesMissingRanksAndSites) {
  form({.workers_of_site = {3, 1, 1}});
  contribute(1, index(0), all_reduce(), {1, 1});
  partial(2, index(0), all_reduce(), {1, 1});
  run_until(now_ + 9900 * kMillisecond);
  EXPECT_TRUE(events_.seen.empty());
  run_until(now_ + 500 * kMillisecond);
  ASSERT_EQ(events_.seen.size(), 1u);
  const core::Event& event = events_.seen[0];
  EXPECT_EQ(event.type, Type::kStall);
  EXPECT_EQ(event.index, index(0));
  EXPECT_EQ(event.call, all_reduce());
  ASSERT_EQ(event.missing_rank_count, 2);
  EXPECT_EQ(event.missing_ranks[0], 0);
  EXPECT_EQ(event.missing_ranks[1], 2);
  ASSERT_EQ(event.missing_site_count, 1);
  EXPECT_EQ(event.missing_sites[0], site_id(1));
  EXPECT_GE(event.waited_ns, 10 * kSecond);
  run_until(now_ + 20 * kSecond);
  EXPECT_EQ(events_.of(Type::kStall).size(), 3u) << "repeated every 10 s";
}

TEST_F(RecoveryTest, StallNamesWhoDoesNotAcknowledgeAndWhoIsNotReady) {
  form({.workers_of_site = {2}});
  contribute(0, index(0), broadcast(0), {1, 1});
  run_until(now_ + 10'500 * kMillisecond);
  ASSERT_FALSE(events_.seen.empty());
  ASSERT_EQ(events_.seen[0].missing_rank_count, 2) << "0 has not acknowledged its result, 1 has not called";
  ack_everybody();
  run_until(now_ + 10 * kSecond);
  ASSERT_EQ(events_.seen.back().missing_rank_count, 1);
  EXPECT_EQ(events_.seen.back().missing_ranks[0], 1);
  EXPECT_EQ(events_.seen.back().missing_site_count, 0);
}

TEST_F(RecoveryTest, StallNamesTheRootThatOwesAResult) {
  form({.workers_of_site = {1, 1, 1}, .exchange_limit_bytes = 0, .start = 0x3002});  // root is site 2
  contribute(0, index(0), all_reduce(), {1, 1});
  run_until(now_ + 10'500 * kMillisecond);
  ASSERT_FALSE(events_.seen.empty());
  EXPECT_EQ(events_.seen[0].missing_site_count, 1);
  EXPECT_EQ(events_.seen[0].missing_sites[0], site_id(2));
}

TEST_F(RecoveryTest, NoStallWhereNothingWaits) {
  form({.workers_of_site = {2, 1}});
  contribute(0, index(0), all_reduce(), {1, 1});
  contribute(1, index(0), all_reduce(), {1, 1});
  partial(1, index(0), all_reduce(), {1, 1});
  poll();
  ack_everybody();
  run_until(now_ + 30 * kSecond);
  EXPECT_TRUE(events_.seen.empty()) << "only the peer's watermark is missing: the peer reports";
}

TEST_F(RecoveryTest, TimeoutIsReportedOnce) {
  form({.workers_of_site = {2}});
  contribute(0, index(0), all_reduce(), {1, 1});
  run_until(now_ + 601 * kSecond);
  const auto timeouts = events_.of(Type::kTimeout);
  ASSERT_EQ(timeouts.size(), 1u);
  EXPECT_EQ(timeouts[0].missing_ranks[0], 1);
  run_until(now_ + 100 * kSecond);
  EXPECT_EQ(events_.of(Type::kTimeout).size(), 1u);
}

TEST_F(RecoveryTest, TimeoutThatFoundTheRingFullIsReportedAgain) {
  form({.workers_of_site = {2}});
  contribute(0, index(0), all_reduce(), {1, 1});
  events_.full = true;
  run_until(now_ + 601 * kSecond);
  events_.full = false;
  run_until(now_ + kSecond);
  EXPECT_EQ(events_.of(Type::kTimeout).size(), 1u);
}

TEST_F(RecoveryTest, AnnouncementsFindACrossSiteMismatchWithoutPayload) {
  // Each site waits for a broadcast of the other's rank: nobody sends anything but READY.
  form({.workers_of_site = {1, 1}});
  deliver(node_of_rank(0), {ready_frame(0, index(0), 1, broadcast(1))});
  run_until(now_ + 400 * kMillisecond);
  const auto announcements = output_.frames(node_of_site(1), GG_READY);
  ASSERT_FALSE(announcements.empty());
  EXPECT_EQ(announcements[0].header.index, index(0));
  EXPECT_EQ(announcements[0].header.root, 1);
  EXPECT_EQ(announcements[0].header.source, site_id(0));
  deliver(node_of_site(1), {call_frame(GG_READY, site_id(1), index(0), broadcast(0))});
  const auto mismatches = events_.of(Type::kMismatch);
  ASSERT_EQ(mismatches.size(), 1u);
  EXPECT_EQ(mismatches[0].rank, 0);
  EXPECT_EQ(mismatches[0].other_rank, 1);
  EXPECT_EQ(mismatches[0].call.root, 1);
  EXPECT_EQ(mismatches[0].other_call.root, 0);
}

TEST_F(RecoveryTest, AnnouncementThatAgreesOpensTheSlotAndIsAcknowledged) {
  form({.workers_of_site = {1, 1}});
  deliver(node_of_site(1), {call_frame(GG_READY, site_id(1), index(0), broadcast(0))});
  deliver(node_of_site(1), {ready_frame(site_id(1), index(0), 2, broadcast(0))});
  EXPECT_EQ(frame_drops(GG_DROP_BAD_FRAME), 1u) << "one index at a time";
  run_until(now_ + 2 * kMillisecond);
  EXPECT_EQ(output_.frames(node_of_site(1), GG_ACK).size(), 1u);
  run_until(now_ + 10'500 * kMillisecond);
  ASSERT_EQ(events_.of(Type::kStall).size(), 1u);
  EXPECT_EQ(events_.seen[0].missing_ranks[0], 0) << "our worker has not called";
}

class EpochTest : public RecoveryTest {
 protected:
  void SetUp() override {
    form({.workers_of_site = {1, 1}});
    // 0 and 1 are complete here, 2 has no partial of the peer; the peer has passed nothing.
    for (uint32_t i = 0; i < 3; ++i) contribute(0, index(i), all_reduce(), {1, 1});
    for (uint32_t i = 0; i < 2; ++i) partial(1, index(i), all_reduce(), {2, 2});
    poll();
    ack_everybody();
    ASSERT_EQ(partials_to(1).size(), 3u);
  }
};

TEST_F(EpochTest, PeerThatReturnsGetsEveryPartialFromLowOn) {
  new_epoch(node_of_site(1), true, site_id(1));
  publish();
  poll();
  ASSERT_EQ(partials_to(1).size(), 6u) << "also what the old epoch had acknowledged";
  EXPECT_EQ(output_.frames(node_of_site(1), GG_WATERMARK).back().header.index, index(2));
  EXPECT_EQ(output_.sent.back().link.number, 3u) << "packet numbers start anew: 3 chunks, the first with the watermark";
  // An old packet, by its link id, is a stranger's.
  gg_link old = link_to(node_of_site(1));
  old.link -= 1u << 16;
  deliver(old, packet_bytes(old, {watermark_frame(site_id(1), index(1), index(0))}, true),
          nodes_[node_of_site(1)].source);
  EXPECT_EQ(packet_drops(GG_DROP_UNKNOWN_LINK), 1u);
}

TEST_F(EpochTest, WatermarkOfTheOldEpochIsForgotten) {
  deliver(node_of_site(1), {watermark_frame(site_id(1), index(1), index(0))});
  ASSERT_EQ(low(), index(1));
  deliver(node_of_site(1), {watermark_frame(site_id(1), index(2), index(1))});
  ASSERT_EQ(low(), index(2));
  partial(1, index(2), all_reduce(), {2, 2});
  deliver(node_of_site(1), {watermark_frame(site_id(1), index(3), index(2))});
  ASSERT_EQ(low(), index(2)) << "our own worker has not acknowledged yet";
  new_epoch(node_of_site(1), true, site_id(1));  // the peer died; what it had passed above low it must do again
  publish();
  poll();
  ack(node_of_rank(0));
  EXPECT_EQ(low(), index(2));
  deliver(node_of_site(1), {watermark_frame(site_id(1), index(3), index(2))});
  EXPECT_EQ(low(), index(3));
}

TEST_F(EpochTest, OtherLabelOnTheSameLinkSendsAgainUnderIt) {
  site_labels_[1] = gg_label(site_id(1), 51);
  publish();
  poll();
  EXPECT_EQ(partials_to(1).size(), 6u);
  EXPECT_EQ(output_.sent.back().link.label, gg_label(site_id(1), 51));
}

TEST_F(EpochTest, WorkersNewLinkGetsWhatItHasNotAcknowledged) {
  partial(1, index(2), all_reduce(), {2, 2});
  poll();
  const size_t before = results_to(0).size();
  new_epoch(node_of_rank(0), false, 0);
  publish();
  poll();
  ASSERT_EQ(results_to(0).size(), before + 1);
  EXPECT_EQ(results_to(0).back().header.index, index(2));
}

// Labels become known one after the other when a group forms. The peer may be far ahead by then and, with its window
// full, has no reason to say its watermark again.
TEST_F(RecoveryTest, LabelThatComesLateDoesNotForgetThePeersWatermark) {
  core::CallParameters reduce = all_reduce();
  reduce.kind = GG_REDUCE;
  form({.workers_of_site = {1, 1}});
  site_labels_[1] = 0;
  publish();
  for (uint32_t i = 0; i < 8; ++i) partial(1, index(i), reduce, {1, 1});
  deliver(node_of_site(1), {watermark_frame(site_id(1), index(8), index(0))});
  site_labels_[1] = gg_label(site_id(1), 50);
  publish();
  for (uint32_t i = 0; i < 8; ++i) contribute(0, index(i), reduce, {1, 1});
  poll();
  ack_everybody();
  EXPECT_EQ(low(), index(8));
  run_until(now_ + 2 * kMillisecond);
  EXPECT_EQ(output_.frames(node_of_site(1), GG_WATERMARK).back().header.index, index(8));
}

TEST_F(RecoveryTest, LaneKeepsItsTimersWhenSnapshotsRepeat) {
  form({.workers_of_site = {2}});
  contribute(0, index(0), all_reduce(), {1, 1});
  for (int i = 0; i < 100; ++i) {
    publish();
    run_until(now_ + 100 * kMillisecond);
  }
  run_until(now_ + kSecond);
  EXPECT_EQ(events_.of(Type::kStall).size(), 1u);
}

}  // namespace
}  // namespace gradgate::test
