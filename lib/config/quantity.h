// SPDX-License-Identifier: Apache-2.0
// Quantities with a unit, as people write them: "2.5 Gbit/s", "30 ms", "2 GiB". Exact integer arithmetic: a value that
// is no whole number of the base unit is refused, never rounded. Units are case sensitive (Mbit is not mbit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradgate::config {

struct Quantity {
  std::optional<std::uint64_t> value;  // in the base unit; empty where refused
  std::string what;                    // why it was refused, for example: "10 Gbps" has the unit "Gbps"
  std::string remedy;                  // what would be right, for example: use bit/s, kbit/s, Mbit/s or Gbit/s
};

Quantity parse_rate(std::string_view text);      // bits per second: bit/s kbit/s Mbit/s Gbit/s (powers of 1000)
Quantity parse_duration(std::string_view text);  // nanoseconds: us µs ms s min h
Quantity parse_size(std::string_view text);      // bytes: B, KiB MiB GiB (powers of 1024), kB MB GB (powers of 1000)

// In the largest unit that gives a whole number, so that the matching parser reads it back.
std::string format_rate(std::uint64_t bits_per_second);
std::string format_duration(std::uint64_t ns);  // below a microsecond's precision, in ns, which is not read back
std::string format_size(std::uint64_t bytes);

}  // namespace gradgate::config
