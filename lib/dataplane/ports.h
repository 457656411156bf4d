// SPDX-License-Identifier: Apache-2.0
// A port from its entry in the file to a running DPDK device, and back. Setup only: nothing here is on the packet path.
#pragma once

#include <rte_ethdev.h>
#include <rte_mempool.h>
#include <rte_spinlock.h>

#include <memory>
#include <string>

#include "config/site.h"
#include "dataplane/dataplane.h"
#include "dataplane/responder.h"
#include "dataplane/xdp.h"

namespace gradgate::dataplane {

struct Port {
  Port(const config::Site& site, uint16_t index);
  /// Stops and closes the device, which takes our XDP program off the interface, then frees the pool.
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Throws StartError.
  void start();

  PortStatus status() const;

  const config::Site& site;
  const config::Port& config;
  const uint16_t index;            ///< position in Site::ports
  const bool has_kernel;           ///< AF_XDP: the kernel answers ARP and ping
  uint16_t id = RTE_MAX_ETHPORTS;  ///< DPDK's
  OwnAddresses own;
  rte_mempool* pool = nullptr;
  uint32_t buffers = 0;
  uint32_t buffer_bytes = 0;
  uint32_t ring_buffers = 0;  ///< held by the receive and transmit rings
  uint32_t reserve = 0;       ///< buffers below which payload is not kept any more
  int wait_fd = -1;           ///< readable when packets have arrived; -1: the device has none
  XdpMaps xdp;
  rte_spinlock_t tx_lock = RTE_SPINLOCK_INITIALIZER;  ///< the one transmit queue is shared by all lcores

 private:
  void make_pool();
  void create_device();
  void configure_device();
  void configure_xdp();
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string driver_;
  bool started_ = false;
};

}  // namespace gradgate::dataplane
