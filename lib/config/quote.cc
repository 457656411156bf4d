// SPDX-License-Identifier: Apache-2.0
#include "config/quote.h"

#include <fmt/format.h>

namespace gradgate::config {

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShownBytes = 64;
  std::size_t shown = text.size();
  if (shown > kShownBytes) {
    shown = kShownBytes;
    // Not inside a UTF-8 sequence: its continuation bytes are 10xxxxxx.
    while (shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80) --shown;
  }
  return fmt::format("\"{}{}\"", printable(text.substr(0, shown)), shown < text.size() ? "…" : "");
}

std::string join(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) {
    if (!out.empty()) out += ", ";
    out += item;
  }
  return out;
}

}  // namespace gradgate::config
