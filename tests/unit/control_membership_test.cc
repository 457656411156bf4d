// SPDX-License-Identifier: Apache-2.0
// How groups form, leave and fail across one, two and three gateways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "control/admission.h"
#include "tests/unit/control_world.h"

namespace gradgate::control::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

uint16_t site_of(uint16_t rank) {
  return static_cast<uint16_t>(1 + rank / 2);
}

TEST(Forming, OneSiteAnswersWhenTheLastRankHasJoined) {
  World world(1);
  Pending& zero = world.join(1, 0, 2);
  EXPECT_EQ(zero.status(), 0);
  EXPECT_EQ(world.at(1).membership.forming().size(), 1u);
  Pending& one = world.join(1, 1, 2);
  ASSERT_EQ(zero.status(), 200);
  ASSERT_EQ(one.status(), 200);
  EXPECT_EQ(zero.plan(), one.plan());
  EXPECT_TRUE(world.at(1).membership.forming().empty());

  const Json& body = one.reply->body;
  EXPECT_EQ(body["site"], 1);
  EXPECT_EQ(body["gateway"]["address"], "10.1.0.1");
  EXPECT_EQ(body["group_label"].get<uint32_t>(), gg_label(1, 1));
  EXPECT_EQ(body["max_in_flight"], 64);
  const Json& plan = one.plan();
  EXPECT_EQ(plan["lanes"], 4);
  EXPECT_EQ(plan["window"], 128) << "512 slots over 4 lanes";
  for (uint32_t lane = 0; lane < 4; ++lane) EXPECT_EQ(plan["start"][lane].get<uint32_t>() % 4, lane);

  // The answer's link id is that of the worker's own neighbour, tied to its address.
  const auto snapshot = world.at(1).dataplane.snapshot();
  const uint32_t link = body["remote_link"].get<uint32_t>();
  const uint32_t index = core::Snapshot::neighbour_of_link(link);
  ASSERT_LT(index, snapshot->neighbours.size());
  const core::Neighbour& neighbour = *snapshot->neighbours[index];
  EXPECT_EQ(neighbour.local_link, link);
  EXPECT_EQ(neighbour.source, dataplane::source_tag({10, 1, 0, 11}, 40001));
  EXPECT_TRUE(neighbour.trailer_crc);
  EXPECT_FALSE(neighbour.peer);
  EXPECT_EQ(neighbour.lanes[3]->config().remote_link, 0xABC00001u);
  EXPECT_EQ(neighbour.lanes[3]->config().max_packet_bytes, 1472u);
  const dataplane::Endpoint& endpoint = world.at(1).dataplane.endpoint(index);
  EXPECT_EQ(endpoint.port, 1) << "the port whose subnet the worker is in";
  EXPECT_FALSE(endpoint.port_per_lane);
  EXPECT_EQ(world.entry(1).group->config.members.size(), 2u);
  EXPECT_EQ(world.entry(1).group->config.start, plan["start"].get<std::vector<uint32_t>>());
}

TEST(Forming, EveryOrderOfJoinsAtTwoSitesGivesTheSamePlan) {
  std::vector<uint16_t> order = {0, 1, 2, 3};
  uint32_t interleaving = 1;
  do {
    for (const bool deliver_between : {false, true}) {
      World world(2);
      std::vector<Pending*> joins(4);
      for (uint16_t rank : order) {
        joins[rank] = &world.join(site_of(rank), rank, 4);
        if (deliver_between) world.deliver(interleaving);
      }
      world.deliver(++interleaving);
      for (Pending* join : joins) ASSERT_EQ(join->status(), 200) << join->error();
      EXPECT_EQ(joins[0]->plan(), joins[3]->plan());
      EXPECT_EQ(joins[0]->plan()["sites"][1]["ranks"], Json({2, 3}));
      // Each side knows the label that the other assigned.
      EXPECT_EQ(world.entry(1).site_labels[1], gg_label(2, world.group(2).context));
      EXPECT_EQ(world.entry(2).site_labels[0], gg_label(1, world.group(1).context));
      EXPECT_TRUE(world.at(1).membership.forming().empty());
      EXPECT_TRUE(world.at(2).membership.forming().empty());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Forming, ThreeSitesInManyInterleavingsAndAgainUnderTheSameName) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    World world(3);
    for (int round = 0; round < 2; ++round) {
      std::vector<Pending*> joins;
      for (uint16_t i = 0; i < 6; ++i) {
        const auto rank = static_cast<uint16_t>((i * 5 + seed) % 6);
        joins.push_back(&world.join(site_of(rank), rank, 6));
        if (seed % 3 == 0) world.deliver_one(static_cast<uint16_t>(1 + i % 3), static_cast<uint16_t>(1 + (i + 1) % 3));
      }
      world.deliver(seed);
      for (Pending* join : joins) ASSERT_EQ(join->status(), 200) << "seed " << seed << ": " << join->error();
      const std::string id = joins[0]->group_id();
      for (Pending* join : joins) {
        EXPECT_EQ(join->group_id(), id);
        EXPECT_EQ(world.at(join->site).membership.leave("lab", id, join->rank, world.now()).status, 200);
      }
      world.deliver(seed);
      for (uint16_t site = 1; site <= 3; ++site) {
        EXPECT_TRUE(world.at(site).membership.groups().empty()) << "all have left";
        EXPECT_TRUE(world.at(site).membership.forming().empty());
        EXPECT_EQ(world.at(site).membership.buffers_used(), 0u);
      }
    }
  }
}

