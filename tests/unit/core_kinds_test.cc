// SPDX-License-Identifier: Apache-2.0
// Every kind of call over one site, two sites (exchange) and three (exchange and sharded roots): who gets what.
// Sites of two workers: ranks 0 and 1 at site 11, 2 and 3 at site 12, 4 and 5 at site 13.
#include <functional>

#include "tests/unit/core_fixture.h"

namespace gradgate::test {
namespace {

using Floats = std::vector<float>;
using Set = std::vector<unsigned>;

core::CallParameters call_of(uint8_t kind, uint16_t root, uint16_t op = GG_SUM) {
  core::CallParameters call = all_reduce(8);
  call.kind = kind;
  call.root = root;
  call.op = kind == GG_ALL_GATHER || kind == GG_BROADCAST || kind == GG_BARRIER ? uint16_t{GG_OP_NONE} : op;
  if (kind == GG_BARRIER) {
    call.length = 0;
    call.elements = 0;
    call.dtype = GG_BYTES;
  }
  return call;
}

/// Powers of two, so that a sum tells who is in it: rank r contributes {2^r, 0}.
Floats value_of(unsigned rank) {
  return {static_cast<float>(1u << rank), 0};
}

struct Expectation {
  const char* name;
  unsigned sites, own;
  uint8_t kind;
  uint16_t root;
  uint16_t op;
  uint32_t exchange_limit;  ///< 0: sharded where there are three sites
  Set partials_to;          ///< sites that get our PARTIAL
  Set partials_from;        ///< sites whose PARTIAL we take
  int result_from;          ///< site that sends us the RESULT; -1: we compute it, -2: none comes here
  Set results_to_sites;     ///< sites that get our RESULT
  Set results_to;           ///< local ranks that get the RESULT
  float result;             ///< its first element
};

void PrintTo(const Expectation& e, std::ostream* out) {
  *out << e.name;
}

class KindsTest : public GatewayTest, public ::testing::WithParamInterface<Expectation> {};

TEST_P(KindsTest, WhoGetsWhat) {
  const Expectation& e = GetParam();
  GatewaySetup setup;
  setup.workers_of_site.assign(e.sites, 2);
  setup.own = e.own;
  setup.exchange_limit_bytes = e.exchange_limit;
  setup.start = 3u << 20;  // a multiple of three: the root of the first index is site 0
  form(setup);
  const core::CallParameters call = call_of(e.kind, e.root, e.op);
  const uint32_t i = index(0);
  const bool payload = e.kind != GG_BARRIER;

  for (unsigned site = 0; site < e.sites; ++site) {
    if (site == e.own) continue;
    const bool taken = std::find(e.partials_from.begin(), e.partials_from.end(), site) != e.partials_from.end();
    float sum = 0;
    for (unsigned rank = 2 * site; rank < 2 * site + 2; ++rank)
      if (is_source(call, static_cast<uint16_t>(rank))) sum += value_of(rank)[0];
    const uint64_t kept = lane_->counters().frames_kept.get();
    partial(site, i, call, payload ? Floats{sum, 0} : Floats{});
    EXPECT_EQ(lane_->counters().frames_kept.get(), kept + taken) << "PARTIAL of site " << site;
  }
  poll();
  for (unsigned rank = 2 * e.own; rank < 2 * e.own + 2; ++rank) {
    if (is_source(call, static_cast<uint16_t>(rank))) {
      contribute(static_cast<uint16_t>(rank), i, call, payload ? value_of(rank) : Floats{});
    } else {
      deliver(node_of_rank(static_cast<uint16_t>(rank)), {ready_frame(static_cast<uint16_t>(rank), i, 1, call)});
    }
  }
  poll();
  if (e.result_from >= 0) {
    for (const uint16_t rank : {uint16_t(2 * e.own), uint16_t(2 * e.own + 1)}) EXPECT_TRUE(results_to(rank).empty());
    deliver(node_of_site(static_cast<unsigned>(e.result_from)),
            {data_frame(GG_RESULT, site_id(static_cast<unsigned>(e.result_from)), i, call, Floats{e.result, 0})});
    poll();
  }

  for (unsigned site = 0; site < e.sites; ++site) {
    if (site == e.own) continue;
    const bool partial_expected = std::find(e.partials_to.begin(), e.partials_to.end(), site) != e.partials_to.end();
    const bool result_expected =
        std::find(e.results_to_sites.begin(), e.results_to_sites.end(), site) != e.results_to_sites.end();
    EXPECT_EQ(partials_to(site).size(), partial_expected) << "to site " << site;
    const std::vector<Frame> results = output_.frames(node_of_site(site), GG_RESULT);
    EXPECT_EQ(results.size(), result_expected) << "to site " << site;
    for (const Frame& frame : partials_to(site)) {
      EXPECT_EQ(frame.header.source, site_id(e.own));
      EXPECT_EQ(frame.header.kind, e.kind);
      EXPECT_EQ(frame.header.op, call.op);
      float sum = 0;
      uint16_t count = 0;
      for (unsigned rank = 2 * e.own; rank < 2 * e.own + 2; ++rank)
        if (is_source(call, static_cast<uint16_t>(rank))) sum += value_of(rank)[0], ++count;
      EXPECT_EQ(frame.header.count, count);
      EXPECT_EQ(floats_of(frame.payload), payload ? (Floats{sum, 0}) : Floats{}) << "undivided";
    }
    for (const Frame& frame : results) EXPECT_EQ(floats_of(frame.payload)[0], e.result);
  }
  for (unsigned rank = 2 * e.own; rank < 2 * e.own + 2; ++rank) {
    const bool expected = std::find(e.results_to.begin(), e.results_to.end(), rank) != e.results_to.end();
    const std::vector<Frame> results = results_to(static_cast<uint16_t>(rank));
    ASSERT_EQ(results.size(), expected) << "to rank " << rank;
    if (!expected) continue;
    EXPECT_EQ(results[0].header.root, e.root);
    EXPECT_EQ(results[0].payload.size(), call.length);
    if (payload) {
      EXPECT_EQ(floats_of(results[0].payload)[0], e.result);
    }
  }
  // Once the sinks here have it, this site has passed the index, and low follows when all others say so too.
  ack_everybody();
  for (unsigned site = 0; site < e.sites; ++site)
    if (site != e.own) deliver(node_of_site(site), {watermark_frame(site_id(site), i + 1, i)});
  EXPECT_EQ(low(), i + 1);
  EXPECT_EQ(group_->lanes[0]->slots_in_use(), 0u);
  EXPECT_EQ(pool_.live(), 0);
  EXPECT_TRUE(events_.seen.empty());
}

constexpr uint32_t kExchange = 65536;
INSTANTIATE_TEST_SUITE_P(
    OneSite, KindsTest,
    ::testing::Values(
        Expectation{"all_reduce", 1, 0, GG_ALL_REDUCE, 0, GG_SUM, kExchange, {}, {}, -1, {}, {0, 1}, 3},
        Expectation{"average", 1, 0, GG_ALL_REDUCE, 0, GG_AVERAGE, kExchange, {}, {}, -1, {}, {0, 1}, 1.5},
        Expectation{"reduce_scatter", 1, 0, GG_REDUCE_SCATTER, 1, GG_SUM, kExchange, {}, {}, -1, {}, {1}, 3},
        Expectation{"all_gather", 1, 0, GG_ALL_GATHER, 1, 0, kExchange, {}, {}, -1, {}, {0, 1}, 2},
        Expectation{"broadcast", 1, 0, GG_BROADCAST, 0, 0, kExchange, {}, {}, -1, {}, {0, 1}, 1},
        Expectation{"reduce", 1, 0, GG_REDUCE, 0, GG_AVERAGE, kExchange, {}, {}, -1, {}, {0}, 1.5},
        Expectation{"barrier", 1, 0, GG_BARRIER, 0, 0, kExchange, {}, {}, -1, {}, {0, 1}, 0}));

INSTANTIATE_TEST_SUITE_P(
    TwoSites, KindsTest,
    ::testing::Values(
        Expectation{"all_reduce", 2, 0, GG_ALL_REDUCE, 0, GG_SUM, 0, {1}, {1}, -1, {}, {0, 1}, 15},
        Expectation{"average", 2, 1, GG_ALL_REDUCE, 0, GG_AVERAGE, 0, {0}, {0}, -1, {}, {2, 3}, 3.75},
        Expectation{"reduce_scatter here", 2, 0, GG_REDUCE_SCATTER, 1, GG_SUM, 0, {}, {1}, -1, {}, {1}, 15},
        Expectation{"reduce_scatter there", 2, 0, GG_REDUCE_SCATTER, 2, GG_SUM, 0, {1}, {}, -2, {}, {}, 0},
        Expectation{"all_gather from here", 2, 0, GG_ALL_GATHER, 1, 0, 0, {1}, {}, -1, {}, {0, 1}, 2},
        Expectation{"all_gather from there", 2, 0, GG_ALL_GATHER, 3, 0, 0, {}, {1}, -1, {}, {0, 1}, 8},
        Expectation{"broadcast from here", 2, 1, GG_BROADCAST, 2, 0, 0, {0}, {}, -1, {}, {2, 3}, 4},
        Expectation{"broadcast from there", 2, 1, GG_BROADCAST, 0, 0, 0, {}, {0}, -1, {}, {2, 3}, 1},
        Expectation{"reduce to here", 2, 0, GG_REDUCE, 0, GG_AVERAGE, 0, {}, {1}, -1, {}, {0}, 3.75},
        Expectation{"reduce to there", 2, 0, GG_REDUCE, 3, GG_SUM, 0, {1}, {}, -2, {}, {}, 0},
        Expectation{"barrier", 2, 0, GG_BARRIER, 0, 0, 0, {1}, {1}, -1, {}, {0, 1}, 0}));

INSTANTIATE_TEST_SUITE_P(
    ThreeSites, KindsTest,
    ::testing::Values(
        Expectation{"exchange", 3, 1, GG_ALL_REDUCE, 0, GG_SUM, 8, {0, 2}, {0, 2}, -1, {}, {2, 3}, 63},
        Expectation{"sharded, root here", 3, 0, GG_ALL_REDUCE, 0, GG_SUM, 7, {}, {1, 2}, -1, {1, 2}, {0, 1}, 63},
        Expectation{"sharded, average", 3, 0, GG_ALL_REDUCE, 0, GG_AVERAGE, 0, {}, {1, 2}, -1, {1, 2}, {0, 1}, 10.5},
        Expectation{"sharded, root there", 3, 2, GG_ALL_REDUCE, 0, GG_SUM, 0, {0}, {}, 0, {}, {4, 5}, 63},
        Expectation{"reduce_scatter here", 3, 2, GG_REDUCE_SCATTER, 4, GG_SUM, 0, {}, {0, 1}, -1, {}, {4}, 63},
        Expectation{"reduce_scatter there", 3, 2, GG_REDUCE_SCATTER, 2, GG_SUM, 0, {1}, {}, -2, {}, {}, 0},
        Expectation{"all_gather from here", 3, 1, GG_ALL_GATHER, 3, 0, 0, {0, 2}, {}, -1, {}, {2, 3}, 8},
        Expectation{"all_gather from there", 3, 1, GG_ALL_GATHER, 5, 0, 0, {}, {2}, -1, {}, {2, 3}, 32},
        Expectation{"broadcast from here", 3, 0, GG_BROADCAST, 1, 0, 0, {1, 2}, {}, -1, {}, {0, 1}, 2},
        Expectation{"broadcast from there", 3, 0, GG_BROADCAST, 4, 0, 0, {}, {2}, -1, {}, {0, 1}, 16},
        Expectation{"reduce to here", 3, 0, GG_REDUCE, 1, GG_SUM, 0, {}, {1, 2}, -1, {}, {1}, 63},
        Expectation{"reduce to there", 3, 0, GG_REDUCE, 5, GG_SUM, 0, {2}, {}, -2, {}, {}, 0},
        Expectation{"barrier", 3, 1, GG_BARRIER, 0, 0, 0, {0, 2}, {0, 2}, -1, {}, {2, 3}, 0}));

class OrderTest : public GatewayTest {};

// 1 + 2^24 is 2^24 in float: the sum tells the order.
TEST_F(OrderTest, SumsInRankOrderWhateverArrivesFirst) {
  constexpr float kBig = 1 << 24;
  for (const bool backwards : {false, true}) {
    form({.workers_of_site = {4}});
    const std::vector<Floats> values{{kBig, 1}, {1, kBig}, {1, -kBig}, {-kBig, 1}};
    for (unsigned k = 0; k < 4; ++k) {
      const uint16_t rank = static_cast<uint16_t>(backwards ? 3 - k : k);
      contribute(rank, index(0), all_reduce(), values[rank]);
    }
    poll();
    ASSERT_FALSE(results_to(3).empty());
    EXPECT_EQ(floats_of(results_to(3).back().payload), (Floats{0, 1}));
    TearDown();
    output_.sent.clear();
  }
}

TEST_F(OrderTest, SumsPartialsInSiteOrder) {
  constexpr float kBig = 1 << 24;
  for (const bool own_first : {false, true}) {
    form({.workers_of_site = {1, 1, 1}, .own = 1});
    const auto own = [&] { contribute(1, index(0), all_reduce(), {1, kBig}); };
    if (own_first) own();
    partial(2, index(0), all_reduce(), {-kBig, 1});
    partial(0, index(0), all_reduce(), {kBig, 1});
    if (!own_first) own();
    poll();
    ASSERT_FALSE(results_to(1).empty());
    EXPECT_EQ(floats_of(results_to(1).back().payload), (Floats{0, kBig}));
    TearDown();
    output_.sent.clear();
  }
}

TEST_F(OrderTest, ZeroLengthNeedsNoMemory) {
  form({.workers_of_site = {2, 1}});
  const core::CallParameters empty = all_reduce(0);
  contribute(0, index(0), empty, {});
  contribute(1, index(0), empty, {});
  partial(1, index(0), empty, {});
  poll();
  EXPECT_EQ(pool_.live(), 0);
  ASSERT_EQ(results_to(0).size(), 1u);
  EXPECT_TRUE(results_to(0)[0].payload.empty());
  EXPECT_EQ(partials_to(1).size(), 1u);
}

TEST_F(OrderTest, RootsFollowTheWeights) {
  form({.workers_of_site = {1, 1, 1}, .exchange_limit_bytes = 0, .start = 0x1000});
  // Equal weights: index / lanes mod 3 is the root's position.
  for (uint32_t i = 0; i < 6; ++i) {
    contribute(0, index(i), all_reduce(), {1, 1});
    poll();
    const unsigned root = index(i) % 3;
    for (unsigned site = 1; site < 3; ++site) {
      unsigned found = 0;
      for (const Frame& frame : partials_to(site)) found += frame.header.index == index(i);
      EXPECT_EQ(found, root == site) << i;
    }
  }
}

TEST_F(OrderTest, OwnPartialIsBuiltEvenWhenTheResultIsKnown) {
  // Rule 7: another peer may need it.
  form({.workers_of_site = {1, 1, 1}, .own = 2, .exchange_limit_bytes = 0, .start = 0x3000});
  const uint32_t i = index(0);
  ASSERT_EQ(i % 3, 0u);
  deliver(node_of_site(0), {data_frame(GG_RESULT, site_id(0), i, all_reduce(), {7, 7})});
  poll();
  EXPECT_TRUE(results_to(2).empty()) << "the worker has not called yet";
  contribute(2, i, all_reduce(), {1, 1});
  poll();
  EXPECT_EQ(partials_to(0).size(), 1u);
  ASSERT_EQ(results_to(2).size(), 1u);
  EXPECT_EQ(floats_of(results_to(2)[0].payload), (Floats{7, 7}));
}

}  // namespace
}  // namespace gradgate::test
