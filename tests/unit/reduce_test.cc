// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "reduce/targets.h"
#include "wire/gg_wire.h"

namespace gradgate::reduce {
namespace {

// ---- the reference: formats defined by their parameters, values in double, nothing shared with lib/reduce ----

struct Format {
  int fraction_bits;
  int min_exponent;
  int max_exponent;

  uint32_t infinity() const { return ((1u << (15 - fraction_bits)) - 1) << fraction_bits; }
  uint32_t canonical_nan() const { return infinity() | 1u << (fraction_bits - 1); }
};

constexpr Format kFloat16 = {10, -14, 15};
constexpr Format kBfloat16 = {7, -126, 127};

float widen(uint16_t bits, const Format& format) {
  const uint32_t magnitude = bits & 0x7FFFu;
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  if (magnitude > format.infinity()) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == format.infinity()) return static_cast<float>(sign * std::numeric_limits<double>::infinity());
  const int exponent = static_cast<int>(magnitude >> format.fraction_bits);
  const double fraction = magnitude & ((1u << format.fraction_bits) - 1);
  const double one = 1u << format.fraction_bits;
  const double significand = exponent == 0 ? fraction / one : 1.0 + fraction / one;
  return static_cast<float>(sign * std::ldexp(significand, std::max(exponent, 1) - 1 + format.min_exponent));
}

uint16_t narrow(float value, const Format& format) {
  if (std::isnan(value)) return static_cast<uint16_t>(format.canonical_nan());
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | format.infinity());
  int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  if (units == std::ldexp(2.0, format.fraction_bits)) {
    units /= 2;
    ++exponent;
  }
  if (exponent > format.max_exponent) return static_cast<uint16_t>(sign | format.infinity());
  const auto integer = static_cast<uint32_t>(units);
  const uint32_t one = 1u << format.fraction_bits;
  if (integer < one) return static_cast<uint16_t>(sign | integer);
  const auto biased = static_cast<uint32_t>(exponent - format.min_exponent + 1);
  return static_cast<uint16_t>(sign | biased << format.fraction_bits | (integer - one));
}

uint32_t float32_bits(float value) {
  return std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
}

size_t element_bytes(uint8_t dtype) {
  return dtype == GG_FLOAT32 || dtype == GG_INT32 ? 4 : 2;
}

uint32_t reference_element(uint8_t dtype, const std::vector<uint32_t>& elements, uint32_t divisor) {
  if (dtype == GG_INT32) {
    uint32_t sum = 0;
    for (const uint32_t element : elements) sum += element;
    return static_cast<uint32_t>(int64_t{static_cast<int32_t>(sum)} / int64_t{divisor});
  }
  const Format& format = dtype == GG_FLOAT16 ? kFloat16 : kBfloat16;
  const auto value = [&](uint32_t element) {
    return dtype == GG_FLOAT32 ? std::bit_cast<float>(element) : widen(static_cast<uint16_t>(element), format);
  };
  float sum = value(elements[0]);
  for (size_t i = 1; i < elements.size(); ++i) sum += value(elements[i]);
  if (divisor != 1) sum /= static_cast<float>(divisor);
  return dtype == GG_FLOAT32 ? float32_bits(sum) : narrow(sum, format);
}

using Buffer = std::vector<uint8_t>;

uint32_t load(const Buffer& buffer, size_t index, size_t size) {
  uint32_t value = 0;
  std::memcpy(&value, buffer.data() + index * size, size);
  return value;
}

Buffer reference_sum(uint8_t dtype, const std::vector<Buffer>& sources, uint32_t divisor) {
  if (sources.size() == 1 && divisor == 1) return sources[0];
  const size_t size = element_bytes(dtype);
  Buffer result(sources[0].size());
  std::vector<uint32_t> elements(sources.size());
  for (size_t i = 0; i < result.size() / size; ++i) {
    for (size_t s = 0; s < sources.size(); ++s) elements[s] = load(sources[s], i, size);
    const uint32_t value = reference_element(dtype, elements, divisor);
    std::memcpy(result.data() + i * size, &value, size);
  }
  return result;
}

// ---- inputs ----

