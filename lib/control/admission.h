// SPDX-License-Identifier: Apache-2.0
// How many slots a group gets, and whether they fit (DESIGN section 5, rule 8). Pure arithmetic.
#pragma once

#include <cstdint>
#include <string>

namespace gradgate::control {

constexpr uint32_t kMinWindow = 16;       ///< slots per lane below which a group is refused
constexpr uint32_t kMinTotalSlots = 512;  ///< all lanes; what workers on one LAN need

/// What a group needs on one gateway.
struct Demand {
  uint32_t lanes = 1;
  uint32_t chunk_bytes = 1024;
  uint64_t local_members = 1;
  uint64_t sites = 1;
  double bdp_bytes = 0;  ///< largest rate x RTT of its peers; 0 without peers
};

/// What is left for it.
struct Room {
  std::string tenant;
  uint64_t tenant_bytes = 0, tenant_bytes_left = 0;
  uint64_t buffers = 0, buffers_left = 0;  ///< of the smallest port's pool
  uint64_t buffer_bytes = 2048;
};

/// Slots per lane that keep the slowest peer's pipe full: 3 RTT, 3.5 RTT with three and more sites.
uint32_t wanted_window(const Demand& demand);

bool fits(const Demand& demand, const Room& room, uint32_t window);

/// The largest power of two up to `limit` that takes at most half of what is left, so that later groups find room too;
/// kMinWindow if it fits at all, else 0.
uint32_t fitting_window(const Demand& demand, const Room& room, uint32_t limit);

/// Why kMinWindow does not fit: needed, left, and the slots per lane that would fit.
std::string no_room_text(const std::string& group, const Demand& demand, const Room& room);

}  // namespace gradgate::control