TEST(Forming, TheLowestSiteWithRanksProposes) {
  World world(3);
  Pending& two = world.join(2, 0, 2);
  Pending& three = world.join(3, 1, 2);
  world.deliver();
  ASSERT_EQ(two.status(), 200);
  ASSERT_EQ(three.status(), 200);
  for (const World::Seen& seen : world.seen) {
    if (seen.type != "form") continue;
    EXPECT_EQ(seen.from, 2);
    EXPECT_EQ(seen.to, 3);
  }
  EXPECT_TRUE(world.at(1).membership.groups().empty());
  EXPECT_TRUE(world.at(1).membership.forming().empty());
}

TEST(Forming, NobodyIsAnsweredBeforeEveryLcoreUsesTheSlots) {
  World world(2);
  world.at(2).dataplane.adopts = false;
  Pending& zero = world.join(1, 0, 2);
  Pending& one = world.join(2, 1, 2);
  world.deliver();
  EXPECT_EQ(zero.status(), 0);
  EXPECT_TRUE(world.at(2).membership.waits_for_adoption());
  world.advance(core::kMillisecond);
  EXPECT_EQ(one.status(), 0);
  world.at(2).dataplane.adopt();
  world.advance(core::kMillisecond);
  EXPECT_EQ(zero.status(), 200);
  EXPECT_EQ(one.status(), 200);
}

TEST(Refused, RankTakenHereThereAndInARunningGroup) {
  World world(2);
  world.join(1, 0, 3);
  Pending& again = world.join(1, 0, 3);
  EXPECT_EQ(again.status(), 409);
  EXPECT_EQ(again.code(), "rank_taken");
  EXPECT_THAT(again.error(), HasSubstr("rank 0 of group gpt/dp is taken by 10.1.0.10:40000 (site a)"));
  world.deliver();
  Pending& elsewhere = world.join(2, 0, 3);
  EXPECT_EQ(elsewhere.code(), "rank_taken");
  EXPECT_THAT(elsewhere.error(), HasSubstr("at site a"));
  world.join(2, 1, 3);
  world.join(2, 2, 3);
  world.deliver();
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
  Pending& running = world.join(1, 2, 3);
  EXPECT_EQ(running.code(), "rank_taken");
  EXPECT_THAT(running.error(), HasSubstr("this one at site b"));
}

TEST(Refused, RanksThatCrossOnTheWayStayWithTheLowerSite) {
  World world(2);
  Pending& lower = world.join(1, 0, 2);
  Pending& higher = world.join(2, 0, 2);
  world.deliver();
  EXPECT_EQ(lower.status(), 0);
  EXPECT_EQ(higher.code(), "rank_taken");
  world.join(2, 1, 2);
  world.deliver();
  EXPECT_EQ(lower.status(), 200);
}

TEST(Refused, RankBeyondSizeAndSizesThatDisagree) {
  World world(2);
  EXPECT_EQ(world.join(1, 2, 2).code(), "bad_request");
  world.join(1, 0, 4);
  Pending& here = world.join(1, 1, 5);
  EXPECT_EQ(here.code(), "size_mismatch");
  EXPECT_THAT(here.error(), HasSubstr("rank 1 says that group gpt/dp has 5 ranks, rank 0 (site a) says 4"));
  world.deliver();
  Pending& there = world.join(2, 1, 6);
  EXPECT_EQ(there.code(), "size_mismatch");
  EXPECT_THAT(there.error(), HasSubstr("rank 0 (site a) says 4"));
}

