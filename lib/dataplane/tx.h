// SPDX-License-Identifier: Apache-2.0
// From the core's datagrams to the ports' transmit queues. One object a lcore.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <memory>
#include <vector>

#include "core/io.h"
#include "dataplane/ports.h"
#include "dataplane/routes.h"

namespace gradgate::dataplane {

using PortDrops = std::array<core::Counter, GG_DROP_COUNT>;

/// Packets of one lcore that wait for one port. Bounded: what the port does not take stays for the next flush.
class PortQueue {
 public:
  explicit PortQueue(Port& port) : port_(port) {}
  ~PortQueue() { rte_pktmbuf_free_bulk(waiting_.data(), count_); }
  PortQueue(const PortQueue&) = delete;

  /// False: no room, also not after a flush; the packet stays the caller's.
  bool push(rte_mbuf* packet);
  /// Hands over what waits; returns how many packets the port took. Takes back transmitted buffers also when nothing
  /// waits.
  uint32_t flush();
  bool empty() const { return count_ == 0; }
  Port& port() { return port_; }

 private:
  static constexpr uint32_t kBurst = 32;
  Port& port_;
  uint32_t count_ = 0;
  std::array<rte_mbuf*, 256> waiting_;
};

class Transmitter final : public core::Output {
 public:
  Transmitter(const std::vector<std::unique_ptr<Port>>& ports, const MacTable& macs, std::vector<PortDrops>& drops);

  /// Where packets go from now on; valid until the next call.
  void use(const Published& published) { published_ = &published; }

  bool send(const core::Datagram& datagram) override;
  /// End of a burst: everything that waits. Returns how many packets left.
  uint32_t flush();
  /// Nothing is waiting, so that the lcore may sleep.
  bool idle() const;
  /// Takes transmitted buffers back from all ports' rings, which otherwise happens with the next transmission only.
  void reap();
  PortQueue& queue(uint16_t port) { return *queues_[port]; }

 private:
  const MacTable& macs_;
  std::vector<PortDrops>& drops_;
  const Published* published_ = nullptr;
  std::vector<std::unique_ptr<PortQueue>> queues_;
};

}  // namespace gradgate::dataplane
