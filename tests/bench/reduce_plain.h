// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// The bars of the reduce benchmark: plain loops, vectorised by the compiler, one pass over all sources.
namespace gradgate::bench {

/// `destination` may be sources[0]; the number of sources is fixed in the function.
using PlainSum = void (*)(uint8_t* destination, uint8_t* const* sources, size_t bytes);

struct Plain {
  std::string name;
  PlainSum sum;
};

/// Those this CPU can run, for n = 2, 4 or 8 sources of enum gg_dtype.
std::vector<Plain> plain_sums(uint8_t dtype, size_t n);

}  // namespace gradgate::bench
