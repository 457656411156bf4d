// SPDX-License-Identifier: Apache-2.0
#include "config/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "config/quote.h"

namespace gradgate::config {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

struct Dimension {
  std::span<const Unit> units;  // ascending
  std::string_view units_text;
  std::string_view example;
  std::string_view base;
};

constexpr Unit kRateUnits[] = {{"bit/s", 1}, {"kbit/s", 1'000}, {"Mbit/s", 1'000'000}, {"Gbit/s", 1'000'000'000}};
// µ is U+00B5 on Western keyboards and U+03BC on Greek ones and after Unicode normalisation.
constexpr Unit kDurationUnits[] = {{"us", 1'000},           {"\u00b5s", 1'000},   {"\u03bcs", 1'000},
                                   {"ms", 1'000'000},       {"s", 1'000'000'000}, {"min", 60'000'000'000},
                                   {"h", 3'600'000'000'000}};
constexpr Unit kSizeUnits[] = {{"B", 1},           {"kB", 1'000},       {"KiB", 1ULL << 10},
                               {"MB", 1'000'000},  {"MiB", 1ULL << 20}, {"GB", 1'000'000'000},
                               {"GiB", 1ULL << 30}};

constexpr Dimension kRate = {kRateUnits, "bit/s, kbit/s, Mbit/s or Gbit/s", "10 Gbit/s", "bits per second"};
constexpr Dimension kDuration = {kDurationUnits, "us, µs, ms, s, min or h", "30 ms", "nanoseconds"};
constexpr Dimension kSize = {kSizeUnits, "B, KiB, MiB, GiB, kB, MB or GB", "2 GiB", "bytes"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

Quantity refused(const Dimension& dimension, std::string what) {
  return {std::nullopt, std::move(what),
          fmt::format("write a number and one of {}, for example \"{}\"", dimension.units_text, dimension.example)};
}

Quantity parse(const Dimension& dimension, std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && is_digit(text[at])) ++at;
  const std::string_view whole = text.substr(0, at);
  std::string_view fraction;
  if (at < text.size() && text[at] == '.') {
    const std::size_t start = ++at;
    while (at < text.size() && is_digit(text[at])) ++at;
    fraction = text.substr(start, at - start);
    if (fraction.empty()) return refused(dimension, fmt::format("{} is no quantity", in_quotes(text)));
  }
  if (whole.empty()) return refused(dimension, fmt::format("{} does not begin with a number", in_quotes(text)));
  while (at < text.size() && text[at] == ' ') ++at;
  const std::string_view name = text.substr(at);
  if (name.empty()) return refused(dimension, fmt::format("{} has no unit", in_quotes(text)));
  const auto unit =
      std::find_if(dimension.units.begin(), dimension.units.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == dimension.units.end()) {
    return refused(dimension, fmt::format("{} has the unit {}", in_quotes(text), in_quotes(name)));
  }

  // Trailing zeros carry nothing; what remains of more than 18 digits is no whole number of any base unit here.
  while (!fraction.empty() && fraction.back() == '0') fraction.remove_suffix(1);
  unsigned __int128 value = 0;
  constexpr unsigned __int128 kMax = UINT64_MAX;
  for (const char digit : whole) {
    value = value * 10 + static_cast<unsigned>(digit - '0');
    if (value > kMax) return refused(dimension, fmt::format("{} is too large", in_quotes(text)));
  }
  value *= unit->factor;
  unsigned __int128 part = 0;
  unsigned __int128 scale = 1;
  if (fraction.size() <= 18) {
    for (const char digit : fraction) {
      part = part * 10 + static_cast<unsigned>(digit - '0');
      scale *= 10;
    }
  }
  if (fraction.size() > 18 || part * unit->factor % scale != 0) {
    return refused(dimension, fmt::format("{} is no whole number of {}", in_quotes(text), dimension.base));
  }
  value += part * unit->factor / scale;
  if (value > kMax) return refused(dimension, fmt::format("{} is too large", in_quotes(text)));
  return {static_cast<std::uint64_t>(value), {}, {}};
}

std::string format(const Dimension& dimension, std::uint64_t value, std::string_view base_unit) {
  for (auto unit = dimension.units.rbegin(); unit != dimension.units.rend(); ++unit) {
    if (value != 0 && value % unit->factor == 0) return fmt::format("{} {}", value / unit->factor, unit->name);
  }
  return fmt::format("{} {}", value, base_unit);
}

}  // namespace

Quantity parse_rate(std::string_view text) {
  return parse(kRate, text);
}
Quantity parse_duration(std::string_view text) {
  return parse(kDuration, text);
}
Quantity parse_size(std::string_view text) {
  return parse(kSize, text);
}

std::string format_rate(std::uint64_t bits_per_second) {
  return format(kRate, bits_per_second, "bit/s");
}

std::string format_duration(std::uint64_t ns) {
  // "us" rather than a µ, which not every terminal shows.
  if (ns % 1'000 == 0 && ns % 1'000'000 != 0) return fmt::format("{} us", ns / 1'000);
  return format(kDuration, ns, "ns");
}

std::string format_size(std::uint64_t bytes) {
  return format(kSize, bytes, "B");
}

}  // namespace gradgate::config
