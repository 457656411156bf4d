// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include <atomic>
#include <cassert>
#include <cstring>
#include <iterator>

#include "reduce/kernels.h"
#include "reduce/targets.h"
#include "wire/gg_wire.h"

// Vectors of SVE cannot be members of an accumulator; such CPUs take NEON.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
// So that tests reach SCALAR on builds whose baseline is better.
#define HWY_COMPILE_ALL_ATTAINABLE
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/reduce.cc"
#include "hwy/foreach_target.h"
// Highway requires this order.
#include "reduce/accumulator-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradgate::reduce {
namespace HWY_NAMESPACE {

constexpr size_t kCacheLineBytes = 64;

/// The sources as sum_all() walks them: kSources pointers kept in registers, or, if kSources is 0, `n` in memory.
template <size_t kSources>
struct Sources {
  static constexpr size_t n = kSources;
  const uint8_t* pointers[kSources];

  HWY_INLINE Sources(const uint8_t* const* sources, size_t) { std::memcpy(pointers, sources, sizeof(pointers)); }
};

template <>
struct Sources<0> {
  const uint8_t* const* pointers;
  size_t n;

  HWY_INLINE Sources(const uint8_t* const* sources, size_t count) : pointers(sources), n(count) {}
};

// What is left after whole vectors, from `at`. By way of vectors on the stack, because reading or writing past a
// buffer's end could leave its page. Apart from sum_all(), which without it is a leaf that saves no register.
template <class Accumulator, bool kDivide>
HWY_NOINLINE void sum_tail(uint8_t* destination, const uint8_t* const* sources, size_t n, size_t at, size_t bytes,
                           uint32_t divisor) {
  uint8_t tail[HWY_MAX_BYTES] = {};
  const size_t rest = bytes - at;
  std::memcpy(tail, sources[0] + at, rest);
  Accumulator sum = Accumulator::load(tail);
  for (size_t s = 1; s < n; ++s) {
    std::memcpy(tail, sources[s] + at, rest);
    sum.add(tail);
  }
  if constexpr (kDivide) sum.divide(hn::Set(FloatTag(), static_cast<float>(divisor)));
  sum.canonicalise();
  sum.store(tail);
  std::memcpy(destination + at, tail, rest);
}

template <class Sources>
HWY_INLINE void prefetch(const Sources& sources, size_t at, size_t bytes) {
  for (size_t s = 0; s < sources.n; ++s) {
    for (size_t line = 0; line < bytes; line += kCacheLineBytes) __builtin_prefetch(sources.pointers[s] + at + line);
  }
}

// Two vectors a step: more is faster in cache, but in DRAM the core then looks ahead over fewer calls (measured).
// Each step reads all sources before it writes, which is what lets the destination be one of them.
template <class Accumulator, bool kDivide, size_t kSources>
void sum_all(uint8_t* destination, const uint8_t* const* source_pointers, size_t count, size_t bytes,
             uint32_t integer_divisor) {
  const Sources<kSources> sources(source_pointers, count);
  const Float divisor = hn::Set(FloatTag(), static_cast<float>(integer_divisor));
  const size_t step = step_bytes();
  size_t at = 0;
  for (; at + 2 * step <= bytes; at += 2 * step) {
    Accumulator a = Accumulator::load(sources.pointers[0] + at);
    Accumulator b = Accumulator::load(sources.pointers[0] + at + step);
    for (size_t s = 1; s < sources.n; ++s) {
      a.add(sources.pointers[s] + at);
      b.add(sources.pointers[s] + at + step);
    }
    if constexpr (Accumulator::kPrefetchBytes != 0) {
      const size_t ahead = at + Accumulator::kPrefetchBytes;
      if (ahead < bytes) prefetch(sources, ahead, 2 * step);
    }
    if constexpr (kDivide) a.divide(divisor);
    if constexpr (kDivide) b.divide(divisor);
    if (Accumulator::has_nan(a, b)) [[unlikely]] {
      a.canonicalise();
      b.canonicalise();
    }
    a.store(destination + at);
    b.store(destination + at + step);
  }
  if (at + step <= bytes) {
    Accumulator a = Accumulator::load(sources.pointers[0] + at);
    for (size_t s = 1; s < sources.n; ++s) a.add(sources.pointers[s] + at);
    if constexpr (kDivide) a.divide(divisor);
    a.canonicalise();
    a.store(destination + at);
    at += step;
  }
  if (at != bytes) sum_tail<Accumulator, kDivide>(destination, source_pointers, count, at, bytes, integer_divisor);
}

// In double, because there is no integer division of vectors. Truncation gives the exact quotient: it is below 2^31
// and, if no integer, at least 2^-32 from the next one, which 53 bits keep apart.
HWY_NOINLINE void divide_int32(uint8_t* destination, size_t bytes, uint32_t divisor) {
  for (size_t at = 0; at < bytes; at += sizeof(int32_t)) {
    int32_t value;
    std::memcpy(&value, destination + at, sizeof(value));
    value = static_cast<int32_t>(static_cast<double>(value) / static_cast<double>(divisor));
    std::memcpy(destination + at, &value, sizeof(value));
  }
}

void average_int32(uint8_t* destination, const uint8_t* const* sources, size_t n, size_t bytes, uint32_t divisor) {
  sum_all<Int32, false, 0>(destination, sources, n, bytes, 1);
  divide_int32(destination, bytes, divisor);
}

template <class Accumulator>
constexpr DtypeKernels sum_kernels() {
  return {{sum_all<Accumulator, false, 0>, sum_all<Accumulator, false, 2>, sum_all<Accumulator, false, 4>,
           sum_all<Accumulator, false, 8>},
          sum_all<Accumulator, true, 0>,
          Accumulator::kElementBytes};
}

constexpr DtypeKernels int32_kernels() {
  DtypeKernels kernels = sum_kernels<Int32>();
  kernels.average = average_int32;
  return kernels;
}

constexpr Kernels kKernels = {
    {{}, sum_kernels<Float32>(), sum_kernels<Float16>(), sum_kernels<Bfloat16>(), int32_kernels()}};

const Kernels* kernels() {
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradgate::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradgate::reduce {
namespace {

HWY_EXPORT(kernels);

const Kernels* kernels_of(int64_t target) {
  hwy::GetChosenTarget().Update(target);
  return HWY_DYNAMIC_DISPATCH(kernels)();
}

// Kept here because HWY_DYNAMIC_DISPATCH costs a call into libhwy, and any SupportedTargets() undoes a selection.
std::atomic<const Kernels*> selected{nullptr};

// Apart, so that sum() saves no register.
HWY_NOINLINE const Kernels* select_best() {
  const Kernels* best = kernels_of(hwy::SupportedTargets());
  selected.store(best, std::memory_order_relaxed);
  return best;
}

}  // namespace

void sum(uint8_t dtype, uint8_t* destination, const uint8_t* const* sources, size_t n, size_t bytes, uint32_t divisor) {
  assert(n >= 1 && n <= kMaxSources && divisor != 0);
  if (n == 1 && divisor == 1) {
    if (destination != sources[0] && bytes != 0) std::memcpy(destination, sources[0], bytes);
    return;
  }
  assert(dtype > GG_BYTES && dtype < GG_DTYPE_COUNT);
  const Kernels* kernels = selected.load(std::memory_order_relaxed);
  if (kernels == nullptr) [[unlikely]]
    kernels = select_best();
  const DtypeKernels& kernel = (*kernels)[dtype];
  assert((bytes & (kernel.element_bytes - 1)) == 0);
  if (divisor != 1) return kernel.average(destination, sources, n, bytes, divisor);
  kernel.sum[n < std::size(kKernelOfCount) ? kKernelOfCount[n] : 0](destination, sources, n, bytes, 1);
}

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

bool select_target(std::string_view name) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    selected.store(kernels_of(target), std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace gradgate::reduce
#endif  // HWY_ONCE
