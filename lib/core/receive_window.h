// SPDX-License-Identifier: Apache-2.0
// Which packet numbers of a link have arrived.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "wire/gg_wire.h"

namespace gradgate::core {

/// Remembers the last kBits numbers; older ones count as seen. Numbers start at 1, so that 0 means none.
class ReceiveWindow {
 public:
  static constexpr uint64_t kBits = 4096;

  /// The 64-bit number whose low half is `low`, nearest to the next expected one (RFC 9000 appendix A.3).
  uint64_t expand(uint32_t low) const { return expand_number(largest_ + 1, low); }

  static uint64_t expand_number(uint64_t expected, uint32_t low) {
    constexpr uint64_t kWindow = uint64_t{1} << 32;
    const uint64_t candidate = (expected & ~(kWindow - 1)) | low;
    if (candidate + kWindow / 2 <= expected && candidate < (uint64_t{1} << 62) - kWindow) return candidate + kWindow;
    if (candidate > expected + kWindow / 2 && candidate >= kWindow) return candidate - kWindow;
    return candidate;
  }

  /// Seen before, too old to tell, or never sent (0).
  bool seen(uint64_t number) const {
    if (number == 0 || number + kBits <= largest_) return true;
    return number <= largest_ && test(number);
  }

  /// Records a number that is not seen(). Returns true if it leaves or fills a gap, that is if it is not the next
  /// one in order.
  bool record(uint64_t number) {
    bool gap = true;
    if (number > largest_) {
      gap = number != largest_ + 1;
      if (number - largest_ >= kBits) {
        bits_.fill(0);
      } else {
        for (uint64_t n = largest_ + 1; n < number; ++n) clear(n);
      }
      largest_ = number;
    }
    set(number);
    return gap;
  }

  uint64_t largest() const { return largest_; }

  /// Ranges from the largest number downwards: {first, last} inclusive; returns how many were written.
  struct Range {
    uint64_t first, last;
  };
  uint32_t ranges(Range* out, uint32_t room) const {
    uint32_t count = 0;
    const uint64_t floor = largest_ >= kBits ? largest_ - kBits + 1 : 1;
    uint64_t n = largest_;
    while (n >= floor && count < room) {
      while (n >= floor && !test(n)) --n;
      if (n < floor) break;
      Range range{n, n};
      while (n >= floor && test(n)) {
        // Whole words of ones are the common case.
        if ((n & 63) == 63 && n >= floor + 63 && bits_[word(n)] == ~uint64_t{0}) {
          n -= 64;
        } else {
          --n;
        }
      }
      range.first = n + 1;
      out[count++] = range;
    }
    return count;
  }

 private:
  static uint32_t word(uint64_t n) { return static_cast<uint32_t>(n / 64 % (kBits / 64)); }
  bool test(uint64_t n) const { return (bits_[word(n)] >> (n & 63)) & 1; }
  void set(uint64_t n) { bits_[word(n)] |= uint64_t{1} << (n & 63); }
  void clear(uint64_t n) { bits_[word(n)] &= ~(uint64_t{1} << (n & 63)); }

  std::array<uint64_t, kBits / 64> bits_{};
  uint64_t largest_ = 0;
};

}  // namespace gradgate::core