constexpr uint32_t kSpecialFloat32[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,  // 0, denormals
    0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF, 0x7F800001, 0xFFBFFFFF,  // inf, qNaN, sNaN
    0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x33800000, 0x33800001, 0xB3800000, 0x4B800000,  // max, halfway
};
constexpr uint32_t kSpecialFloat16[] = {
    0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7C00, 0xFC00, 0x7E00, 0xFE00,
    0x7E55, 0xFFFF, 0x7C01, 0xFDFF, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x1000, 0x1001, 0x4C00, 0x4FFF,
};
constexpr uint32_t kSpecialBfloat16[] = {
    0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x807F, 0x0080, 0x8080, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0,
    0x7FD5, 0xFFFF, 0x7F81, 0xFFBF, 0x7F7F, 0xFF7F, 0x3F80, 0xBF80, 0x3B80, 0x3B81, 0x7EFF, 0xFEFF,
};
constexpr uint32_t kSpecialInt32[] = {0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 7, 0xFFFFFFF9};

template <size_t kCount>
uint32_t any_of(const uint32_t (&values)[kCount], uint32_t random) {
  return values[random % kCount];
}

// A third special values, a third random bits, a third of like magnitude so that sums need rounding.
uint32_t random_element(uint8_t dtype, std::mt19937& random) {
  const uint32_t bits = random();
  const uint32_t choice = random() % 3;
  const uint32_t which = random();
  switch (dtype) {
    case GG_FLOAT32:
      return choice == 0 ? any_of(kSpecialFloat32, which) : choice == 1 ? bits : (bits & 0x80FFFFFF) | 0x3F000000;
    case GG_FLOAT16:
      return choice == 0 ? any_of(kSpecialFloat16, which) : (choice == 1 ? bits : (bits & 0x8FFF) | 0x3000) & 0xFFFF;
    case GG_BFLOAT16:
      return choice == 0 ? any_of(kSpecialBfloat16, which) : (choice == 1 ? bits : (bits & 0x81FF) | 0x3E00) & 0xFFFF;
    default:
      return choice == 0 ? any_of(kSpecialInt32, which) : bits;
  }
}

Buffer random_buffer(uint8_t dtype, size_t bytes, std::mt19937& random) {
  Buffer buffer(bytes);
  const size_t size = element_bytes(dtype);
  for (size_t at = 0; at < bytes; at += size) {
    const uint32_t element = random_element(dtype, random);
    std::memcpy(buffer.data() + at, &element, size);
  }
  return buffer;
}

/// Bytes at a chosen offset from a cache line, with guard bytes before; the allocation ends where the bytes end, so
/// that the address sanitizer sees any access beyond, and guard bytes do in other builds.
class Placed {
 public:
  Placed(const Buffer& content, size_t offset) : bytes_(content.size()) {
    const size_t total = 64 + offset + bytes_ + kGuardsBehind;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, total) != 0) throw std::bad_alloc();
    std::memset(memory, kGuard, total);
    allocation_.reset(static_cast<uint8_t*>(memory));
    data_ = allocation_.get() + 64 + offset;
    set(content);
  }

  void set(const Buffer& content) {
    if (bytes_ != 0) std::memcpy(data_, content.data(), bytes_);
  }

  uint8_t* data() { return data_; }
  bool holds(const Buffer& expected) const { return bytes_ == 0 || std::memcmp(data_, expected.data(), bytes_) == 0; }

  bool guards_intact() const {
    const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
    return std::all_of(allocation_.get(), data_, is_guard) &&
           std::all_of(data_ + bytes_, data_ + bytes_ + kGuardsBehind, is_guard);
  }

 private:
  static constexpr uint8_t kGuard = 0xA5;
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kGuardsBehind = 0;
#else
  static constexpr size_t kGuardsBehind = 64;
#endif

  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };

  size_t bytes_;
  std::unique_ptr<uint8_t, Free> allocation_;
  uint8_t* data_;
};

std::string describe(const Buffer& expected, const uint8_t* actual, size_t size) {
  for (size_t at = 0; at < expected.size(); at += size) {
    if (std::memcmp(actual + at, expected.data() + at, size) == 0) continue;
    uint32_t got = 0;
    std::memcpy(&got, actual + at, size);
    char text[80];
    std::snprintf(text, sizeof(text), "element %zu is %#x, should be %#x", at / size, got,
                  load(expected, at / size, size));
    return text;
  }
  return "equal";
}

// ---- tests: every one runs once for each target and dtype ----

struct Case {
  std::string target;
  uint8_t dtype;
};

std::vector<Case> cases(std::initializer_list<uint8_t> dtypes) {
  std::vector<Case> all;
  for (const std::string& target : targets()) {
    for (const uint8_t dtype : dtypes) all.push_back({target, dtype});
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  static constexpr const char* kNames[GG_DTYPE_COUNT] = {"bytes", "float32", "float16", "bfloat16", "int32"};
  return info.param.target + "_" + kNames[info.param.dtype];
}

class OnTarget : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ASSERT_TRUE(select_target(GetParam().target)); }
  void TearDown() override { select_target(targets().front()); }
};

