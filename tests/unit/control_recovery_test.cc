// SPDX-License-Identifier: Apache-2.0
// Gateways that restart while their groups run (DESIGN section 5, rule 7).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/control_world.h"

namespace gradgate::control::testing {
namespace {

using ::testing::HasSubstr;

/// `steps` calls of the lane's indices above the plan's start.
std::vector<uint32_t> low_after(const Json& plan, uint32_t steps) {
  std::vector<uint32_t> low;
  for (const Json& start : plan["start"]) low.push_back(start.get<uint32_t>() + steps * plan["lanes"].get<uint32_t>());
  return low;
}

std::vector<uint32_t> lane_lows(World& world, uint16_t site) {
  std::vector<uint32_t> low;
  for (const auto& lane : world.entry(site).group->lanes) low.push_back(lane->low());
  return low;
}

TEST(Recovery, OneSiteStartsAtTheHighestLowOfItsWorkers) {
  World world(1);
  const Json plan = world.run_group(2, 2)[0]->plan();
  world.kill(1);
  world.start(1);
  Pending& zero = world.join(1, 0, 2, {.restore_plan = plan, .low = low_after(plan, 3)});
  EXPECT_EQ(zero.status(), 0);
  EXPECT_EQ(world.group(1).state, GroupState::kRecovering);
  Pending& one = world.join(1, 1, 2, {.restore_plan = plan, .low = low_after(plan, 5)});
  ASSERT_EQ(zero.status(), 200) << zero.error();
  ASSERT_EQ(one.status(), 200);
  EXPECT_EQ(one.plan(), plan);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
  EXPECT_EQ(lane_lows(world, 1), low_after(plan, 5));
  EXPECT_EQ(world.entry(1).group->config.start, plan["start"].get<std::vector<uint32_t>>());
}

TEST(Recovery, APeerThatRunsTheGroupGetsTheNewLabelWhenTheSlotsAreInUse) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(4, 2);
  const Json plan = joins[0]->plan();
  // Contexts of the two lives differ.
  world.kill(2);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning) << "a lost connection alone fails nothing";
  const auto old_neighbour = world.at(1).dataplane.snapshot()->neighbours[0];
  world.start(2);
  EXPECT_NE(world.at(1).dataplane.snapshot()->neighbours[0], old_neighbour) << "a new epoch";
  EXPECT_EQ(world.entry(1).site_labels[1], 0u);
  Pending& other = world.join(2, 0, 1, {.job = "first"});
  ASSERT_EQ(other.status(), 200);
  world.at(2).dataplane.adopts = false;
  world.at(2).dataplane.adopt();
  Pending& two = world.join(2, 2, 4, {.restore_plan = plan, .low = low_after(plan, 1)});
  Pending& three = world.join(2, 3, 4, {.restore_plan = plan, .low = low_after(plan, 2)});
  world.deliver();
  EXPECT_EQ(two.status(), 0);
  EXPECT_EQ(world.entry(1).site_labels[1], 0u);
  world.at(2).dataplane.adopt();
  world.advance(core::kMillisecond);
  ASSERT_EQ(two.status(), 200);
  ASSERT_EQ(three.status(), 200);
  EXPECT_EQ(world.entry(1).site_labels[1], two.reply->body["group_label"].get<uint32_t>());
  EXPECT_NE(two.reply->body["group_label"], joins[2]->reply->body["group_label"]);
  const core::GroupEntry& entry = world.at(2).dataplane.snapshot()->groups[2];
  EXPECT_EQ(entry.site_labels[0], joins[0]->reply->body["group_label"].get<uint32_t>());
  EXPECT_EQ(entry.group->lanes[0]->low(), low_after(plan, 2)[0]);
  EXPECT_EQ(world.group(1).deadline, core::kNever);
  world.advance(9 * core::kSecond);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
}

TEST(Recovery, BothRestartTogetherInManyInterleavings) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    World world(2);
    const Json plan = world.run_group(4, 2)[0]->plan();
    world.kill(1);
    world.start(1);
    world.kill(2);
    world.start(2);
    std::vector<Pending*> joins;
    for (uint16_t i = 0; i < 4; ++i) {
      const auto rank = static_cast<uint16_t>((i * 3 + seed) % 4);
      joins.push_back(&world.join(static_cast<uint16_t>(1 + rank / 2), rank, 4,
                                  {.restore_plan = plan, .low = low_after(plan, rank)}));
      if (seed % 2 == 0) world.deliver(seed);
    }
    world.deliver(seed);
    for (Pending* join : joins) ASSERT_EQ(join->status(), 200) << "seed " << seed << ": " << join->error();
    for (uint16_t site : {1, 2}) EXPECT_EQ(lane_lows(world, site), low_after(plan, 3)) << "seed " << seed;
    EXPECT_EQ(world.entry(1).site_labels[1], gg_label(2, world.group(2).context));
    EXPECT_EQ(world.entry(2).site_labels[0], gg_label(1, world.group(1).context));
    EXPECT_EQ(world.group(1).deadline, core::kNever);
  }
}

