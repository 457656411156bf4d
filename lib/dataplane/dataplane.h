// SPDX-License-Identifier: Apache-2.0
// What control sees of the packet side. No DPDK types here, so that control and its tests do without.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/site.h"
#include "core/counters.h"
#include "core/event.h"
#include "core/snapshot.h"
#include "wire/gg_build.h"

namespace gradgate::dataplane {

/// How a neighbour is reached; parallel to core::Snapshot::neighbours.
struct Endpoint {
  uint16_t port = 0;  ///< position of the port in the site's file
  uint8_t modality = GG_MODALITY_UDP4;
  std::array<uint8_t, 4> ip{};   ///< udp4
  std::array<uint8_t, 6> mac{};  ///< ethernet; for udp4 the link-layer address is learnt from what it sends
  /// Destination UDP port: base + lane for gateways (`port_per_lane`), one port for all lanes of a worker.
  uint16_t udp_port = 0;
  bool port_per_lane = true;
};

/// Tag of a source address, for core::Neighbour::source and core::Arrival::source: IPv4 address and UDP port for
/// workers, the address alone for gateways (their source port is base + lane), the MAC for `ethernet`.
constexpr uint64_t source_tag(const std::array<uint8_t, 4>& ip, uint16_t udp_port) {
  return uint64_t{1} << 48 | uint64_t{ip[0]} << 40 | uint64_t{ip[1]} << 32 | uint64_t{ip[2]} << 24 |
         uint64_t{ip[3]} << 16 | udp_port;
}

constexpr uint64_t source_tag(const std::array<uint8_t, 6>& mac) {
  return uint64_t{2} << 48 | uint64_t{mac[0]} << 40 | uint64_t{mac[1]} << 32 | uint64_t{mac[2]} << 24 |
         uint64_t{mac[3]} << 16 | uint64_t{mac[4]} << 8 | mac[5];
}

struct Snapshot {
  std::shared_ptr<const core::Snapshot> core;
  std::vector<Endpoint> endpoints;
};

struct PortStatus {
  std::string name, device, driver;
  bool link_up = false;
  unsigned mtu = 0;
  std::array<uint8_t, 6> mac{};
  uint64_t rx_packets = 0, rx_bytes = 0, rx_missed = 0, rx_no_buffer_polls = 0;
  uint64_t tx_packets = 0, tx_bytes = 0;
  uint64_t buffers = 0, buffers_free = 0;  ///< of the port's pool
  /// ARP, neighbour discovery and ping packets taken, on ports where no kernel does it. The books of a port:
  /// rx_packets = answered + packets handed to lanes + drops other than `no_address` and `tx_full` (those are
  /// packets that were not sent).
  uint64_t answered = 0;
  /// Packets dropped on this port by the lcores before or after the core, by enum gg_drop.
  std::array<uint64_t, GG_DROP_COUNT> drops{};
  /// Packets dropped by the XDP program in the kernel, by enum gg_drop; zero where the port has none.
  std::array<uint64_t, GG_DROP_COUNT> xdp_drops{};
  uint64_t xdp_redirected = 0, xdp_passed = 0, xdp_no_socket = 0;
};

struct LcoreStatus {
  unsigned lcore = 0;
  uint64_t busy_ns = 0, idle_ns = 0, polls = 0, sleeps = 0;
  uint64_t heartbeat_ns = 0;  ///< CLOCK_MONOTONIC of the last loop
};

class Dataplane {
 public:
  virtual ~Dataplane() = default;

  /// Makes `snapshot` the one that lcores pick up at their next burst. Generations rise by one.
  virtual void publish(std::shared_ptr<const Snapshot> snapshot) = 0;
  /// The newest generation that every lcore has adopted; older snapshots may be freed.
  virtual uint64_t adopted_generation() const = 0;
  /// Next event of any lane; false if there is none.
  virtual bool pop_event(core::Event& event) = 0;

  virtual std::vector<const core::LaneCounters*> lane_counters() const = 0;
  virtual std::vector<PortStatus> ports() const = 0;
  virtual std::vector<LcoreStatus> lcores() const = 0;

  /// Packet buffers per port that groups may reserve in total, reserve and rings subtracted; the smallest port's.
  virtual uint64_t admissible_buffers() const = 0;
  /// Bytes that one buffer costs (the pool's element, DESIGN section 5 rule 8).
  virtual uint64_t buffer_bytes() const = 0;
  /// CLOCK_MONOTONIC in nanoseconds: the clock that the core's times are in.
  virtual uint64_t now_ns() const = 0;
};

}  // namespace gradgate::dataplane
