// SPDX-License-Identifier: Apache-2.0
// Frames between gateways and READYs: which are taken, which are refused under which name.
#include "tests/unit/core_fixture.h"

namespace gradgate::test {
namespace {

using Floats = std::vector<float>;

class PeerTest : public GatewayTest {
 protected:
  core::CallParameters broadcast(uint16_t root, uint32_t call = 0) {
    core::CallParameters c = all_reduce(8, call);
    c.kind = GG_BROADCAST;
    c.op = GG_OP_NONE;
    c.root = root;
    return c;
  }
  core::CallParameters reduce(uint16_t root) {
    core::CallParameters c = all_reduce();
    c.kind = GG_REDUCE;
    c.root = root;
    return c;
  }
  void watermark(unsigned site, uint32_t mark, uint32_t its_low) {
    deliver(node_of_site(site), {watermark_frame(site_id(site), mark, its_low)});
  }
};

TEST_F(PeerTest, PartialAtANonDecider) {
  form({.workers_of_site = {1, 1}});
  partial(1, index(0), reduce(1), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_ROOT), 1u);
  EXPECT_EQ(pool_.live(), 0);
}

TEST_F(PeerTest, PartialFromASiteWithoutASource) {
  form({.workers_of_site = {1, 1, 1}});
  partial(1, index(0), broadcast(2), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_NOT_A_SOURCE), 1u);
}

TEST_F(PeerTest, ResultFromANonRoot) {
  form({.workers_of_site = {1, 1, 1}, .exchange_limit_bytes = 0, .start = 0x3001});  // root is site 1
  deliver(node_of_site(2), {data_frame(GG_RESULT, site_id(2), index(0), all_reduce(), {1, 1})});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_ROOT), 1u);
  deliver(node_of_site(1), {data_frame(GG_RESULT, site_id(1), index(2), all_reduce(), {1, 1})});  // root is we
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_ROOT), 2u);
  partial(2, index(0), all_reduce(), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_ROOT), 3u);
  deliver(node_of_site(1), {data_frame(GG_RESULT, site_id(1), index(0), all_reduce(), {1, 1})});
  deliver(node_of_site(1), {data_frame(GG_RESULT, site_id(1), index(0), all_reduce(), {1, 1})});
  EXPECT_EQ(lane_->counters().frames_kept.get(), 1u);
  EXPECT_EQ(lane_->counters().frames_duplicate.get(), 1u);
}

TEST_F(PeerTest, ResultWhereSitesExchange) {
  form({.workers_of_site = {1, 1}});
  deliver(node_of_site(1), {data_frame(GG_RESULT, site_id(1), index(0), all_reduce(), {1, 1})});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_ROOT), 1u);
}

TEST_F(PeerTest, SiteMustBeTheLinksSite) {
  form({.workers_of_site = {1, 1, 1}});
  for (const uint16_t site : {site_id(2), site_id(0), uint16_t{99}})
    deliver(node_of_site(1), {data_frame(GG_PARTIAL, site, index(0), all_reduce(), {1, 1})});
  EXPECT_EQ(frame_drops(GG_DROP_WRONG_SOURCE), 3u);
  deliver(node_of_site(1), {data_frame(GG_CONTRIBUTION, site_id(1), index(0), all_reduce(), {1, 1})});
  EXPECT_EQ(frame_drops(GG_DROP_UNEXPECTED_FRAME), 1u);
}

TEST_F(PeerTest, DuplicatePartialAndMismatchAcrossSites) {
  form({.workers_of_site = {1, 2}});
  partial(1, index(0), all_reduce(), {1, 1});
  partial(1, index(0), all_reduce(), {5, 5});
  EXPECT_EQ(lane_->counters().frames_duplicate.get(), 1u);
  contribute(0, index(0), all_reduce(8, 3), {1, 1});
  const auto mismatches = events_.of(core::Event::Type::kMismatch);
  ASSERT_EQ(mismatches.size(), 1u);
  EXPECT_EQ(mismatches[0].rank, 1) << "a rank of the site that spoke first";
  EXPECT_EQ(mismatches[0].other_rank, 0);
}

TEST_F(PeerTest, PayloadFromANonSource) {
  form({.workers_of_site = {2}});
  contribute(1, index(0), broadcast(0), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_NOT_A_SOURCE), 1u);
  EXPECT_EQ(pool_.live(), 0);
}

TEST_F(PeerTest, ReadyRangesOverlapAndRepeat) {
  form({.workers_of_site = {2}});
  const core::CallParameters call = broadcast(0);
  const uint32_t node = node_of_rank(1);
  for (uint32_t i = 0; i < 6; ++i) contribute(0, index(i), call, {float(i), 0});
  poll();
  EXPECT_TRUE(results_to(1).empty()) << "no buffer there yet";
  deliver(node, {ready_frame(1, index(2), 3, call)});
  poll();
  EXPECT_EQ(results_to(1).size(), 3u);
  deliver(node, {ready_frame(1, index(2), 2, call)});
  EXPECT_EQ(lane_->counters().frames_duplicate.get(), 1u);
  deliver(node, {ready_frame(1, index(5), 4, call)});  // one old, three new
  poll();
  ASSERT_EQ(results_to(1).size(), 6u);
  ack_everybody();
  ASSERT_EQ(low(), index(6));
  deliver(node, {ready_frame(1, index(5), 4, call)});
  EXPECT_EQ(lane_->counters().frames_past.get(), 1u);
  deliver(node, {ready_frame(1, index(7), 4, call)});  // two past, two new
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 2u);
}