TEST(Refused, SizesThatCrossOnTheWay) {
  World world(2);
  Pending& lower = world.join(1, 0, 4);
  Pending& higher = world.join(2, 1, 5);
  world.deliver();
  EXPECT_EQ(lower.status(), 0);
  EXPECT_EQ(higher.code(), "size_mismatch");
}

TEST(Refused, TheNameOfAnotherTenantsGroup) {
  World world(1);
  world.join(1, 0, 2);
  EXPECT_EQ(world.join(1, 1, 2, {.tenant = "other"}).code(), "other_tenant");
  world.join(1, 1, 2);
  EXPECT_EQ(world.join(1, 0, 2, {.tenant = "other"}).code(), "other_tenant");
  EXPECT_EQ(world.join(1, 0, 2, {.tenant = "other", .job = "bert"}).status(), 0);
}

TEST(Refused, MemoryThatDoesNotFitSaysTheNumbers) {
  World world(2);
  // 2 workers + 2 sites + 1 = 5 buffers a slot; 16 slots x 4 lanes x 5 = 320 are the least.
  world.at(2).site.tenants[0].memory_bytes = 300 * 4096;
  Pending& zero = world.join(1, 0, 3);
  world.deliver();
  Pending& one = world.join(2, 1, 3);
  world.deliver();
  EXPECT_EQ(one.status(), 0) << "with one worker it needs 256 buffers";
  Pending& two = world.join(2, 2, 3);
  world.deliver();
  for (Pending* join : {&zero, &one, &two}) {
    EXPECT_EQ(join->status(), 507);
    EXPECT_EQ(join->code(), "no_memory");
    EXPECT_THAT(join->error(), HasSubstr("at least 320 buffers"));
    EXPECT_THAT(join->error(), HasSubstr("1200 KiB of the 1200 KiB of tenant lab"));
    EXPECT_THAT(join->error(), HasSubstr("15 slots per lane would fit"));
  }
  EXPECT_TRUE(world.at(1).membership.forming().empty());
  EXPECT_TRUE(world.at(2).membership.forming().empty());
}

TEST(Memory, TheWindowShrinksToWhatFitsEverywhereAndIsAccounted) {
  World world(2);
  world.at(2).dataplane.buffers = 1500;  // 32 slots x 4 lanes x 4 = 512 are at most half, twice as many are more
  const std::vector<Pending*> joins = world.run_group(2, 1);
  EXPECT_EQ(joins[0]->plan()["window"], 32);
  EXPECT_EQ(world.at(2).membership.buffers_used(), 512u);
  EXPECT_EQ(world.at(2).membership.tenant_bytes_used("lab"), 512u * 4096);
  EXPECT_EQ(world.at(2).membership.tenant_bytes_used("other"), 0u);
  // What the first group holds is not there for the second.
  Pending& second = world.join(2, 0, 1, {.job = "bert"});
  world.deliver();
  ASSERT_EQ(second.status(), 200) << second.error();
  EXPECT_EQ(second.plan()["window"], 32)
      << "988 buffers are left: 32 x 4 lanes x (1 + 1 + 1) = 384, twice as many are more than half";
}

TEST(Memory, TheWindowCoversThreeRoundTrips) {
  Demand demand;
  demand.lanes = 4;
  demand.sites = 2;
  EXPECT_EQ(wanted_window(demand), 128u);
  demand.bdp_bytes = 1.25e6;  // 1 Gbit/s x 10 ms: 3 x 1221 chunks -> 4096
  EXPECT_EQ(wanted_window(demand), 1024u);
  demand.sites = 3;  // 3.5 x 1221 = 4272 -> 8192
  EXPECT_EQ(wanted_window(demand), 2048u);
  demand.lanes = 64;
  demand.bdp_bytes = 0;
  EXPECT_EQ(wanted_window(demand), 16u) << "at least 16 per lane";
  demand.bdp_bytes = 1e15;
  EXPECT_EQ(wanted_window(demand), kMaxWindow);
}