class Sum : public OnTarget {};
class Sum16 : public OnTarget {};

INSTANTIATE_TEST_SUITE_P(Target, Sum, testing::ValuesIn(cases({GG_FLOAT32, GG_FLOAT16, GG_BFLOAT16, GG_INT32})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Target, Sum16, testing::ValuesIn(cases({GG_FLOAT16, GG_BFLOAT16})), case_name);

constexpr size_t kOffsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 18};

// Sources at offsets that all differ, destination apart and then in place of each source.
void check_aliasing(uint8_t dtype, const std::vector<Buffer>& contents, uint32_t divisor, size_t first_offset) {
  const Buffer expected = reference_sum(dtype, contents, divisor);
  const size_t n = contents.size();
  const size_t bytes = expected.size();
  std::vector<Placed> sources;
  std::vector<const uint8_t*> pointers;
  for (size_t s = 0; s < n; ++s) {
    sources.emplace_back(contents[s], kOffsets[(first_offset + s) % std::size(kOffsets)]);
    pointers.push_back(sources.back().data());
  }
  Placed apart(Buffer(bytes), kOffsets[first_offset]);
  for (size_t alias = 0; alias <= n; ++alias) {
    SCOPED_TRACE(testing::Message() << "n " << n << ", " << bytes << " bytes, divisor " << divisor << ", offset "
                                    << kOffsets[first_offset] << ", destination "
                                    << (alias == n ? "apart" : "is source " + std::to_string(alias)));
    Placed& destination = alias == n ? apart : sources[alias];
    sum(dtype, destination.data(), pointers.data(), n, bytes, divisor);
    ASSERT_TRUE(destination.holds(expected)) << describe(expected, destination.data(), element_bytes(dtype));
    if (alias < n) destination.set(contents[alias]);
    for (size_t s = 0; s < n; ++s) {
      ASSERT_TRUE(sources[s].holds(contents[s])) << "source " << s << " changed";
      ASSERT_TRUE(sources[s].guards_intact()) << "beside source " << s;
    }
    ASSERT_TRUE(apart.guards_intact());
  }
}

