// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace gradgate::dataplane {

/// As fmt::join, whose inlined parser makes g++ 12 warn of a buffer overflow that is none.
template <typename Range>
std::string join(const Range& range, std::string_view separator) {
  std::string text;
  for (const auto& element : range) {
    if (!text.empty()) text += separator;
    text += fmt::format("{}", element);
  }
  return text;
}

}  // namespace gradgate::dataplane
