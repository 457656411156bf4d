// SPDX-License-Identifier: Apache-2.0

// One accumulator a dtype: what one vector of payload bytes, starting at any address, adds up to. Compiled once per
// Highway target, hence Highway's toggling guard in place of #pragma once.
#if defined(GRADGATE_REDUCE_ACCUMULATOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADGATE_REDUCE_ACCUMULATOR_INL_H_
#undef GRADGATE_REDUCE_ACCUMULATOR_INL_H_
#else
#define GRADGATE_REDUCE_ACCUMULATOR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradgate::reduce {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using BitsTag = hn::ScalableTag<uint32_t>;
using Float = hn::Vec<FloatTag>;
using Bits = hn::Vec<BitsTag>;

/// Payload bytes in one accumulator.
HWY_INLINE size_t step_bytes() {
  return hn::Lanes(BitsTag()) * sizeof(uint32_t);
}

HWY_INLINE Bits constant(uint32_t value) {
  return hn::Set(BitsTag(), value);
}

HWY_INLINE Bits to_bits(Float v) {
  return hn::BitCast(BitsTag(), v);
}

HWY_INLINE Float to_float(Bits v) {
  return hn::BitCast(FloatTag(), v);
}

// Through bytes, because a pointer to a wider type may not be misaligned. SCALAR has no vector of four bytes.
HWY_INLINE Bits load_bits(const uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return constant(value);
#else
  return hn::BitCast(BitsTag(), hn::LoadU(hn::Repartition<uint8_t, BitsTag>(), p));
#endif
}

HWY_INLINE void store_bits(Bits v, uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t value = hn::GetLane(v);
  std::memcpy(p, &value, sizeof(value));
#else
  const hn::Repartition<uint8_t, BitsTag> bytes_tag;
  hn::StoreU(hn::BitCast(bytes_tag, v), bytes_tag, p);
#endif
}

// x86 propagates the first operand's payload and its own default NaN is negative; others differ.
HWY_INLINE Float canonical_nan(Float v) {
  return hn::IfThenElse(hn::IsNaN(v), to_float(constant(0x7FC00000)), v);
}

// NaNs are rare: one test of several vectors and a branch cost less than canonical_nan() of each.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// Highway has no "both ordered", half the instructions here. kortest sets carry if all lanes are.
HWY_INLINE bool any_nan(Float a, Float b) {
  const __mmask16 ordered = _mm512_cmp_ps_mask(a.raw, b.raw, _CMP_ORD_Q);
  return _kortestc_mask16_u8(ordered, ordered) == 0;
}

HWY_INLINE bool any_nan(Float a, Float b, Float c, Float d) {
  const __mmask16 ordered =
      _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_ORD_Q), c.raw, d.raw, _CMP_ORD_Q);
  return _kortestc_mask16_u8(ordered, ordered) == 0;
}
#else
HWY_INLINE bool any_nan(Float a, Float b) {
  return !hn::AllFalse(FloatTag(), hn::Or(hn::IsNaN(a), hn::IsNaN(b)));
}

HWY_INLINE bool any_nan(Float a, Float b, Float c, Float d) {
  return !hn::AllFalse(FloatTag(), hn::Or(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Or(hn::IsNaN(c), hn::IsNaN(d))));
}
#endif

// kPrefetchBytes: how far ahead sum_all() prefetches. Conversions fill the scheduler before it has looked far enough
// ahead in DRAM; plain sums do not, and are slower with a prefetch (measured).

struct Float32 {
  static constexpr size_t kElementBytes = 4;
  static constexpr size_t kPrefetchBytes = 0;

  Float sum;

  static HWY_INLINE Float32 load(const uint8_t* p) { return {to_float(load_bits(p))}; }

  HWY_INLINE void add(const uint8_t* p) { sum = hn::Add(sum, to_float(load_bits(p))); }

  HWY_INLINE void divide(Float divisor) { sum = hn::Div(sum, divisor); }
  static HWY_INLINE bool has_nan(const Float32& a, const Float32& b) { return any_nan(a.sum, b.sum); }
  HWY_INLINE void canonicalise() { sum = canonical_nan(sum); }
  HWY_INLINE void store(uint8_t* p) const { store_bits(to_bits(sum), p); }
};

struct Int32 {
  static constexpr size_t kElementBytes = 4;
  static constexpr size_t kPrefetchBytes = 0;

  Bits sum;

  static HWY_INLINE Int32 load(const uint8_t* p) { return {load_bits(p)}; }

  HWY_INLINE void add(const uint8_t* p) { sum = hn::Add(sum, load_bits(p)); }

