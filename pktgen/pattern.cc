// SPDX-License-Identifier: Apache-2.0
#include "pktgen/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "wire/gg_wire.h"

namespace gradgate::pktgen {
namespace {

constexpr uint32_t kExact32 = 1 << 24;
constexpr uint32_t kMaxMagnitude = 1000;

uint64_t mix64(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Uniform enough to tell elements apart, and simple enough for the compiler to vectorise.
inline int32_t value(uint32_t key, uint32_t element, uint32_t range) {
  uint32_t x = key + element * 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  x ^= x >> 13;
  return static_cast<int32_t>((x >> 16) * range >> 16) - static_cast<int32_t>(range / 2);
}

uint16_t float16_of(int32_t v) {
  if (v == 0) return 0;
  const uint32_t magnitude = static_cast<uint32_t>(v < 0 ? -v : v);
  const uint32_t exponent = static_cast<uint32_t>(std::bit_width(magnitude)) - 1;
  return static_cast<uint16_t>((v < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 |
                               ((magnitude << (10 - exponent)) & 0x3FF));
}

uint16_t bfloat16_of(int32_t v) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(v)) >> 16);
}

}  // namespace

uint32_t Pattern::magnitude(uint8_t dtype, uint16_t op, uint32_t size) {
  const uint64_t terms = op == GG_AVERAGE ? uint64_t{size} * size : size;
  const uint64_t exact = dtype == GG_FLOAT16 || dtype == GG_BFLOAT16 ? kExact16 : kExact32;
  if (dtype == GG_BYTES) return 127;
  return static_cast<uint32_t>(std::min<uint64_t>(kMaxMagnitude, exact / terms));
}

Pattern::Pattern(uint64_t seed, uint8_t dtype, uint16_t op, uint32_t size)
    : seed_(seed),
      dtype_(dtype),
      scale_(op == GG_AVERAGE ? static_cast<int32_t>(size) : 1),
      range_(2 * std::max(1u, magnitude(dtype, op, size)) + 1) {
  if (dtype != GG_FLOAT16 && dtype != GG_BFLOAT16) return;
  constexpr int32_t kLimit = kExact16;
  for (int32_t v = -kLimit; v <= kLimit; ++v)
    encoded16_.push_back(dtype == GG_FLOAT16 ? float16_of(v) : bfloat16_of(v));
}

uint32_t Pattern::key(uint32_t group, uint32_t rank, uint64_t call) const {
  return static_cast<uint32_t>(mix64(mix64(seed_ ^ uint64_t{group} << 32 ^ rank) ^ call));
}

void Pattern::contribution(uint32_t group, uint32_t rank, uint64_t call, uint32_t count, int32_t* out) const {
  const uint32_t k = key(group, rank, call);
  for (uint32_t i = 0; i < count; ++i) out[i] = value(k, i, range_) * scale_;
}

void Pattern::add_value(uint32_t group, uint32_t rank, uint64_t call, uint32_t count, int32_t* out) const {
  const uint32_t k = key(group, rank, call);
  for (uint32_t i = 0; i < count; ++i) out[i] += value(k, i, range_);
}

void Pattern::encode(const int32_t* values, uint32_t count, uint8_t* out) const {
  if (count == 0) return;
  switch (dtype_) {
    case GG_FLOAT32:
      for (uint32_t i = 0; i < count; ++i) {
        const float f = static_cast<float>(values[i]);
        memcpy(out + size_t{4} * i, &f, 4);
      }
      break;
    case GG_INT32:
      memcpy(out, values, size_t{4} * count);
      break;
    case GG_FLOAT16:
    case GG_BFLOAT16:
      for (uint32_t i = 0; i < count; ++i)
        memcpy(out + size_t{2} * i, &encoded16_[static_cast<size_t>(values[i] + static_cast<int32_t>(kExact16))], 2);
      break;
    default:
      for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(values[i]);
  }
}

}  // namespace gradgate::pktgen
