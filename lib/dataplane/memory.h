// SPDX-License-Identifier: Apache-2.0
// How much packet memory the ports take and where it comes from. No DPDK.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/site.h"

namespace gradgate::dataplane {

struct PoolShape {
  uint32_t buffers = 0;
  uint32_t element_bytes = 0;  ///< a buffer with all its headers
  /// Elements are exactly this large: the AF_XDP PMD needs 2048 or 4096 (DESIGN section 7). Elsewhere DPDK pads.
  bool exact = false;
};

PoolShape pool_shape(const config::Port& port, const config::Dataplane& dataplane);

struct MemoryPlan {
  uint64_t needed_bytes = 0;
  uint64_t free_hugepage_bytes = 0;
  bool hugepages = false;  ///< use them
  /// Set: a device that does not work without hugepages, of which there are too few.
  std::string lacking_device;
};

MemoryPlan plan_memory(const config::Site& site, uint64_t free_hugepage_bytes);

/// Of all sizes, on the whole machine.
uint64_t free_hugepage_bytes();

}  // namespace gradgate::dataplane
