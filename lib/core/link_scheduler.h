// SPDX-License-Identifier: Apache-2.0
// The turn of a lane's links: timers first, then whoever has something to send.
#pragma once

#include <cstdint>

#include "core/link.h"
#include "core/timer_wheel.h"

namespace gradgate::core {

struct LinkScheduler {
  /// Packets that one link sends before the next one's turn.
  static constexpr uint32_t kTurn = 16;

  TimerWheel wheel;
  Link* active = nullptr;

  /// Fires timers and serves the links, at most about `budget_packets` packets.
  void poll(Nanoseconds now, uint32_t budget_packets);
  /// 0: packets wait only for the next poll.
  Nanoseconds next_deadline() const { return active != nullptr ? 0 : wheel.next_deadline(); }
};

}  // namespace gradgate::core
