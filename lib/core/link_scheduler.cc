// SPDX-License-Identifier: Apache-2.0
#include "core/link_scheduler.h"

#include <algorithm>

namespace gradgate::core {

void LinkScheduler::poll(Nanoseconds now, uint32_t budget_packets) {
  wheel.advance(now);
  bool output_full = false;
  // Links list themselves in front; served in the order in which they came, or the last ones would starve the first.
  Link* turn = nullptr;
  for (Link* link = active; link != nullptr;) {
    Link* following = link->next_active;
    link->next_active = turn;
    turn = link;
    link = following;
  }
  active = nullptr;
  Link* served = nullptr;
  Link** served_end = &served;
  while (turn != nullptr) {
    Link* link = turn;
    turn = link->next_active;
    link->next_active = nullptr;
    const uint32_t share = std::min(kTurn, budget_packets);
    const uint32_t before = link->in_flight();
    if (!output_full) output_full = !link->service(now, share);
    const uint32_t sent = link->in_flight() - std::min(before, link->in_flight());
    budget_packets -= std::min(budget_packets, sent);
    if (sent > 0 && link->wants_turn(now)) {
      *served_end = link;
      served_end = &link->next_active;
      continue;
    }
    link->in_active_list = false;
    if (link->wants_turn(now)) link->list();
  }
  // Those that had their turn stand behind those that budget or output left out.
  while (served != nullptr) {
    Link* link = served;
    served = link->next_active;
    link->in_active_list = false;
    link->list();
  }
}

}  // namespace gradgate::core
