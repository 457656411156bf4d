// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/gg_wire.h"

/// What one compiled target offers to sum(): a table, so that a call costs one indirect jump.
namespace gradgate::reduce {

using Kernel = void (*)(uint8_t* destination, const uint8_t* const* sources, size_t n, size_t bytes, uint32_t divisor);

struct DtypeKernels {
  std::array<Kernel, 4> sum;  ///< for any n, and for n = 2, 4 and 8; divisor is 1
  Kernel average;
  size_t element_bytes;
};

/// Place in DtypeKernels::sum by n; 0 beyond.
inline constexpr std::array<uint8_t, 9> kKernelOfCount = {0, 0, 1, 0, 2, 0, 0, 0, 3};

/// By enum gg_dtype; GG_BYTES has none.
using Kernels = std::array<DtypeKernels, GG_DTYPE_COUNT>;

}  // namespace gradgate::reduce