TEST(Timeout, NamesTheRanksThatDidNotComeAtEverySite) {
  World world(3);
  Pending& zero = world.join(1, 0, 5);
  world.advance(1 * core::kSecond);
  Pending& two = world.join(2, 2, 5);
  world.deliver();
  world.disconnect(1, 3);
  world.advance(298 * core::kSecond);
  EXPECT_EQ(zero.status(), 0);
  world.advance(1 * core::kSecond);
  for (Pending* join : {&zero, &two}) {
    EXPECT_EQ(join->status(), 504);
    EXPECT_EQ(join->code(), "join_timeout");
    EXPECT_THAT(join->error(), HasSubstr("did not form within 5 min: ranks 1, 3 and 4 of 5 did not come"));
    EXPECT_THAT(join->error(), HasSubstr("rank 0 (site a), rank 2 (site b) waited"));
    EXPECT_THAT(join->error(), HasSubstr("site c is not connected"));
  }
}

TEST(Withdrawn, AWorkerThatGoesAwayBeforeTheGroupFormsFreesItsRank) {
  World world(2);
  Pending& gone = world.join(1, 0, 2);
  world.deliver();
  world.hang_up(gone);
  world.deliver();
  EXPECT_EQ(gone.status(), 0);
  EXPECT_TRUE(world.at(2).membership.forming().empty());
  world.join(2, 0, 2);
  Pending& one = world.join(1, 1, 2);
  world.deliver();
  EXPECT_EQ(one.status(), 200);
}

TEST(Withdrawn, AWorkerThatGoesAwayWhileSitesReserveMemory) {
  World world(2);
  world.at(2).dataplane.adopts = false;
  Pending& zero = world.join(1, 0, 2);
  Pending& one = world.join(2, 1, 2);
  world.deliver();
  ASSERT_EQ(world.group(1).state, GroupState::kPlanned);
  world.hang_up(one);
  world.deliver();
  EXPECT_EQ(zero.status(), 503);
  EXPECT_THAT(zero.error(), HasSubstr("rank 1 (site b) went away"));
  EXPECT_TRUE(world.at(1).membership.groups().empty());
  EXPECT_TRUE(world.at(2).membership.groups().empty());
  EXPECT_EQ(world.at(1).membership.buffers_used(), 0u);
}

TEST(PeerLost, WhileRanksGatherTheGroupWaits) {
  World world(2);
  Pending& zero = world.join(1, 0, 2);
  Pending& one = world.join(2, 1, 2);
  world.disconnect(1, 2);
  EXPECT_EQ(zero.status(), 0);
  world.connect(1, 2, false);
  world.deliver();
  EXPECT_EQ(zero.status(), 200);
  EXPECT_EQ(one.status(), 200);
}

TEST(PeerLost, WhileSitesReserveMemoryTheJoinsAreRefused) {
  World world(3);
  world.at(3).dataplane.adopts = false;
  std::vector<Pending*> joins = {&world.join(1, 0, 3), &world.join(2, 1, 3), &world.join(3, 2, 3)};
  world.deliver();
  world.kill(3);
  world.deliver();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(joins[i]->status(), 503);
    EXPECT_EQ(joins[i]->code(), "peer_lost");
    EXPECT_THAT(joins[i]->error(), HasSubstr("site c was lost"));
  }
  world.start(3);
  world.deliver();
  world.run_group(3, 1);
}

TEST(PeerLost, AStartThatGotLostFailsTheGroupWhereItRuns) {
  World world(2);
  Pending& zero = world.join(1, 0, 2);
  Pending& one = world.join(2, 1, 2);
  // Until site a has sent its start.
  while (zero.status() == 0) ASSERT_TRUE(world.deliver_one(1, 2) || world.deliver_one(2, 1));
  EXPECT_EQ(one.status(), 0);
  world.disconnect(1, 2);
  EXPECT_EQ(one.code(), "peer_lost");
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
  world.connect(1, 2, false);
  world.deliver();
  EXPECT_EQ(world.group(1).state, GroupState::kFailed);
}

TEST(Leave, FreesTheGroupWhenAllRanksHaveLeftEverywhere) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(4, 2);
  const std::string id = joins[0]->group_id();
  EXPECT_EQ(world.at(1).membership.leave("lab", id, 3, world.now()).status, 404) << "not at this site";
  EXPECT_EQ(world.at(1).membership.leave("other", id, 0, world.now()).status, 404) << "not this tenant's";
  for (uint16_t rank : {0, 1, 2}) {
    EXPECT_EQ(world.at(site_of(rank)).membership.leave("lab", id, rank, world.now()).status, 200);
    EXPECT_EQ(world.at(site_of(rank)).membership.leave("lab", id, rank, world.now()).status, 200) << "again";
  }
  world.deliver();
  EXPECT_NE(world.entry(1).group, nullptr);
  const uint32_t context = world.group(1).context;
  world.at(2).membership.leave("lab", id, 3, world.now());
  world.deliver();
  EXPECT_TRUE(world.at(1).membership.groups().empty());
  EXPECT_EQ(world.at(1).dataplane.snapshot()->groups[context].group, nullptr);
  EXPECT_EQ(world.at(1).membership.buffers_used(), 0u);
}

