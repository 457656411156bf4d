// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradgate::reduce {

/// Most buffers one call sums.
inline constexpr size_t kMaxSources = 4096;

/// Sums `n` buffers of `bytes` bytes elementwise, in the order given (rank order), in one pass, into `destination`.
/// Never allocates, throws or locks; the result's bits depend on the sources and their order only, not on the CPU.
///
/// @param dtype        GG_FLOAT32, GG_FLOAT16, GG_BFLOAT16 or GG_INT32 (enum gg_dtype); GG_BYTES only to copy
/// @param destination  `bytes` bytes at any alignment; may be any one of the sources, may not partly overlap one
/// @param sources      `n` pointers, 1 <= n <= kMaxSources, each to `bytes` bytes at any alignment
/// @param bytes        a multiple of the element's size; 0 is allowed
/// @param divisor      1 for the sum; otherwise the sum is divided by it (average); never 0
///
/// n = 1 with divisor 1 copies the bytes as they are, whatever the dtype. Otherwise:
/// - float32: ((a0 + a1) + a2) + ..., then divided, each rounded to nearest even; denormals are kept; every NaN
///   becomes 0x7fc00000.
/// - float16, bfloat16: as float32 on exactly converted elements, then rounded once to nearest even, to denormals and
///   infinity too; every NaN becomes 0x7e00 (float16) or 0x7fc0 (bfloat16).
/// - int32: wraps around (two's complement); division truncates toward zero.
/// The calling thread must have the default floating-point environment (nearest even; no flush to zero).
void sum(uint8_t dtype, uint8_t* destination, const uint8_t* const* sources, size_t n, size_t bytes, uint32_t divisor);

}  // namespace gradgate::reduce
