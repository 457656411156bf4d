// SPDX-License-Identifier: Apache-2.0
// Words that every part of the core uses.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradgate::core {

/// A point in time or a span, in nanoseconds since an origin that the caller chooses. The core never reads a clock.
using Nanoseconds = uint64_t;
constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr Nanoseconds kNever = ~Nanoseconds{0};

/// Serial number arithmetic, RFC 1982, 32 bits.
constexpr bool serial_less(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) < 0;
}
constexpr bool serial_less_equal(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) <= 0;
}
constexpr uint32_t serial_max(uint32_t a, uint32_t b) {
  return serial_less(a, b) ? b : a;
}

/// A counter with one writer (the lane's core) that other threads may read at any time.
class Counter {
 public:
  void add(uint64_t n = 1) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

constexpr uint32_t kNoNeighbour = ~uint32_t{0};

}  // namespace gradgate::core
