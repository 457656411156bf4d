// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/reduce_plain.h"

#include <immintrin.h>

#include <bit>

#include "wire/gg_wire.h"

#define PLAIN_INLINE inline __attribute__((always_inline))

namespace gradgate::bench {
namespace {

template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

struct Float32 {
  using Stored = float;
  using Sum = float;
  static PLAIN_INLINE Sum widen(Stored v) { return v; }
  static PLAIN_INLINE Stored narrow(Sum v) { return v; }
};

struct Int32 {
  using Stored = uint32_t;
  using Sum = uint32_t;
  static PLAIN_INLINE Sum widen(Stored v) { return v; }
  static PLAIN_INLINE Stored narrow(Sum v) { return v; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static PLAIN_INLINE Sum widen(Stored v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }
  static PLAIN_INLINE Stored narrow(Sum v) {
    const auto bits = std::bit_cast<uint32_t>(v);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
  }
};

template <class Dtype, size_t n>
PLAIN_INLINE void one_pass(uint8_t* destination, uint8_t* const* sources, size_t bytes) {
  using Element = Unaligned<typename Dtype::Stored>;
  const Element* in[n];
  for (size_t s = 0; s < n; ++s) in[s] = reinterpret_cast<const Element*>(sources[s]);
  auto* out = reinterpret_cast<Element*>(destination);
  const size_t count = bytes / sizeof(Element);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    typename Dtype::Sum sum = Dtype::widen(in[0][i].value);
#pragma GCC unroll 8
    for (size_t s = 1; s < n; ++s) sum += Dtype::widen(in[s][i].value);
    out[i].value = Dtype::narrow(sum);
  }
}

// Add each source to the destination in a pass of its own.
template <class Dtype, size_t n>
PLAIN_INLINE void pass_each(uint8_t* destination, uint8_t* const* sources, size_t bytes) {
  uint8_t* pair[2] = {destination, nullptr};
  for (size_t s = 1; s < n; ++s) {
    pair[1] = sources[s];
    one_pass<Dtype, 2>(destination, pair, bytes);
  }
}

#define PLAIN_TARGET(suffix, flags)                                                                        \
  template <class Dtype, size_t n>                                                                         \
  __attribute__((target(flags))) void one_pass_##suffix(uint8_t* out, uint8_t* const* in, size_t bytes) {  \
    one_pass<Dtype, n>(out, in, bytes);                                                                    \
  }                                                                                                        \
  template <class Dtype, size_t n>                                                                         \
  __attribute__((target(flags))) void pass_each_##suffix(uint8_t* out, uint8_t* const* in, size_t bytes) { \
    pass_each<Dtype, n>(out, in, bytes);                                                                   \
  }

PLAIN_TARGET(sse2, "sse2")
PLAIN_TARGET(avx2, "avx2")
PLAIN_TARGET(avx512_256, "avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=256")
PLAIN_TARGET(avx512, "avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

template <class Dtype, size_t n>
std::vector<Plain> one_pass_sums() {
  std::vector<Plain> all = {{"sse2", one_pass_sse2<Dtype, n>}};
  if (has_avx2()) all.push_back({"avx2", one_pass_avx2<Dtype, n>});
  if (has_avx512()) all.push_back({"avx512 256 bit", one_pass_avx512_256<Dtype, n>});
  if (has_avx512()) all.push_back({"avx512", one_pass_avx512<Dtype, n>});
  return all;
}

template <class Dtype, size_t n>
std::vector<Plain> all_sums() {
  std::vector<Plain> all = one_pass_sums<Dtype, n>();
  if (n == 2) return all;
  if (has_avx2()) all.push_back({"avx2 passes", pass_each_avx2<Dtype, n>});
  if (has_avx512()) all.push_back({"avx512 passes", pass_each_avx512<Dtype, n>});
  return all;
}

// g++ 12 does not vectorise conversions of float16, so these loops name the instruction. `bytes` fills vectors.
template <size_t n>
__attribute__((target("avx2,f16c"))) void float16_avx2(uint8_t* out, uint8_t* const* in, size_t bytes) {
  uint8_t* local[n];
  for (size_t s = 0; s < n; ++s) local[s] = in[s];
  for (size_t at = 0; at < bytes; at += 16) {
    __m256 sum = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(local[0] + at)));
#pragma GCC unroll 8
    for (size_t s = 1; s < n; ++s) {
      sum = _mm256_add_ps(sum, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(local[s] + at))));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + at), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
  }
}

template <size_t n>
__attribute__((target("avx512f,avx512bw,avx512vl"))) void float16_avx512(uint8_t* out, uint8_t* const* in,
                                                                         size_t bytes) {
  uint8_t* local[n];
  for (size_t s = 0; s < n; ++s) local[s] = in[s];
  for (size_t at = 0; at < bytes; at += 32) {
    __m512 sum = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(local[0] + at)));
#pragma GCC unroll 8
    for (size_t s = 1; s < n; ++s) {
      sum = _mm512_add_ps(sum, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(local[s] + at))));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
  }
}

template <size_t n>
std::vector<Plain> float16_sums() {
  std::vector<Plain> all;
  if (has_avx2()) all.push_back({"avx2 f16c", float16_avx2<n>});
  if (has_avx512()) all.push_back({"avx512 f16c", float16_avx512<n>});
  return all;
}

template <size_t n>
std::vector<Plain> sums(uint8_t dtype) {
  switch (dtype) {
    case GG_FLOAT32:
      return all_sums<Float32, n>();
    case GG_INT32:
      return all_sums<Int32, n>();
    case GG_BFLOAT16:
      return one_pass_sums<Bfloat16, n>();
    default:
      return float16_sums<n>();
  }
}

}  // namespace

std::vector<Plain> plain_sums(uint8_t dtype, size_t n) {
  return n == 2 ? sums<2>(dtype) : n == 4 ? sums<4>(dtype) : sums<8>(dtype);
}

}  // namespace gradgate::bench
