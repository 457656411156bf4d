// SPDX-License-Identifier: Apache-2.0
#include "dataplane/memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace gradgate::dataplane {

namespace {

constexpr uint32_t kPageBytes = 4096;
// rte_mempool_objhdr, rte_mbuf, headroom; ports.cc checks them against DPDK's.
constexpr uint32_t kBufferHeaderBytes = 64 + 128 + 128;
/// What the kernel keeps free before the packet in an AF_XDP frame (XDP_PACKET_HEADROOM).
constexpr uint32_t kXdpHeadroomBytes = 256;
constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kLinkLayerBytes = kEthernetBytes + 2 * 4 + 4;  // with two VLAN tags and the FCS
constexpr uint32_t kUsualDataBytes = 2048;
/// EAL, rings, descriptors of virtual devices.
constexpr uint64_t kBaseBytes = 64 << 20;
constexpr uint64_t kBytesPerPort = 16 << 20;

bool needs_hugepages(const config::PortDevice& device) {
  return device.kind == config::PortDevice::Kind::kPci || device.text.starts_with("net_vhost") ||
         device.text.starts_with("net_virtio_user");
}

}  // namespace

PoolShape pool_shape(const config::Port& port, const config::Dataplane& dataplane) {
  PoolShape shape;
  shape.buffers = dataplane.buffers_per_port;
  if (port.device.kind == config::PortDevice::Kind::kInterface) {
    shape.exact = true;
    const uint32_t needed = kBufferHeaderBytes + kXdpHeadroomBytes + kEthernetBytes + port.mtu_bytes;
    shape.element_bytes = needed <= kPageBytes / 2 ? kPageBytes / 2 : kPageBytes;
  } else {
    // One segment holds the largest packet: the core wants payloads in one piece.
    shape.element_bytes = kBufferHeaderBytes + std::max(port.mtu_bytes + kLinkLayerBytes, kUsualDataBytes);
    shape.element_bytes = (shape.element_bytes + 63) / 64 * 64;
  }
  return shape;
}

MemoryPlan plan_memory(const config::Site& site, uint64_t free_bytes) {
  MemoryPlan plan;
  plan.free_hugepage_bytes = free_bytes;
  plan.needed_bytes = kBaseBytes;
  for (const config::Port& port : site.ports) {
    const PoolShape shape = pool_shape(port, site.dataplane);
    // Without hugepages no element straddles a page.
    const uint64_t each =
        shape.exact ? shape.element_bytes : (shape.element_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    plan.needed_bytes += shape.buffers * each + kBytesPerPort;
  }
  plan.hugepages = site.dataplane.hugepages == config::Hugepages::kAuto && free_bytes >= plan.needed_bytes;
  if (plan.hugepages) return plan;
  const auto lacking = std::find_if(site.ports.begin(), site.ports.end(),
                                    [](const config::Port& port) { return needs_hugepages(port.device); });
  if (lacking != site.ports.end()) plan.lacking_device = lacking->device.text;
  return plan;
}

uint64_t free_hugepage_bytes() {
  uint64_t total = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", error)) {
    const std::string name = entry.path().filename();  // hugepages-2048kB
    const std::string prefix = "hugepages-";
    uint64_t free = 0;
    std::ifstream(entry.path() / "free_hugepages") >> free;
    if (free > 0 && name.starts_with(prefix)) total += free * std::stoull(name.substr(prefix.size())) * 1024;
  }
  return total;
}

}  // namespace gradgate::dataplane
