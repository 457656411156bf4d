// SPDX-License-Identifier: Apache-2.0
// ReceiveWindow and TimerWheel.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "core/receive_window.h"
#include "core/timer_wheel.h"

namespace gradgate::core {
namespace {

using Range = ReceiveWindow::Range;

std::vector<std::pair<uint64_t, uint64_t>> ranges_of(const ReceiveWindow& window, uint32_t room = 32) {
  Range out[GG_MAX_ACK_RANGES];
  const uint32_t count = window.ranges(out, room);
  std::vector<std::pair<uint64_t, uint64_t>> found;
  for (uint32_t i = 0; i < count; ++i) found.emplace_back(out[i].first, out[i].last);
  return found;
}
using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(ReceiveWindow, InOrderIsNoGap) {
  ReceiveWindow window;
  for (uint64_t n = 1; n <= 200; ++n) {
    ASSERT_FALSE(window.seen(n));
    ASSERT_FALSE(window.record(n)) << n;
    ASSERT_TRUE(window.seen(n));
  }
  EXPECT_EQ(ranges_of(window), (Ranges{{1, 200}}));
}

TEST(ReceiveWindow, LeavingAndFillingAGap) {
  ReceiveWindow window;
  EXPECT_FALSE(window.record(1));
  EXPECT_TRUE(window.record(4));  // leaves 2 and 3 out
  EXPECT_FALSE(window.seen(2));
  EXPECT_FALSE(window.seen(3));
  EXPECT_EQ(ranges_of(window), (Ranges{{4, 4}, {1, 1}}));
  EXPECT_TRUE(window.record(3));
  EXPECT_TRUE(window.record(2));
  EXPECT_EQ(ranges_of(window), (Ranges{{1, 4}}));
  EXPECT_FALSE(window.record(5));
}

TEST(ReceiveWindow, ZeroAndTooOldCountAsSeen) {
  ReceiveWindow window;
  EXPECT_TRUE(window.seen(0));
  window.record(10'000);
  EXPECT_TRUE(window.seen(10'000 - ReceiveWindow::kBits));
  EXPECT_FALSE(window.seen(10'000 - ReceiveWindow::kBits + 1));
}

TEST(ReceiveWindow, JumpsForgetWhatWasBefore) {
  for (const uint64_t jump :
       {ReceiveWindow::kBits - 1, ReceiveWindow::kBits, ReceiveWindow::kBits + 1, uint64_t{1} << 33}) {
    ReceiveWindow window;
    for (uint64_t n = 1; n <= 100; ++n) window.record(n);
    window.record(100 + jump);
    // Nothing of the jumped part is seen, whatever stood in the same bits.
    for (uint64_t n = 100 + jump - ReceiveWindow::kBits + 1; n < 100 + jump; ++n)
      ASSERT_EQ(window.seen(n), n <= 100) << "jump " << jump << " number " << n;
  }
}

TEST(ReceiveWindow, RangesAgreeWithASetOverManyWindows) {
  // Long runs with few holes, so that the whole-word path and its edges are taken.
  ReceiveWindow window;
  std::set<uint64_t> model;
  uint64_t state = 1;
  for (uint64_t n = 1; n < 3 * ReceiveWindow::kBits; ++n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 33) % 150 != 0) {
      window.record(n);
      model.insert(n);
    }
    if (n % 97 != 0) continue;
    const uint64_t largest = *model.rbegin();
    const uint64_t floor = largest >= ReceiveWindow::kBits ? largest - ReceiveWindow::kBits + 1 : 1;
    Ranges expected;
    for (auto it = model.rbegin(); it != model.rend() && *it >= floor; ++it) {
      if (!expected.empty() && expected.back().first == *it + 1) {
        expected.back().first = *it;
      } else if (expected.size() == GG_MAX_ACK_RANGES) {
        break;
      } else {
        expected.emplace_back(*it, *it);
      }
    }
    ASSERT_EQ(ranges_of(window), expected) << "after " << n;
  }
}

TEST(ReceiveWindow, FullWindowIsOneRange) {
  for (uint64_t last = ReceiveWindow::kBits - 70; last < 2 * ReceiveWindow::kBits; last += 63) {
    ReceiveWindow window;
    for (uint64_t n = 1; n <= last; ++n) window.record(n);
    const uint64_t floor = last >= ReceiveWindow::kBits ? last - ReceiveWindow::kBits + 1 : 1;
    ASSERT_EQ(ranges_of(window), (Ranges{{floor, last}}));
  }
}

TEST(ReceiveWindow, RoomLimitsRanges) {
  ReceiveWindow window;
  for (uint64_t n = 2; n <= 20; n += 2) window.record(n);
  EXPECT_EQ(ranges_of(window, 3), (Ranges{{20, 20}, {18, 18}, {16, 16}}));
}

TEST(ReceiveWindow, ExpandsAsRfc9000A3) {
  // The example of RFC 9000 appendix A.3 with 16 bits, scaled to our 32: expected 0xa82f30eb, low half 0x9b32.
  EXPECT_EQ(ReceiveWindow::expand_number(0xa82f'0000'30ebu, 0x0000'9b32u), 0xa82f'0000'9b32u);
  EXPECT_EQ(ReceiveWindow::expand_number(1, 1), 1u);
  EXPECT_EQ(ReceiveWindow::expand_number(1, 0xFFFFFFFFu), 0xFFFFFFFFu) << "nothing below zero";
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  EXPECT_EQ(ReceiveWindow::expand_number(kWrap - 1, 0), kWrap);
  EXPECT_EQ(ReceiveWindow::expand_number(kWrap - 1, 5), kWrap + 5);
  EXPECT_EQ(ReceiveWindow::expand_number(kWrap + 3, 0xFFFFFFFFu), kWrap - 1) << "late, from before the wrap";
  EXPECT_EQ(ReceiveWindow::expand_number(kWrap + 3, 2), kWrap + 2);
  EXPECT_EQ(ReceiveWindow::expand_number(5 * kWrap, 0x80000000u), 5 * kWrap + 0x80000000u);
  EXPECT_EQ(ReceiveWindow::expand_number(5 * kWrap, 0x80000001u), 4 * kWrap + 0x80000001u);
}

TEST(ReceiveWindow, WalksThroughTheWrapOfTheLowHalf) {
  ReceiveWindow window;
  const uint64_t start = (uint64_t{3} << 32) - 100;
  window.record(start);
  for (uint64_t n = start + 1; n < start + 200; ++n) {
    ASSERT_EQ(window.expand(static_cast<uint32_t>(n)), n);
    ASSERT_FALSE(window.record(n));
  }
}

struct Alarm {
  explicit Alarm(std::vector<int>& log, int id) : log_(log), id_(id) {
    timer.owner = this;
    timer.fire = [](void* owner, Nanoseconds now) { static_cast<Alarm*>(owner)->fired(now); };
  }
  void fired(Nanoseconds now) {
    log_.push_back(id_);
    last = now;
    if (then) then(now);
  }
  Timer timer;
  Nanoseconds last = 0;
  std::function<void(Nanoseconds)> then;

 private:
  std::vector<int>& log_;
  int id_;
};

constexpr Nanoseconds kTick = TimerWheel::kTick;
constexpr Nanoseconds kRound = kTick * TimerWheel::kSlots;

TEST(TimerWheel, EmptyHasNoDeadline) {
  TimerWheel wheel;
  EXPECT_EQ(wheel.next_deadline(), kNever);
  wheel.advance(5 * kSecond);
  EXPECT_EQ(wheel.next_deadline(), kNever);
}

TEST(TimerWheel, FiresAtItsTimeAndNotBefore) {
  // Same slot as now, next slot, last slot of the round, beyond one round, far beyond.
  for (const Nanoseconds delay :
       {Nanoseconds{1}, kTick, kRound - 1, kRound, kRound + 1, 5 * kRound + 7, 600 * kSecond}) {
    TimerWheel wheel;
    std::vector<int> log;
    Alarm alarm(log, 1);
    const Nanoseconds start = 3 * kSecond + 12'345;
    wheel.advance(start);
    wheel.arm(alarm.timer, start + delay);
    EXPECT_EQ(wheel.next_deadline(), start + delay);
    wheel.advance(start + delay - 1);
    EXPECT_TRUE(log.empty()) << delay;
    EXPECT_EQ(wheel.next_deadline(), start + delay);
    wheel.advance(start + delay);
    EXPECT_EQ(log, (std::vector<int>{1})) << delay;
    EXPECT_EQ(wheel.next_deadline(), kNever);
    wheel.advance(start + delay + 2 * kRound);
    EXPECT_EQ(log.size(), 1u) << "fires once";
  }
}

TEST(TimerWheel, PastDeadlineFiresAtTheNextAdvance) {
  TimerWheel wheel;
  std::vector<int> log;
  Alarm alarm(log, 1);
  wheel.advance(kSecond);
  wheel.arm(alarm.timer, 5);
  EXPECT_EQ(wheel.next_deadline(), 5u);
  wheel.advance(kSecond);
  EXPECT_EQ(log.size(), 1u);
}

TEST(TimerWheel, MovesAndDisarms) {
  TimerWheel wheel;
  std::vector<int> log;
  Alarm a(log, 1), b(log, 2), c(log, 3);
  wheel.advance(kSecond);
  for (Alarm* alarm : {&a, &b, &c}) wheel.arm(alarm->timer, kSecond + 10);
  wheel.disarm(b.timer);
  wheel.arm(c.timer, kSecond + kRound + 10);  // the same slot, a round later
  EXPECT_EQ(wheel.next_deadline(), kSecond + 10);
  wheel.advance(kSecond + 10);
  EXPECT_EQ(log, (std::vector<int>{1}));
  EXPECT_EQ(wheel.next_deadline(), kSecond + kRound + 10);
  wheel.disarm(c.timer);
  EXPECT_EQ(wheel.next_deadline(), kNever);
}

TEST(TimerWheel, NextDeadlineIsExactAmongMany) {
  TimerWheel wheel;
  std::vector<int> log;
  std::vector<std::unique_ptr<Alarm>> alarms;
  wheel.advance(kSecond);
  uint64_t state = 7;
  for (int i = 0; i < 300; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    alarms.push_back(std::make_unique<Alarm>(log, i));
    wheel.arm(alarms.back()->timer, kSecond + (state >> 20) % (3 * kRound));
  }
  for (size_t fired = 0; fired < alarms.size();) {
    Nanoseconds expected = kNever;
    for (const auto& alarm : alarms) expected = std::min(expected, alarm->timer.deadline);
    ASSERT_EQ(wheel.next_deadline(), expected);
    wheel.advance(expected - 1);
    ASSERT_EQ(log.size(), fired);
    wheel.advance(expected);
    ASSERT_GT(log.size(), fired);
    fired = log.size();
  }
  EXPECT_EQ(wheel.next_deadline(), kNever);
}

TEST(TimerWheel, RearmsItselfWhileFiring) {
  TimerWheel wheel;
  std::vector<int> log;
  Alarm alarm(log, 1);
  alarm.then = [&](Nanoseconds now) {
    if (log.size() < 5) wheel.arm(alarm.timer, now + 10 * kMicrosecond);
  };
  wheel.advance(kSecond);
  wheel.arm(alarm.timer, kSecond + 1);
  while (wheel.next_deadline() != kNever) wheel.advance(wheel.next_deadline());
  EXPECT_EQ(log.size(), 5u);
}

// An lcore that comes late walks through several slots in one advance(). What is armed for the past meanwhile (a link
// whose probe timeout has passed too) must not wait for a whole round.
TEST(TimerWheel, PastDeadlineArmedWhileCatchingUpIsNotMissed) {
  for (const Nanoseconds past : {Nanoseconds{0}, kSecond, kSecond + kTick, kSecond + 2 * kTick, kSecond + 19 * kTick}) {
    TimerWheel wheel;
    std::vector<int> log;
    Alarm alarm(log, 1);
    wheel.advance(kSecond);
    const Nanoseconds late = kSecond + 20 * kTick;
    alarm.then = [&](Nanoseconds) {
      if (log.size() == 1) wheel.arm(alarm.timer, past);
    };
    wheel.arm(alarm.timer, kSecond + kTick);
    wheel.advance(late);
    wheel.advance(late);
    EXPECT_EQ(log.size(), 2u) << past;
    EXPECT_EQ(wheel.next_deadline(), kNever);
  }
}

TEST(TimerWheel, MayMoveAndDisarmOthersThatAreDueToo) {
  TimerWheel wheel;
  std::vector<int> log;
  Alarm a(log, 1), b(log, 2), c(log, 3), d(log, 4);
  wheel.advance(kSecond);
  // Whichever fires first moves or disarms the others, which are due in the same slot.
  bool first = true;
  for (Alarm* alarm : {&a, &b, &c}) {
    alarm->then = [&, alarm](Nanoseconds now) {
      if (!first) return;
      first = false;
      bool move = true;
      for (Alarm* other : {&a, &b, &c}) {
        if (other == alarm) continue;
        if (move) wheel.arm(other->timer, now + kSecond);
        if (!move) wheel.disarm(other->timer);
        move = false;
      }
    };
    wheel.arm(alarm->timer, kSecond + 100);
  }
  wheel.arm(d.timer, kSecond + 200);  // the same slot, not due yet
  wheel.advance(kSecond + 100);
  EXPECT_EQ(log.size(), 1u);
  EXPECT_EQ(wheel.next_deadline(), kSecond + 200);
  wheel.advance(kSecond + 200);
  EXPECT_EQ(log.back(), 4);
  EXPECT_EQ(wheel.next_deadline(), 2 * kSecond + 100);
  wheel.advance(2 * kSecond + 100);
  EXPECT_EQ(log.size(), 3u);
  EXPECT_EQ(wheel.next_deadline(), kNever);
}

}  // namespace
}  // namespace gradgate::core
