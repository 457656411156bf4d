// SPDX-License-Identifier: Apache-2.0
#include "core/link_scheduler.h"

#include <algorithm>

namespace gradgate::core {

void LinkScheduler::poll(Nanoseconds now, uint32_t budget_packets) {
  wheel.advance(now);
  output_full = false;
  // Links list themselves in front; served in the order in which they came, or the last ones would starve the first.
  Link* turn = nullptr;
  for (Link* link = active; link != nullptr;) {
    Link* following = link->next_active;
    link->next_active = turn;
    turn = link;
    link = following;
  }
  active = nullptr;
  while (turn != nullptr) {
    Link* link = turn;
    turn = link->next_active;
    link->next_active = nullptr;
    link->in_active_list = false;
    const uint32_t share = std::min(kTurn, budget_packets);
    const uint32_t before = link->in_flight();
    if (!output_full) output_full = !link->service(now, share);
    budget_packets -= std::min(budget_packets, link->in_flight() - std::min(before, link->in_flight()));
    if (link->wants_turn(now)) link->list();
  }
}

}  // namespace gradgate::core