TEST(Recovery, OfThreeSitesTwoRestart) {
  World world(3);
  const Json plan = world.run_group(3, 1)[0]->plan();
  world.kill(1);
  world.kill(3);
  world.start(3);
  Pending& two = world.join(3, 2, 3, {.restore_plan = plan, .low = low_after(plan, 1)});
  world.deliver();
  EXPECT_EQ(two.status(), 0) << "site a has not said its low";
  world.start(1);
  world.deliver();
  Pending& zero = world.join(1, 0, 3, {.restore_plan = plan, .low = low_after(plan, 4)});
  world.deliver();
  ASSERT_EQ(zero.status(), 200) << zero.error();
  ASSERT_EQ(two.status(), 200) << two.error();
  EXPECT_EQ(lane_lows(world, 1), low_after(plan, 4));
  EXPECT_EQ(lane_lows(world, 3), low_after(plan, 4));
  EXPECT_EQ(world.entry(2).site_labels[0], gg_label(1, world.group(1).context));
  EXPECT_EQ(world.entry(2).site_labels[2], gg_label(3, world.group(3).context));
}

TEST(Recovery, AConnectionLostWhileRecoveringIsMadeUpFor) {
  World world(2);
  const Json plan = world.run_group(2, 1)[0]->plan();
  world.kill(1);
  world.start(1);
  Pending& zero = world.join(1, 0, 2, {.restore_plan = plan, .low = low_after(plan, 0)});
  world.disconnect(1, 2);
  EXPECT_EQ(zero.status(), 0);
  world.connect(1, 2, false);
  world.deliver();
  EXPECT_EQ(zero.status(), 200);
}

TEST(Recovery, AWorkerWhoseConnectionBrokeGetsANewEpochInTheRunningGroup) {
  World world(1);
  const std::vector<Pending*> joins = world.run_group(2, 2);
  const auto before = world.at(1).dataplane.snapshot();
  Pending& back = world.join(1, 1, 2, {.restore_plan = joins[1]->plan(), .low = low_after(joins[1]->plan(), 0)});
  ASSERT_EQ(back.status(), 200);
  const uint32_t old_link = joins[1]->reply->body["remote_link"], link = back.reply->body["remote_link"];
  EXPECT_NE(link, old_link);
  const uint32_t index = core::Snapshot::neighbour_of_link(link);
  EXPECT_EQ(index, core::Snapshot::neighbour_of_link(old_link)) << "the same place of the table";
  EXPECT_NE(world.at(1).dataplane.snapshot()->neighbours[index], before->neighbours[index]);
  EXPECT_EQ(world.entry(1).group, before->groups[world.group(1).context].group) << "the slots stay";
  world.hang_up(*joins[1]);
  EXPECT_TRUE(world.group(1).members.at(1).connected) << "the old connection is not the rank's any more";
}

TEST(Recovery, RefusedForGroupsThatHaveFailedOrArePlannedOtherwise) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(2, 1);
  const Json plan = joins[0]->plan();
  const std::vector<uint32_t> low = low_after(plan, 0);
  Json other = plan;
  other["window"] = 32;
  EXPECT_EQ(world.join(1, 0, 2, {.restore_plan = other, .low = low}).code(), "group_failed");
  EXPECT_EQ(world.join(1, 1, 2, {.restore_plan = plan, .low = low}).code(), "bad_request") << "rank 1 is at site b";
  EXPECT_EQ(world.join(1, 0, 2, {.tenant = "other", .restore_plan = plan, .low = low}).code(), "bad_request");
  world.at(1).membership.fail(world.group(1), "for this test", world.now());
  world.deliver();
  world.advance(10 * core::kSecond);
  Pending& late = world.join(1, 0, 2, {.restore_plan = plan, .low = low});
  EXPECT_EQ(late.code(), "group_failed");
  EXPECT_THAT(late.error(), HasSubstr("for this test"));
  // The peer remembers too, for a gateway that restarted in between.
  world.kill(1);
  world.start(1);
  Pending& restarted = world.join(1, 0, 2, {.restore_plan = plan, .low = low});
  world.deliver();
  EXPECT_EQ(restarted.code(), "group_failed");
  EXPECT_THAT(restarted.error(), HasSubstr("for this test"));
}

TEST(Recovery, APeerThatDoesNotKnowTheGroupRefusesIt) {
  World world(2);
  const Json plan = world.run_group(2, 1)[0]->plan();
  world.kill(2);
  world.start(2);
  world.advance(121 * core::kSecond);
  world.kill(1);
  world.start(1);
  Pending& zero = world.join(1, 0, 2, {.restore_plan = plan, .low = low_after(plan, 0)});
  world.deliver();
  EXPECT_EQ(zero.status(), 409);
  EXPECT_THAT(zero.error(), HasSubstr("the gateway of site b does not know it any more"));
}

TEST(Recovery, RanksThatDoNotReturnAreNamedAtTheDeadline) {
  World world(2);
  const Json plan = world.run_group(4, 2)[0]->plan();
  for (uint16_t site : {1, 2}) world.at(site).site.group.worker_timeout_ns = 3600 * core::kSecond;
  world.kill(1);
  world.start(1);
  Pending& zero = world.join(1, 0, 4, {.restore_plan = plan, .low = low_after(plan, 0)});
  world.advance(119 * core::kSecond);
  EXPECT_EQ(zero.status(), 0);
  world.advance(1 * core::kSecond);
  EXPECT_EQ(zero.status(), 409);
  EXPECT_THAT(zero.error(), HasSubstr("rank 1 (site a), site b did not return within 2 min"));
  EXPECT_EQ(world.group(2).state, GroupState::kFailed);
}

}  // namespace
}  // namespace gradgate::control::testing
