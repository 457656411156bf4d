// SPDX-License-Identifier: Apache-2.0
// A call of a group as its chunks carry it, and who contributes and who receives (DESIGN section 5).
#pragma once

#include <cstdint>

#include "wire/gg_wire.h"

namespace gradgate::core {

/// What every frame of a call says about it; members that disagree in any field have called different collectives.
struct CallParameters {
  uint32_t call = 0;      ///< number of the call in its group
  uint32_t elements = 0;  ///< of the whole call
  uint16_t root = 0;      ///< root (broadcast, reduce) or owner of this chunk (reduce-scatter, all-gather)
  uint8_t kind = GG_KIND_NONE;
  uint8_t dtype = GG_BYTES;
  uint16_t op = GG_OP_NONE;
  uint16_t length = 0;  ///< payload bytes of this chunk

  bool operator==(const CallParameters&) const = default;
};

constexpr bool is_source(const CallParameters& call, uint16_t rank) {
  switch (call.kind) {
    case GG_ALL_GATHER:
    case GG_BROADCAST:
      return rank == call.root;
    default:
      return true;
  }
}

constexpr bool is_sink(const CallParameters& call, uint16_t rank) {
  switch (call.kind) {
    case GG_REDUCE_SCATTER:
    case GG_REDUCE:
      return rank == call.root;
    default:
      return true;
  }
}

/// Whether the kind, type and operation belong together; a frame that fails is malformed.
constexpr bool is_consistent(const CallParameters& call) {
  switch (call.kind) {
    case GG_ALL_REDUCE:
    case GG_REDUCE_SCATTER:
    case GG_REDUCE:
      return call.dtype != GG_BYTES && (call.op == GG_SUM || call.op == GG_AVERAGE) &&
             call.length % gg_dtype_bytes(call.dtype) == 0;
    case GG_ALL_GATHER:
    case GG_BROADCAST:
      return call.op == GG_OP_NONE && call.length % gg_dtype_bytes(call.dtype) == 0;
    case GG_BARRIER:
      return call.op == GG_OP_NONE && call.length == 0 && call.elements == 0;
    default:
      return false;
  }
}

}  // namespace gradgate::core