TEST(Leave, ARankThatLeftMayJoinTheNextGroupBeforeTheOthersHaveLeft) {
  World world(1);
  const std::vector<Pending*> joins = world.run_group(2, 2);
  world.at(1).membership.leave("lab", joins[0]->group_id(), 0, world.now());
  Pending& next = world.join(1, 0, 2);
  EXPECT_EQ(next.status(), 0);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning) << "rank 1 still uses it";
}

TEST(Failure, ReachesEverySiteAndAnotherJobStartsAtOnce) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(4, 2);
  world.at(2).membership.fail(world.group(2), "for this test", world.now());
  world.deliver();
  for (uint16_t site : {1, 2}) {
    ASSERT_NE(world.entry(site).error, nullptr);
    EXPECT_EQ(*world.entry(site).error, "group gpt/dp failed: for this test");
    EXPECT_EQ(world.at(site).membership.buffers_used(), 0u);
  }
  EXPECT_EQ(world.at(1).membership.leave("lab", joins[0]->group_id(), 0, world.now()).status, 409);
  std::vector<Pending*> again;
  for (uint16_t rank = 0; rank < 4; ++rank) again.push_back(&world.join(site_of(rank), rank, 4));
  world.deliver();
  for (Pending* join : again) EXPECT_EQ(join->status(), 200) << join->error();
  EXPECT_EQ(world.at(1).membership.groups().size(), 2u) << "the failed one lingers until its ERROR frames are out";
  EXPECT_NE(again[0]->reply->body["group_label"], joins[0]->reply->body["group_label"]);
  world.advance(3 * core::kSecond);
  EXPECT_EQ(world.group(1).state, GroupState::kRunning);
}

TEST(Failure, AJobThatWasKilledAndStartsAgainReplacesItsOldGroup) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(4, 2);
  Pending& impostor = world.join(1, 0, 4);
  EXPECT_EQ(impostor.code(), "rank_taken") << "its holder is still connected";
  for (Pending* join : joins) world.hang_up(*join);
  std::vector<Pending*> again;
  for (uint16_t rank = 0; rank < 4; ++rank) {
    again.push_back(&world.join(site_of(rank), rank, 4));
    world.deliver();
  }
  for (Pending* join : again) EXPECT_EQ(join->status(), 200) << join->error();
}

TEST(Failure, IsToldAgainAfterTheConnectionWasDown) {
  World world(2);
  world.run_group(2, 1);
  world.disconnect(1, 2);
  world.at(1).membership.fail(world.group(1), "alone", world.now());
  world.advance(5 * core::kSecond);
  EXPECT_EQ(world.group(2).state, GroupState::kRunning);
  world.connect(1, 2, false);
  world.deliver();
  EXPECT_EQ(world.group(2).state, GroupState::kFailed);
}

TEST(Stop, FailsGroupsEverywhereAndRefusesJoins) {
  World world(2);
  world.run_group(2, 1);
  Pending& waiting = world.join(1, 0, 2, {.job = "bert"});
  world.at(1).membership.stop(world.now());
  world.deliver();
  EXPECT_EQ(waiting.code(), "stopping");
  EXPECT_EQ(world.join(1, 0, 2).code(), "stopping");
  for (uint16_t site : {1, 2}) EXPECT_THAT(*world.entry(site).error, HasSubstr("gateway of site a is stopping"));
}

