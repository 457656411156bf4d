// SPDX-License-Identifier: Apache-2.0
#include "control/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "config/quantity.h"
#include "control/protocol.h"
#include "core/group.h"

namespace gradgate::control {

namespace {

uint64_t buffers_left(const Room& room) {
  return std::min(room.tenant_bytes_left / room.buffer_bytes, room.buffers_left);
}

uint64_t buffers_needed(const Demand& demand, uint32_t window) {
  return core::group_buffers(window, demand.lanes, demand.local_members, demand.sites);
}

}  // namespace

uint32_t wanted_window(const Demand& demand) {
  const double round_trips = demand.sites >= 3 ? 3.5 : 3;
  const double slots = std::max<double>(kMinTotalSlots, round_trips * demand.bdp_bytes / demand.chunk_bytes);
  const double most = static_cast<double>(kMaxWindow) * demand.lanes;
  const uint64_t total = std::bit_ceil(static_cast<uint64_t>(std::min(slots, most)));
  return static_cast<uint32_t>(std::clamp<uint64_t>(total / demand.lanes, kMinWindow, kMaxWindow));
}

bool fits(const Demand& demand, const Room& room, uint32_t window) {
  return buffers_needed(demand, window) <= buffers_left(room);
}

uint32_t fitting_window(const Demand& demand, const Room& room, uint32_t limit) {
  uint32_t window = limit;
  while (window > kMinWindow && buffers_needed(demand, window) > buffers_left(room) / 2) window /= 2;
  return window >= kMinWindow && fits(demand, room, window) ? window : 0;
}

std::string no_room_text(const std::string& group, const Demand& demand, const Room& room) {
  const uint64_t needed = buffers_needed(demand, kMinWindow);
  return fmt::format(
      "group {} does not fit: it needs at least {} buffers ({} slots x {} lanes x ({} workers here + {} sites + 1)), "
      "{} of "
      "memory; left are {} of the {} of tenant {} and {} of the {} buffers of the gateway: {} slots per lane would "
      "fit. "
      "Raise the tenant's memory or [dataplane] buffers, or use fewer groups or lanes",
      group, needed, kMinWindow, demand.lanes, demand.local_members, demand.sites,
      config::format_size(needed * room.buffer_bytes), config::format_size(room.tenant_bytes_left),
      config::format_size(room.tenant_bytes), room.tenant, room.buffers_left, room.buffers,
      buffers_left(room) / buffers_needed(demand, 1));
}

}  // namespace gradgate::control
