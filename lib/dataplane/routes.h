// SPDX-License-Identifier: Apache-2.0
// From a neighbour's index to the headers of a packet to it. No DPDK.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/site.h"
#include "dataplane/dataplane.h"
#include "wire/gg_build.h"

namespace gradgate::dataplane {

using Mac = std::array<uint8_t, 6>;
using Ip4 = std::array<uint8_t, 4>;

/// One neighbour's way out, made by the control thread when a snapshot is published.
struct Route {
  bool in_use = false;
  bool peer = false;
  bool port_per_lane = false;
  uint16_t port = 0;     ///< position in Site::ports
  uint16_t mac_tag = 0;  ///< key in the MacTable; 0: path.destination_mac is final
  Ip4 next_hop{};        ///< whose link-layer address the neighbour has; where no kernel routes
  gg_path path{};        ///< source_port and destination_port are lane 0's
};

/// What lcores pick up.
struct Published {
  std::shared_ptr<const Snapshot> snapshot;
  std::vector<Route> routes;  ///< parallel to the neighbours
};

/// `macs`: own addresses by position in Site::ports.
std::unique_ptr<const Published> publish_routes(const config::Site& site, const std::vector<Mac>& macs,
                                                std::shared_ptr<const Snapshot> snapshot);

/// Link-layer addresses of neighbours, as learnt from what they send; one table for all lcores, any of which may
/// write. An entry is bound to its neighbour's (port, IP) by a tag, so that an index that control gives to another
/// neighbour starts unknown without anybody clearing it.
class MacTable {
 public:
  MacTable() : entries_(1 << 16) {}

  /// Never 0.
  static uint16_t tag(uint16_t port, const Ip4& ip);

  bool find(uint32_t neighbour, uint16_t tag, uint8_t* mac) const {
    const uint64_t entry = entries_[neighbour].load(std::memory_order_relaxed);
    if (entry >> 48 != tag) return false;
    for (unsigned i = 0; i < 6; ++i) mac[i] = static_cast<uint8_t>(entry >> (40 - 8 * i));
    return true;
  }

  void learn(uint32_t neighbour, uint16_t tag, const uint8_t* mac) {
    uint64_t entry = tag;
    for (unsigned i = 0; i < 6; ++i) entry = entry << 8 | mac[i];
    // Read first: the line stays shared between cores as long as nothing changes.
    if (entries_[neighbour].load(std::memory_order_relaxed) != entry)
      entries_[neighbour].store(entry, std::memory_order_relaxed);
  }

 private:
  std::vector<std::atomic<uint64_t>> entries_;  ///< tag (16 bits), MAC (48 bits)
};

}  // namespace gradgate::dataplane