TEST(Peer, MalformedMessagesAreRefusedAndChangeNothing) {
  World world(2);
  const std::vector<Pending*> joins = world.run_group(2, 1);
  const std::string id = joins[0]->group_id();
  const char* bad[] = {
      R"([])",
      R"({})",
      R"({"type":7})",
      R"({"type":"nonsense"})",
      R"({"type":"members"})",
      R"({"type":"members","tenant":"lab","job":"x y","group":"g","size":2,"ranks":[0],"window":16,"lanes":4,"chunk_bytes":1024})",
      R"({"type":"members","tenant":"lab","job":"x","group":"g","size":2,"ranks":[2],"window":16,"lanes":4,"chunk_bytes":1024})",
      R"({"type":"members","tenant":"lab","job":"x","group":"g","size":70000,"ranks":[2],"window":16,"lanes":4,"chunk_bytes":1024})",
      R"({"type":"form","plan":{}})",
      R"({"type":"formed","group_id":"short","label":1})",
      R"({"type":"formed","group_id":"0123456789abcdef","label":1})",
      R"({"type":"left","group_id":"0123456789abcdef"})",
      R"({"type":"recover","group_id":"0123456789abcdef","plan":[],"low":[]})",
      R"({"type":"failed","group_id":1})",
      R"({"type":"refuse","tenant":"lab","job":"x","group":"g","code":"c","error":"e","status":-5})"};
  for (const char* text : bad)
    EXPECT_THROW(world.at(1).membership.peer_message(2, Json::parse(text), world.now()), BadMessage) << text;
  // A site may speak for its own ranks and groups only.
  const Json left = {{"type", "left"}, {"group_id", id}, {"ranks", {0, 1}}};
  world.at(1).membership.peer_message(2, left, world.now());
  EXPECT_EQ(world.group(1).left, RankSet{1});
}

TEST(Peer, ParametersOfItsLinks) {
  World world(3);
  const auto snapshot = world.at(2).dataplane.snapshot();
  const core::Neighbour& peer = *snapshot->neighbours[1];  // site c
  EXPECT_TRUE(peer.peer);
  EXPECT_EQ(peer.site, 3);
  EXPECT_EQ(core::Snapshot::neighbour_of_link(peer.local_link), 1u);
  EXPECT_EQ(peer.source, dataplane::source_tag({198, 51, 100, 3}, 0));
  EXPECT_NE(peer.budget, nullptr);
  EXPECT_EQ(peer.budget->interval_ns(), 1'250'000u);
  EXPECT_EQ(peer.budget->granted(0), 250'000'000u);
  const core::LinkConfig& link = peer.lanes[2]->config();
  EXPECT_EQ(link.link_label, gg_label(3, 0));
  EXPECT_EQ(link.initial_rtt_ns, 10 * core::kMillisecond);
  EXPECT_EQ(link.max_in_flight, 1024u) << "2 x 1.25 MB / 1 KiB / 4 lanes = 611";
  EXPECT_TRUE(link.trailer_crc);
  EXPECT_TRUE(link.peer);
  EXPECT_TRUE(world.at(2).dataplane.endpoint(1).port_per_lane);
}

TEST(Snapshots, IndicesAndContextsAreNotReusedTooEarly) {
  World world(1);
  FakeDataplane& dataplane = world.at(1).dataplane;
  const auto cycle = [&](const std::string& job) {
    Pending& join = world.join(1, 0, 1, {.job = job});
    world.advance(core::kMillisecond);
    EXPECT_EQ(join.status(), 200);
    world.at(1).membership.leave("lab", join.group_id(), 0, world.now());
    return std::pair(core::Snapshot::neighbour_of_link(join.reply->body["remote_link"].get<uint32_t>()),
                     gg_label_context(join.reply->body["group_label"].get<uint32_t>()));
  };
  const auto first = cycle("j");
  dataplane.adopts = false;
  dataplane.adopt();
  const uint64_t before = world.at(1).builder.snapshots_held();
  // The lcores have adopted the removal: the index is free, the context in quarantine.
  Pending& second = world.join(1, 0, 1);
  const auto snapshot = dataplane.snapshot();
  EXPECT_EQ(second.status(), 0) << "not adopted yet";
  EXPECT_NE(snapshot->neighbours[first.first], nullptr);
  EXPECT_NE(world.group(1).context, first.second);
  EXPECT_GT(world.at(1).builder.snapshots_held(), before) << "an lcore may still use the old one";
  dataplane.adopt();
  world.advance(core::kMillisecond);
  ASSERT_EQ(second.status(), 200);
  EXPECT_EQ(world.at(1).builder.snapshots_held(), 1u);
  // Not adopted: a fresh index.
  world.at(1).membership.leave("lab", second.group_id(), 0, world.now());
  world.join(1, 0, 1);
  EXPECT_EQ(dataplane.snapshot()->neighbours.size(), first.first + 2u);
  dataplane.adopt();
  dataplane.adopts = true;
  world.advance(121 * core::kSecond);
  EXPECT_EQ(cycle("k").second, first.second) << "out of quarantine";
}

}  // namespace
}  // namespace gradgate::control::testing
