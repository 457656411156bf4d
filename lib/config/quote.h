// SPDX-License-Identifier: Apache-2.0
// Text from a file, made fit for one line of a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradgate::config {

// Control characters as \n, \t or \xNN; UTF-8 as it is.
std::string printable(std::string_view text);
// The same in double quotes; cut after some 64 bytes, so that a message stays readable.
std::string in_quotes(std::string_view text);
// "a, b, c". fmt::join would do, but makes g++ 12 warn inside fmt 9.
std::string join(const std::vector<std::string>& items);

}  // namespace gradgate::config
