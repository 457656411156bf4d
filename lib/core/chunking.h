// SPDX-License-Identifier: Apache-2.0
// How a call's bytes become chunks, and which lane carries which.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wire/gg_wire.h"

namespace gradgate::core {

/// Calls of up to this many chunks use one lane, so that their tails are short (DESIGN section 6).
constexpr uint64_t kOneLaneChunks = 64;

/// The chunks of one call. Reduce-scatter and all-gather are numbered shard-interleaved: chunk k belongs to owner
/// k mod ranks (DESIGN section 2), so that all sites are loaded at once. Every call has at least one chunk: also an
/// empty one is compared.
struct Chunking {
  uint64_t shard_bytes = 0;  ///< of one owner; the whole call where there are no owners
  uint32_t chunk_bytes = 1;
  uint32_t owners = 1;
  uint64_t chunks = 1;

  Chunking() = default;
  Chunking(uint8_t kind, uint64_t total_bytes, uint32_t chunk, uint16_t ranks)
      : chunk_bytes(chunk), owners(kind == GG_REDUCE_SCATTER || kind == GG_ALL_GATHER ? ranks : 1) {
    shard_bytes = total_bytes / owners;
    chunks = owners * std::max<uint64_t>(1, (shard_bytes + chunk - 1) / chunk);
  }

  uint16_t owner(uint64_t k) const { return static_cast<uint16_t>(k % owners); }
  uint64_t shard_offset(uint64_t k) const { return k / owners * chunk_bytes; }
  uint64_t offset(uint64_t k) const { return owner(k) * shard_bytes + shard_offset(k); }
  uint32_t length(uint64_t k) const {
    return static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes, shard_bytes - shard_offset(k)));
  }

  /// Chunks of call number `call` on `lane`: first, first + stride, …
  struct Share {
    uint64_t first, stride, count;
  };
  Share share(uint32_t call, uint8_t lane, uint8_t lanes) const {
    // Chunk 0 is on lane call mod lanes either way, so that calls of different sizes meet in one slot and are
    // compared.
    const uint64_t first = (lane + lanes - call % lanes) % lanes;
    if (chunks <= kOneLaneChunks) return {0, 1, first == 0 ? chunks : 0};
    return {first, lanes, first < chunks ? (chunks - first + lanes - 1) / lanes : 0};
  }
};

}  // namespace gradgate::core
