// SPDX-License-Identifier: Apache-2.0
#include "config/scan.h"

#include <fmt/format.h>

namespace gradgate::config {
namespace {

constexpr unsigned kMaxDotsInLine = 256;

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}
bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Behind the string that begins at `at`; npos where it does not end.
std::size_t skip_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view triple = quote == '"' ? "\"\"\"" : "'''";
  const bool multi_line = text.substr(at).starts_with(triple);
  at += multi_line ? 3 : 1;
  while (at < text.size()) {
    if (quote == '"' && text[at] == '\\') {
      at += 2;
    } else if (!multi_line && text[at] == '\n') {
      return std::string_view::npos;
    } else if (!multi_line && text[at] == quote) {
      return at + 1;
    } else if (multi_line && text.substr(at).starts_with(triple)) {
      at += 3;
      // TOML 1.0: one or two quotes may stand right before the closing three.
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    } else {
      ++at;
    }
  }
  return std::string_view::npos;
}

Fault fault_at(std::string_view text, std::size_t at, std::string what, std::string remedy) {
  Fault fault{1, 1, "", std::move(what), std::move(remedy)};
  for (const char c : text.substr(0, at)) {
    if (c == '\n') {
      ++fault.line;
      fault.column = 1;
    } else if (!is_continuation(c)) {
      ++fault.column;
    }
  }
  return fault;
}

}  // namespace

std::optional<Fault> scan(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  unsigned dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '#') {
      at = text.find('\n', at);
    } else if (c == '"' || c == '\'') {
      at = skip_string(text, at);
    } else if (!is_ascii(c)) {
      return fault_at(text, at, "a character that is not ASCII stands in no string",
                      "put strings into straight double quotes, and remove it elsewhere");
    } else {
      if (c == '\n') dots = 0;
      if (c == '.' && ++dots > kMaxDotsInLine) {
        return fault_at(text, at, fmt::format("more than {} dots in one line", kMaxDotsInLine),
                        "no key has so many parts: write the line on several");
      }
      ++at;
    }
  }
  return std::nullopt;
}

}  // namespace gradgate::config