  // reduce.cc divides sums of integers.
  HWY_INLINE void divide(Float) {}
  static HWY_INLINE bool has_nan(const Int32&, const Int32&) { return false; }
  HWY_INLINE void canonicalise() {}
  HWY_INLINE void store(uint8_t* p) const { store_bits(sum, p); }
};

// 16-bit elements as pairs in 32-bit lanes, low half first (payload is little-endian, DESIGN section 4): splitting and
// joining the halves needs no shuffle. Not the CPU's bfloat16 instructions: they take denormals as zero.
struct Bfloat16 {
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kPrefetchBytes = 256;

  Float even;
  Float odd;

  static HWY_INLINE Float even_of(Bits pairs) { return to_float(hn::ShiftLeft<16>(pairs)); }
  static HWY_INLINE Float odd_of(Bits pairs) { return to_float(hn::And(pairs, constant(0xFFFF0000))); }

  // NaN must be canonical. Half of the dropped part, less one when the kept part is even: a carry out of it rounds to
  // nearest even.
  static HWY_INLINE Bits round(Float v) {
    const Bits bits = to_bits(v);
    const Bits lowest_kept = hn::And(hn::ShiftRight<16>(bits), constant(1));
    return hn::Add(bits, hn::Add(lowest_kept, constant(0x7FFF)));
  }

  static HWY_INLINE Bfloat16 load(const uint8_t* p) {
    const Bits pairs = load_bits(p);
    return {even_of(pairs), odd_of(pairs)};
  }

  HWY_INLINE void add(const uint8_t* p) {
    const Bits pairs = load_bits(p);
    even = hn::Add(even, even_of(pairs));
    odd = hn::Add(odd, odd_of(pairs));
  }

  HWY_INLINE void divide(Float divisor) {
    even = hn::Div(even, divisor);
    odd = hn::Div(odd, divisor);
  }

  static HWY_INLINE bool has_nan(const Bfloat16& a, const Bfloat16& b) { return any_nan(a.even, a.odd, b.even, b.odd); }

  HWY_INLINE void canonicalise() {
    even = canonical_nan(even);
    odd = canonical_nan(odd);
  }

  HWY_INLINE void store(uint8_t* p) const {
    const Bits low = hn::ShiftRight<16>(round(even));
    const Bits high = hn::And(round(odd), constant(0xFFFF0000));
    store_bits(hn::Or(low, high), p);
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// F16C: exact, denormals kept whatever MXCSR says (Intel SDM, VCVTPH2PS and VCVTPS2PH). Only its NaNs differ.
struct Float16 {
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kPrefetchBytes = 256;

  Float low;
  Float high;

  static HWY_INLINE Float convert(const uint8_t* p) {
    const hn::Half<hn::Repartition<uint8_t, FloatTag>> bytes_tag;
    const hn::Rebind<hwy::float16_t, FloatTag> half_tag;
    return hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, hn::LoadU(bytes_tag, p)));
  }

  static HWY_INLINE void convert(Float v, uint8_t* p) {
    const hn::Half<hn::Repartition<uint8_t, FloatTag>> bytes_tag;
    const hn::Rebind<hwy::float16_t, FloatTag> half_tag;
    hn::StoreU(hn::BitCast(bytes_tag, hn::DemoteTo(half_tag, v)), bytes_tag, p);
  }

  static HWY_INLINE Float16 load(const uint8_t* p) { return {convert(p), convert(p + step_bytes() / 2)}; }

  HWY_INLINE void add(const uint8_t* p) {
    low = hn::Add(low, convert(p));
    high = hn::Add(high, convert(p + step_bytes() / 2));
  }

  HWY_INLINE void divide(Float divisor) {
    low = hn::Div(low, divisor);
    high = hn::Div(high, divisor);
  }

  static HWY_INLINE bool has_nan(const Float16& a, const Float16& b) { return any_nan(a.low, a.high, b.low, b.high); }

  HWY_INLINE void canonicalise() {
    low = canonical_nan(low);
    high = canonical_nan(high);
  }

  HWY_INLINE void store(uint8_t* p) const {
    convert(low, p);
    convert(high, p + step_bytes() / 2);
  }
};

#else

// Highway's own conversion to float16 truncates where F16C is missing.
struct Float16 {
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kPrefetchBytes = 256;

  Float even;
  Float odd;

