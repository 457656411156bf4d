// SPDX-License-Identifier: Apache-2.0
// One timer wheel per lane: a link or a group has one timer, not one per packet (DESIGN section 6).
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"

namespace gradgate::core {

/// Embedded in what is to be woken; fires once.
struct Timer {
  Nanoseconds deadline = kNever;
  Timer* next = nullptr;
  Timer** previous = nullptr;  ///< the pointer that points here; nullptr: not armed
  void* owner = nullptr;
  void (*fire)(void* owner, Nanoseconds now) = nullptr;
};

/// Hashed wheel (Varghese and Lauck, scheme 6): kSlots ticks of kTick; later deadlines wait for further rounds.
class TimerWheel {
 public:
  static constexpr Nanoseconds kTick = 64 * kMicrosecond;
  static constexpr uint32_t kSlots = 1024;

  /// Arms or moves the timer. A deadline in the past fires at the next advance().
  void arm(Timer& timer, Nanoseconds deadline) {
    if (timer.previous != nullptr) {
      if (timer.deadline == deadline) return;
      unlink(timer);
    }
    timer.deadline = deadline;
    if (deadline == kNever) return;
    const uint64_t tick = deadline / kTick < tick_ ? tick_ : deadline / kTick;
    link(timer, slots_[tick % kSlots]);
  }

  void disarm(Timer& timer) { arm(timer, kNever); }

  /// Fires what is due at `now`. A timer may arm itself or others while it fires.
  void advance(Nanoseconds now) {
    uint64_t tick = tick_;
    const uint64_t target = now / kTick < tick ? tick : now / kTick;
    if (tick + kSlots < target) tick = target - kSlots;  // one full round visits every slot
    // What is armed for the past meanwhile goes to a slot that is still to come.
    tick_ = target;
    for (; tick <= target; ++tick) fire_slot(slots_[tick % kSlots], now);
  }

  /// Earliest time at which advance() may have something to do; kNever if no timer is armed.
  Nanoseconds next_deadline() const {
    if (armed_ == 0) return kNever;
    Nanoseconds earliest = kNever;
    for (uint32_t i = 0; i < kSlots; ++i) {
      const uint64_t tick = tick_ + i;
      for (const Timer* t = slots_[tick % kSlots]; t != nullptr; t = t->next)
        if (t->deadline < earliest) earliest = t->deadline;
      // Nothing in a later slot of this round can be earlier than the end of this one.
      if (earliest != kNever && earliest < (tick + 1) * kTick) break;
    }
    return earliest;
  }

 private:
  void link(Timer& timer, Timer*& list) {
    timer.next = list;
    if (timer.next != nullptr) timer.next->previous = &timer.next;
    list = &timer;
    timer.previous = &list;
    ++armed_;
  }

  void unlink(Timer& timer) {
    *timer.previous = timer.next;
    if (timer.next != nullptr) timer.next->previous = timer.previous;
    timer.next = nullptr;
    timer.previous = nullptr;
    --armed_;
  }

  void fire_slot(Timer*& slot, Nanoseconds now) {
    // What fires may re-arm into this slot: take the due ones off first. They stay armed, in a list of their own, so
    // that what fires may also move or disarm them.
    Timer* due = nullptr;
    for (Timer* t = slot; t != nullptr;) {
      Timer* following = t->next;
      if (t->deadline <= now) {
        unlink(*t);
        link(*t, due);
      }
      t = following;
    }
    while (due != nullptr) {
      Timer* t = due;
      unlink(*t);
      t->deadline = kNever;
      t->fire(t->owner, now);
    }
  }

  std::array<Timer*, kSlots> slots_{};
  uint64_t tick_ = 0;
  uint32_t armed_ = 0;
};

}  // namespace gradgate::core
