// SPDX-License-Identifier: Apache-2.0
// What control makes of the data plane's events and silences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/metrics.h"
#include "tests/unit/control_world.h"

namespace gradgate::control::testing {
namespace {

using ::testing::HasSubstr;

core::Event event_of(World& world, uint16_t site, core::Event::Type type) {
  core::Event event;
  event.type = type;
  event.context = world.group(site).context;
  event.generation = world.entry(site).group->config.generation;
  event.call = {.call = 7, .elements = 1024, .kind = GG_ALL_REDUCE, .dtype = GG_FLOAT32, .op = GG_SUM};
  return event;
}

/// All local workers of the site were heard just now.
void hear(World& world, uint16_t site, std::initializer_list<uint16_t> ranks) {
  for (const core::GroupMember& member : world.entry(site).group->config.members)
    for (uint16_t rank : ranks)
      if (member.rank == rank)
        world.at(site).dataplane.snapshot()->neighbours[member.neighbour]->lanes[1]->heard(world.now());
}

TEST(Watchdog, AMismatchNamesBothCallsAndRanksEverywhere) {
  World world(2);
  world.run_group(4, 2);
  core::Event event = event_of(world, 1, core::Event::Type::kMismatch);
  event.rank = 0;
  event.other_rank = 3;
  event.other_call = {.call = 7, .elements = 2048, .root = 3, .kind = GG_BROADCAST, .dtype = GG_FLOAT32};
  world.at(1).dataplane.push(event);
  world.advance(100 * core::kMillisecond);
  for (uint16_t site : {1, 2})
    EXPECT_EQ(*world.entry(site).error,
              "group gpt/dp failed: rank 0 (site a) called all_reduce sum float32 of 1024 elements as call 7, rank 3 "
              "(site b) called broadcast of 2048 elements float32 from root 3");
}

TEST(Watchdog, CallsAsText) {
  EXPECT_EQ(call_text({.elements = 8, .root = 1, .kind = GG_REDUCE, .dtype = GG_BFLOAT16, .op = GG_AVERAGE}),
            "reduce average bfloat16 of 8 elements to root 1");
  EXPECT_EQ(call_text({.elements = 8, .kind = GG_ALL_GATHER, .dtype = GG_INT32}), "all_gather of 8 elements int32");
  EXPECT_EQ(call_text({.kind = GG_BARRIER}), "barrier");
  EXPECT_THAT(call_text({.kind = 200, .dtype = 200, .op = 60000}), HasSubstr("unknown kind"));
}

TEST(Watchdog, AStallNamesTheRankAtEverySiteAndEnds) {
  World world(2);
  world.run_group(4, 2);
  core::Event here = event_of(world, 2, core::Event::Type::kStall);
  here.waited_ns = 10 * core::kSecond;
  here.missing_rank_count = 1;
  here.missing_ranks[0] = 3;
  core::Event there = event_of(world, 1, core::Event::Type::kStall);
  there.waited_ns = 10 * core::kSecond;
  there.missing_site_count = 1;
  there.missing_sites[0] = 2;
  world.at(2).dataplane.push(here);
  world.advance(100 * core::kMillisecond);
  world.at(1).dataplane.push(there);
  world.advance(100 * core::kMillisecond);
  const std::string text =
      "group gpt/dp: call 7 (all_reduce sum float32 of 1024 elements) waits since 10 s for rank 3 (site b)";
  for (uint16_t site : {1, 2}) {
    EXPECT_EQ(world.group(site).stall, text);
    EXPECT_EQ(world.group(site).state, GroupState::kRunning);
  }
  Gateway& gateway = world.at(1);
  const View view{gateway.site, gateway.dataplane, gateway.builder, gateway.membership, gateway, 0, 0, 0};
  EXPECT_EQ(groups_json(view)[0]["stall"], text);
  EXPECT_GE(groups_json(view)[0]["stalled_s"].get<double>(), 10.0);
  EXPECT_THAT(metrics_text(view), HasSubstr("gradgate_group_stalled_seconds{tenant=\"lab\",job=\"gpt\",group=\"dp\""));
  gateway.dataplane.now += 20 * core::kSecond;
  EXPECT_EQ(groups_json(view)[0]["stalled_s"], 0.0) << "no further report came";
}

TEST(Watchdog, AStallWithoutRanksNamesTheSite) {
  World world(2);
  world.run_group(2, 1);
  core::Event event = event_of(world, 1, core::Event::Type::kStall);
  event.missing_site_count = 1;
  event.missing_sites[0] = 2;
  world.at(1).dataplane.push(event);
  world.advance(100 * core::kMillisecond);
  EXPECT_THAT(world.group(1).stall, HasSubstr("for site b"));
}

TEST(Watchdog, WaitingForARankThatHasLeftFailsTheGroup) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(3, 2);
  world.at(1).membership.leave("lab", joins[0]->group_id(), 1, world.now());
  world.at(2).membership.leave("lab", joins[0]->group_id(), 2, world.now());
  world.deliver();
  core::Event event = event_of(world, 1, core::Event::Type::kStall);
  event.missing_rank_count = 1;
  event.missing_ranks[0] = 1;
  event.missing_site_count = 1;
  event.missing_sites[0] = 2;
  world.at(1).dataplane.push(event);
  world.advance(100 * core::kMillisecond);
  EXPECT_EQ(*world.entry(1).error,
            "group gpt/dp failed: rank 1 (site a), rank 2 (site b) left before call 7 (all_reduce sum float32 of 1024 "
            "elements), which rank 0 (site a) called");
  EXPECT_EQ(world.group(2).state, GroupState::kFailed);
}

TEST(Watchdog, ACallThatTimesOutFailsTheGroup) {
  World world(1);
  world.run_group(2, 2);
  core::Event event = event_of(world, 1, core::Event::Type::kTimeout);
  event.missing_rank_count = 20;  // more than the event lists
  for (uint16_t i = 0; i < 16; ++i) event.missing_ranks[i] = i;
  world.at(1).dataplane.push(event);
  world.advance(100 * core::kMillisecond);
  EXPECT_THAT(*world.entry(1).error, HasSubstr("waited for 10 min for ranks 0, 1, 2"));
  EXPECT_THAT(*world.entry(1).error, HasSubstr("and 4 more"));
}

TEST(Watchdog, EventsOfGroupsThatAreGoneAreIgnored) {
  World world(1);
  world.run_group(1, 1);
  core::Event event = event_of(world, 1, core::Event::Type::kMismatch);
  ++event.generation;
  world.at(1).dataplane.push(event);
  event.context = 4000;
  world.at(1).dataplane.push(event);
  world.advance(100 * core::kMillisecond);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
}

TEST(Watchdog, ASilentWorkerFailsTheGroupWithRankAndSite) {
  World world(2);
  world.run_group(4, 2);
  for (int second = 1; second <= 10; ++second) {
    world.advance(core::kSecond);
    hear(world, 1, {0, 1});
    hear(world, 2, {2});
  }
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
  world.advance(core::kSecond);
  for (uint16_t site : {1, 2})
    EXPECT_THAT(*world.entry(site).error,
                HasSubstr("group gpt/dp failed: no packet from rank 3 (site b) for 10 s: the worker has died"));
  EXPECT_EQ(world.at(2).membership.buffers_used(), 0u);
}

TEST(Watchdog, AWorkerThatHasLeftMayBeSilent) {
  World world(1);
  const std::vector<Pending*> joins = world.run_group(2, 2);
  world.at(1).membership.leave("lab", joins[0]->group_id(), 1, world.now());
  for (int second = 1; second <= 20; ++second) {
    world.advance(core::kSecond);
    hear(world, 1, {0});
  }
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
}

TEST(Watchdog, APeerWithoutConnectionAndPacketsFailsItsGroups) {
  World world(3);
  world.run_group(2, 1);  // sites a and b
  world.disconnect(1, 2);
  const auto peer_heard = [&] { world.at(1).dataplane.snapshot()->neighbours[0]->lanes[0]->heard(world.now()); };
  for (int second = 1; second <= 200; ++second) {
    world.advance(core::kSecond);
    hear(world, 1, {0});
    hear(world, 2, {1});
    peer_heard();
    world.at(2).dataplane.snapshot()->neighbours[0]->lanes[0]->heard(world.now());
  }
  ASSERT_EQ(world.group(1).state, GroupState::kRunning) << "packets still come";
  for (int second = 1; second <= 121; ++second) {
    world.advance(core::kSecond);
    ASSERT_EQ(world.group(1).state, second < 121 ? GroupState::kRunning : GroupState::kFailed) << second;
    hear(world, 1, {0});
  }
  EXPECT_THAT(*world.entry(1).error, HasSubstr("no packet from the gateway of site b for 2 min"));
}

TEST(Metrics, EveryCounterAndReasonIsThere) {
  World world(2);
  world.run_group(2, 1);
  Gateway& gateway = world.at(1);
  gateway.dataplane.counters[1].chunks_summed.add(5);
  gateway.dataplane.counters[0].chunks_summed.add(2);
  gateway.dataplane.counters[0].frame_drops[GG_DROP_FUTURE].add(9);
  const View view{gateway.site, gateway.dataplane, gateway.builder, gateway.membership, gateway, 0, 3, 1};
  const std::string text = metrics_text(view);
  EXPECT_THAT(text, HasSubstr("gradgate_chunks_summed_total{lane=\"1\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("gradgate_drops_total{reason=\"future\",where=\"frame\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("gradgate_drops_total{reason=\"bad_magic\",where=\"port\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("gradgate_drops_total{reason=\"not_ours\",where=\"xdp\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("device=\"net_\\\"odd\\\\name\\\"\""));
  EXPECT_THAT(text, HasSubstr("gradgate_peer_up{site=\"b\"} 1\n"));
#define GG_EXPECT_FAMILY(name, help) \
  EXPECT_THAT(text, HasSubstr("# TYPE gradgate_" #name "_total counter\ngradgate_" #name "_total{lane=\"0\"}"));
  GG_LANE_COUNTERS(GG_EXPECT_FAMILY)
#undef GG_EXPECT_FAMILY
  const Json drops = drops_json(view);
  for (const char* where : {"packet", "frame", "port", "xdp", "texts"})
    EXPECT_EQ(drops[where].size(), GG_DROP_COUNT + 0u);
  const Json status = status_json(view);
  EXPECT_EQ(status["counters"]["chunks_summed"], 7);
  EXPECT_EQ(status["site"]["name"], "a");
  EXPECT_EQ(status["groups"], 1);
  EXPECT_EQ(status["peers"][0]["up"], true);
}

}  // namespace
}  // namespace gradgate::control::testing