  // Takes the element in the low 16 bits, the others zero.
  static HWY_INLINE Float widen(Bits half) {
    const Bits sign = hn::ShiftLeft<16>(hn::And(half, constant(0x8000)));
    const Bits magnitude = hn::ShiftLeft<13>(hn::And(half, constant(0x7FFF)));
    const Bits rebiased = hn::Add(magnitude, constant((127 - 15) << 23));
    const Bits special = hn::Add(magnitude, constant((255 - 31) << 23));
    // A denormal is a multiple of 2^-24; beside 2^-14 its bits are the fraction, and subtracting 2^-14 is exact.
    const Bits two_to_minus_14 = constant((127 - 14) << 23);
    const Bits denormal = to_bits(hn::Sub(to_float(hn::Or(magnitude, two_to_minus_14)), to_float(two_to_minus_14)));
    const auto is_denormal = hn::Lt(as_signed(magnitude), as_signed(constant(1 << 23)));
    const auto is_special = hn::Gt(as_signed(magnitude), as_signed(constant((31 << 23) - 1)));
    return to_float(hn::Or(sign, choose(is_special, special, choose(is_denormal, denormal, rebiased))));
  }

  // Returns the element in the low 16 bits, the others zero. NaN must be canonical.
  static HWY_INLINE Bits narrow(Float v) {
    const Bits bits = to_bits(v);
    const Bits sign = hn::ShiftRight<16>(hn::And(bits, constant(0x80000000)));
    const Bits magnitude = hn::And(bits, constant(0x7FFFFFFF));
    // Modulo 2^32: rebias, and round to nearest even as in Bfloat16::round; overflow carries into infinity.
    const Bits lowest_kept = hn::And(hn::ShiftRight<13>(magnitude), constant(1));
    const Bits rounding = hn::Add(lowest_kept, constant(0xFFF - ((127u - 15u) << 23)));
    const Bits normal = hn::ShiftRight<13>(hn::Add(magnitude, rounding));
    // 0.5 has the unit in the last place 2^-24, so that adding it rounds to a multiple of the smallest denormal.
    const Bits half = constant((127 - 1) << 23);
    const Bits denormal = hn::Sub(to_bits(hn::Add(to_float(magnitude), to_float(half))), half);
    const auto is_denormal = hn::Lt(as_signed(magnitude), as_signed(constant((127 - 14) << 23)));
    const auto is_large = hn::Gt(as_signed(magnitude), as_signed(constant(((127 + 16) << 23) - 1)));
    const auto is_nan = hn::Gt(as_signed(magnitude), as_signed(constant(255 << 23)));
    const Bits finite = choose(is_denormal, denormal, normal);
    const Bits large = choose(is_nan, constant(0x7E00), constant(0x7C00));
    return hn::Or(sign, choose(is_large, large, finite));
  }

  static HWY_INLINE hn::Vec<hn::RebindToSigned<BitsTag>> as_signed(Bits v) {
    return hn::BitCast(hn::RebindToSigned<BitsTag>(), v);
  }

  template <class Mask>
  static HWY_INLINE Bits choose(Mask mask, Bits yes, Bits no) {
    return hn::BitCast(BitsTag(), hn::IfThenElse(mask, as_signed(yes), as_signed(no)));
  }

  static HWY_INLINE Float even_of(Bits pairs) { return widen(hn::And(pairs, constant(0xFFFF))); }
  static HWY_INLINE Float odd_of(Bits pairs) { return widen(hn::ShiftRight<16>(pairs)); }

  static HWY_INLINE Float16 load(const uint8_t* p) {
    const Bits pairs = load_bits(p);
    return {even_of(pairs), odd_of(pairs)};
  }

  HWY_INLINE void add(const uint8_t* p) {
    const Bits pairs = load_bits(p);
    even = hn::Add(even, even_of(pairs));
    odd = hn::Add(odd, odd_of(pairs));
  }

  HWY_INLINE void divide(Float divisor) {
    even = hn::Div(even, divisor);
    odd = hn::Div(odd, divisor);
  }

  static HWY_INLINE bool has_nan(const Float16& a, const Float16& b) { return any_nan(a.even, a.odd, b.even, b.odd); }

  HWY_INLINE void canonicalise() {
    even = canonical_nan(even);
    odd = canonical_nan(odd);
  }

  HWY_INLINE void store(uint8_t* p) const {
    const Bits low = narrow(even);
    const Bits high = hn::ShiftLeft<16>(narrow(odd));
    store_bits(hn::Or(low, high), p);
  }
};

#endif  // F16C

}  // namespace HWY_NAMESPACE
}  // namespace gradgate::reduce
HWY_AFTER_NAMESPACE();

#endif  // GRADGATE_REDUCE_ACCUMULATOR_INL_H_
