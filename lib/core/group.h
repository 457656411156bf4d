// SPDX-License-Identifier: Apache-2.0
// What the members of a group agreed on when it formed; immutable afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"

namespace gradgate::core {

struct GroupMember {
  uint16_t rank = 0;
  uint32_t neighbour = kNoNeighbour;
  uint32_t label = 0;  ///< the worker's label, put into packets to it
};

struct GroupSite {
  uint16_t site = 0;
  uint32_t neighbour = kNoNeighbour;  ///< kNoNeighbour for this gateway's own site
  uint32_t weight = 1;                ///< share of the roots in sharded calls
};

/// How partial sums meet across sites (DESIGN section 5, rule 3).
struct GroupConfig {
  std::string name;             ///< "job/group" for messages
  uint32_t context = 0;         ///< this gateway's label context of the group
  uint32_t generation = 0;      ///< distinguishes groups that reuse a context
  uint16_t size = 0;            ///< ranks
  uint32_t chunk_bytes = 1024;  ///< a power of two
  uint8_t lanes = 1;            ///< a power of two
  uint32_t window = 64;         ///< slots per lane; a power of two
  /// All-reduces with three and more sites use exchange up to this many bytes, sharded roots above.
  uint32_t exchange_limit_bytes = 64 * 1024;
  std::vector<GroupMember> members;    ///< local workers, by rank
  std::vector<GroupSite> sites;        ///< all sites of the group by site id, this one included
  std::vector<uint16_t> site_of_rank;  ///< site id by rank
  std::vector<uint32_t> start;         ///< first index of each lane: start[l] mod lanes == l
  Nanoseconds stall_report_ns = 10 * kSecond;
  Nanoseconds call_timeout_ns = 600 * kSecond;
};

/// Buffers that a group reserves on one gateway (DESIGN section 5, rule 8):
/// window x lanes x (local sources + sites + 1).
constexpr uint64_t group_buffers(uint64_t window, uint64_t lanes, uint64_t local_members, uint64_t sites) {
  return window * lanes * (local_members + sites + 1);
}

}  // namespace gradgate::core
