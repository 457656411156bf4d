// SPDX-License-Identifier: Apache-2.0
// Internal to lib/config: what toml++ 3.3 must not be given, found before it parses.
#pragma once

#include <optional>
#include <string_view>

#include "config/site.h"

namespace gradgate::config {

// - A character outside ASCII that is in no string or comment (TOML has none there; typographic quotes are the usual
//   one): toml++ runs into undefined behaviour in its test for white space.
// - Keys of hundreds of parts: toml++ limits nested values, but not a.b.c… of one key, and destroys tables recursively.
// Other faults are left to toml++.
std::optional<Fault> scan(std::string_view text);

}  // namespace gradgate::config
