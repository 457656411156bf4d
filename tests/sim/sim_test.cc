// SPDX-License-Identifier: Apache-2.0
// Seeds by the hundred. GRADGATE_SIM_SEEDS=N runs N of each; GRADGATE_SIM_SEED=S replays one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/world.h"

namespace gradgate::sim {
namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void run_seeds(const char* what, uint64_t count, unsigned max_restarts) {
  Outcome sum;
  uint64_t first = 0, last = from_environment("GRADGATE_SIM_SEEDS", count);
  if (const uint64_t one = from_environment("GRADGATE_SIM_SEED", ~uint64_t{0}); one != ~uint64_t{0}) {
    first = one;
    last = one + 1;
  }
  unsigned violations = 0;
  for (uint64_t seed = first; seed < last && violations < 5; ++seed) {
    const Scenario scenario = Scenario::draw(seed, max_restarts);
    const Outcome outcome = World(scenario).run();
    if (!outcome.violation.empty()) {
      ++violations;
      ADD_FAILURE() << outcome.violation << "\n  " << scenario.describe() << "\n  replay: GRADGATE_SIM_SEED=" << seed
                    << " build/tests/sim/sim_test --gtest_filter=*" << what;
    }
    sum.events += outcome.events;
    sum.packets += outcome.packets;
    sum.lost += outcome.lost;
    sum.duplicated += outcome.duplicated;
    sum.reordered += outcome.reordered;
    sum.restarts += outcome.restarts;
    sum.results += outcome.results;
  }
  std::printf("%s: %llu seeds, %llu results, %llu packets, %llu lost, %llu duplicated, %llu reordered, %llu restarts\n",
              what, static_cast<unsigned long long>(last - first), static_cast<unsigned long long>(sum.results),
              static_cast<unsigned long long>(sum.packets), static_cast<unsigned long long>(sum.lost),
              static_cast<unsigned long long>(sum.duplicated), static_cast<unsigned long long>(sum.reordered),
              static_cast<unsigned long long>(sum.restarts));
}

TEST(Sim, ResultsAreTheRankOrderSum) {
  run_seeds("ResultsAreTheRankOrderSum", 150, 0);
}

TEST(Sim, GatewaysMayRestart) {
  run_seeds("GatewaysMayRestart", 150, 3);
}

}  // namespace
}  // namespace gradgate::sim