TEST_F(PeerTest, ReadyThatCannotBe) {
  form({.workers_of_site = {2}});
  const core::CallParameters call = broadcast(0);
  const uint32_t node = node_of_rank(1);
  deliver(node, {ready_frame(1, index(0), 0, call)});
  deliver(node, {ready_frame(1, index(8), 9, call)});
  deliver(node, {ready_frame(1, index(0), 1, all_reduce())});  // a source
  deliver(node, {ready_frame(1, index(0), 1, broadcast(1))});  // the root itself
  deliver(node, {ready_frame(1, index(0), 1, broadcast(2))});  // no such root
  Frame with_payload = data_frame(GG_READY, 1, index(0), call, {1, 1});
  deliver(node, {with_payload});
  EXPECT_EQ(frame_drops(GG_DROP_BAD_FRAME), 6u);
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
  deliver(node, {ready_frame(1, index(9), 3, call)});  // the last two are beyond the window
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u);
  contribute(0, index(7), broadcast(0, 1), {1, 1});
  EXPECT_EQ(events_.seen.size(), 1u) << "what was inside the window is compared";
}

TEST_F(PeerTest, WatermarksMoveLow) {
  form({.workers_of_site = {1, 1}});
  for (uint32_t i = 0; i < 3; ++i) {
    contribute(0, index(i), all_reduce(), {1, 1});
    partial(1, index(i), all_reduce(), {2, 2});
  }
  poll();
  ack_everybody();
  EXPECT_EQ(low(), index(0)) << "the peer has not passed anything";
  EXPECT_GT(pool_.live(), 0) << "the own partial is retained";
  watermark(1, index(2), index(0));
  EXPECT_EQ(low(), index(2));
  watermark(1, index(1), index(0));
  EXPECT_EQ(low(), index(2)) << "the serial maximum counts";
  watermark(1, index(3), index(2));
  EXPECT_EQ(low(), index(3));
  EXPECT_EQ(pool_.live(), 0);
  run_until(now_ + 2 * kMillisecond);
  const auto told = output_.frames(node_of_rank(0), GG_WATERMARK);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().header.index, index(3)) << "low is the workers' credit";
  const auto marks = output_.frames(node_of_site(1), GG_WATERMARK);
  ASSERT_FALSE(marks.empty());
  EXPECT_EQ(marks.back().header.index, index(3));
  EXPECT_EQ(marks.back().header.call, index(3));
}

TEST_F(PeerTest, WatermarksThatCannotBe) {
  form({.workers_of_site = {1, 1}});
  watermark(1, index(9), index(0));  // window is 8
  watermark(1, index(0) + 0x7FFFFFFF, index(0));
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 2u);
  watermark(1, index(3), index(1));  // low beyond our own watermark
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 3u);
  EXPECT_EQ(low(), index(0));
  watermark(1, index(8), index(0));  // the most there can be: it does not need us
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 3u);
  EXPECT_EQ(low(), index(0));
}

// C2 of the protocol review, with a WATERMARK instead of a payload: the peer knows a newer low and has moved on inside
// its window. Its frame says so; to refuse it would look like a loss.
TEST_F(PeerTest, WatermarkThatBringsANewerLowMayBeFurtherThanOurWindow) {
  form({.workers_of_site = {1, 1, 1}});
  for (uint32_t i = 0; i < 3; ++i) {
    contribute(0, index(i), all_reduce(), {1, 1});
    partial(1, index(i), all_reduce(), {2, 2});
    partial(2, index(i), all_reduce(), {2, 2});
  }
  poll();
  ack_everybody();
  ASSERT_EQ(low(), index(0));
  watermark(1, index(3 + 8), index(3));
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 0u);
  EXPECT_EQ(low(), index(3));
}

TEST_F(PeerTest, WatermarkOfAnotherLaneIsRefused) {
  form({.workers_of_site = {1, 1}, .lanes = 2, .start = 0x1000});
  watermark(1, index(1), index(0));
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 1u);
  contribute(0, index(1), all_reduce(), {1, 1});
  EXPECT_EQ(frame_drops(GG_DROP_BAD_LANE), 1u);
}

TEST_F(PeerTest, FrameBeyondOurWindowProvesANewerLow) {
  form({.workers_of_site = {1, 1}});
  for (uint32_t i = 0; i < 3; ++i) {
    contribute(0, index(i), all_reduce(), {1, 1});
    partial(1, index(i), all_reduce(), {2, 2});
  }
  poll();
  ack_everybody();
  ASSERT_EQ(low(), index(0));
  partial(1, index(10), all_reduce(), {2, 2});  // inside [3, 11) of somebody who knows that low is 3
  EXPECT_EQ(low(), index(3));
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 0u);
  partial(1, index(11), all_reduce(), {2, 2});
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u) << "index 3 is not complete here: nobody can know that it is";
}

TEST_F(PeerTest, LostWatermarkIsRepeatedWithTheCurrentValue) {
  form({.workers_of_site = {1}});
  contribute(0, index(0), all_reduce(), {1, 1});
  poll();
  ack_everybody();
  run_until(now_ + 2 * kMillisecond);  // WATERMARK 1, never acknowledged
  ASSERT_EQ(output_.frames(0, GG_WATERMARK).back().header.index, index(1));
  contribute(0, index(1), all_reduce(), {1, 1});
  poll();
  const uint64_t result_number = output_.sent.back().link.number;
  deliver(0, {ack_frame({{result_number, result_number}})});
  ASSERT_EQ(low(), index(2));
  run_until(now_ + 100 * kMillisecond);
  EXPECT_EQ(output_.frames(0, GG_WATERMARK).back().header.index, index(2));
}

}  // namespace
}  // namespace gradgate::test
