// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

/// For tests and benchmarks only: sum() picks the best target by itself.
namespace gradgate::reduce {

/// Names of the instruction sets ("AVX3", "AVX2", ..., "SCALAR") compiled in and supported by this CPU, best first.
std::vector<std::string> targets();

/// Makes sum() use the target of this name from now on, in all threads. False, without effect, if targets() lacks it.
bool select_target(std::string_view name);

}  // namespace gradgate::reduce
