// SPDX-License-Identifier: Apache-2.0
// Checksums over whole packets; C++ only, the kernel side never sums a payload.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradgate::wire {

/// CRC32C (Castagnoli, RFC 3720 appendix B.4) of `length` bytes at any alignment. `seed` is the value returned for
/// the bytes before these, 0 at the start.
uint32_t crc32c(const uint8_t* data, size_t length, uint32_t seed = 0);

/// The trailer's CRC32C of a packet that starts with its link header: `length` bytes without the trailer, the
/// mutable bits (GG_FLAGS_MUTABLE) taken as zero. It goes on the wire big-endian, as every header field (gg_put32).
uint32_t packet_crc32c(const uint8_t* link_header, size_t length);

/// 16-bit one's complement sum of big-endian words (RFC 1071), not complemented; an odd last byte is padded with
/// zero. Sums of pieces of even length may be added and folded by gg_sum_fold.
uint32_t sum16(const uint8_t* data, size_t length);

}  // namespace gradgate::wire
