// SPDX-License-Identifier: Apache-2.0
// Payload that every process can compute for every rank: small integers from a hash of seed, group, rank, call and
// element, so small that sums over all ranks are exact in the element type and do not depend on any order.
#pragma once

#include <cstdint>
#include <vector>

namespace gradgate::pktgen {

class Pattern {
 public:
  static constexpr uint32_t kExact16 = 256;  ///< integers up to here are exact in bfloat16 (and float16)

  Pattern(uint64_t seed, uint8_t dtype, uint16_t op, uint32_t size);

  /// Values lie in [-magnitude, magnitude]; 0: no value is small enough for exact sums of `size` ranks.
  static uint32_t magnitude(uint8_t dtype, uint16_t op, uint32_t size);

  /// out[i] = what `rank` contributes as element i, for i < count. Averages: the value times `size`.
  void contribution(uint32_t group, uint32_t rank, uint64_t call, uint32_t count, int32_t* out) const;
  /// Adds the value of `rank` to out[i]: added up over the ranks that contribute, it is the result of the call.
  void add_value(uint32_t group, uint32_t rank, uint64_t call, uint32_t count, int32_t* out) const;
  /// The elements as they stand in memory.
  void encode(const int32_t* values, uint32_t count, uint8_t* out) const;

 private:
  uint32_t key(uint32_t group, uint32_t rank, uint64_t call) const;

  const uint64_t seed_;
  const uint8_t dtype_;
  const int32_t scale_;
  const uint32_t range_;
  std::vector<uint16_t> encoded16_;  ///< of -kExact16 … kExact16
};

}  // namespace gradgate::pktgen