TEST_P(Sum, MatchesReference) {
  const uint8_t dtype = GetParam().dtype;
  const size_t size = element_bytes(dtype);
  // Lengths around one vector, one step of four vectors, and a chunk, for vectors of 4 to 64 bytes.
  const size_t lengths[] = {0,
                            size,
                            2 * size,
                            16 - size,
                            16,
                            64 - size,
                            64,
                            64 + size,
                            192 + 3 * size,
                            256 - size,
                            256,
                            256 + 5 * size,
                            1024 - size,
                            1024,
                            1024 + size,
                            1024 + 64 + 7 * size,
                            2816};
  std::mt19937 random(20261);
  size_t rotation = 0;
  for (const size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33}) {
    for (const size_t bytes : lengths) {
      for (const uint32_t divisor : {1u, 2u, 3u, 7u, 4u}) {
        std::vector<Buffer> contents;
        for (size_t s = 0; s < n; ++s) contents.push_back(random_buffer(dtype, bytes, random));
        check_aliasing(dtype, contents, divisor, rotation++ % std::size(kOffsets));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Sum, EveryOffsetAndLength) {
  const uint8_t dtype = GetParam().dtype;
  std::mt19937 random(20262);
  for (size_t offset = 0; offset < std::size(kOffsets); ++offset) {
    for (size_t bytes = 0; bytes <= 600; bytes += element_bytes(dtype)) {
      const std::vector<Buffer> contents = {random_buffer(dtype, bytes, random), random_buffer(dtype, bytes, random)};
      check_aliasing(dtype, contents, 1, offset);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Sum, PairsOfSpecialValues) {
  const uint8_t dtype = GetParam().dtype;
  const auto check = [&](const auto& specials) {
    const size_t size = element_bytes(dtype);
    Buffer a;
    Buffer b;
    for (const uint32_t x : specials) {
      for (const uint32_t y : specials) {
        a.insert(a.end(), reinterpret_cast<const uint8_t*>(&x), reinterpret_cast<const uint8_t*>(&x) + size);
        b.insert(b.end(), reinterpret_cast<const uint8_t*>(&y), reinterpret_cast<const uint8_t*>(&y) + size);
      }
    }
    for (const uint32_t divisor : {1u, 3u, 1u << 31, 0xFFFFFFFFu}) {
      check_aliasing(dtype, {a, b}, divisor, 8);
      check_aliasing(dtype, {a, b, a}, divisor, 8);
      if (HasFatalFailure()) return;
    }
  };
  switch (dtype) {
    case GG_FLOAT32:
      return check(kSpecialFloat32);
    case GG_FLOAT16:
      return check(kSpecialFloat16);
    case GG_BFLOAT16:
      return check(kSpecialBfloat16);
    default:
      return check(kSpecialInt32);
  }
}

TEST_P(Sum, MostSources) {
  const uint8_t dtype = GetParam().dtype;
  std::mt19937 random(20263);
  std::vector<Buffer> contents;
  std::vector<const uint8_t*> pointers;
  for (size_t s = 0; s < kMaxSources; ++s) contents.push_back(random_buffer(dtype, 300, random));
  for (const Buffer& content : contents) pointers.push_back(content.data());
  Buffer result(300);
  for (const uint32_t divisor : {1u, uint32_t{kMaxSources}}) {
    sum(dtype, result.data(), pointers.data(), pointers.size(), result.size(), divisor);
    EXPECT_EQ(result, reference_sum(dtype, contents, divisor));
  }
}

// x + (-0) is x for every x, both zeros included.
TEST_P(Sum16, EveryValueConvertsThereAndBack) {
  const uint8_t dtype = GetParam().dtype;
  const uint32_t infinity = (dtype == GG_FLOAT16 ? kFloat16 : kBfloat16).infinity();
  std::vector<uint16_t> values(65536);
  std::vector<uint16_t> expected(65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    values[i] = static_cast<uint16_t>(i);
    const bool is_nan = (i & 0x7FFF) > infinity;
    expected[i] = static_cast<uint16_t>(!is_nan ? i : dtype == GG_FLOAT16 ? 0x7E00 : 0x7FC0);
  }
  const std::vector<uint16_t> minus_zero(65536, 0x8000);
  const uint8_t* sources[] = {reinterpret_cast<const uint8_t*>(values.data()),
                              reinterpret_cast<const uint8_t*>(minus_zero.data())};
  std::vector<uint16_t> result(65536);
  sum(dtype, reinterpret_cast<uint8_t*>(result.data()), sources, 2, 2 * 65536, 1);
  EXPECT_EQ(result, expected);
}

// Every value with one that puts the sum at, just below and just above the middle between two neighbours, and divided.
TEST_P(Sum16, EveryValueRounds) {
  const uint8_t dtype = GetParam().dtype;
  Buffer values(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    values[2 * i] = static_cast<uint8_t>(i);
    values[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  const int half_unit = dtype == GG_FLOAT16 ? 11 : 8;
  const Format& format = dtype == GG_FLOAT16 ? kFloat16 : kBfloat16;
  Buffer halves(values.size());
  for (const float factor : {1.0f, 0.9f, 1.1f, 3.0f}) {
    for (size_t i = 0; i < 65536; ++i) {
      const float value = widen(static_cast<uint16_t>(i), format);
      const float half =
          std::isfinite(value) && value != 0 ? std::ldexp(factor, std::ilogb(value) - half_unit) : factor;
      const uint16_t bits = narrow(half, format);
      std::memcpy(halves.data() + 2 * i, &bits, sizeof(bits));
    }
    for (const uint32_t divisor : {1u, 2u, 3u}) {
      const Buffer expected = reference_sum(dtype, {values, halves}, divisor);
      const uint8_t* sources[] = {values.data(), halves.data()};
      Buffer result(values.size());
      sum(dtype, result.data(), sources, 2, result.size(), divisor);
      ASSERT_EQ(describe(expected, result.data(), 2), "equal") << "factor " << factor << ", divisor " << divisor;
    }
  }
}

// Signalling NaNs and all: broadcasts and all-gathers go through sum() too.
TEST(Copy, KeepsEveryByte) {
  const Buffer content = {0x01, 0x00, 0x80, 0x7F, 0xFF, 0xFF, 0xBF, 0xFF};
  const uint8_t* source = content.data();
  for (const uint8_t dtype : {GG_BYTES, GG_FLOAT32, GG_FLOAT16, GG_BFLOAT16, GG_INT32}) {
    Buffer result(content.size());
    sum(dtype, result.data(), &source, 1, result.size(), 1);
    EXPECT_EQ(result, content);
    sum(dtype, result.data(), &source, 1, 0, 1);
    EXPECT_EQ(result, content);
  }
  Buffer odd(7);
  sum(GG_BYTES, odd.data(), &source, 1, odd.size(), 1);
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), content.begin()));
}

TEST(Targets, UnknownNameIsRefused) {
  EXPECT_FALSE(select_target("no such target"));
  EXPECT_FALSE(targets().empty());
}

}  // namespace
}  // namespace gradgate::reduce
