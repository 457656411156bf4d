// SPDX-License-Identifier: Apache-2.0
// What this machine lacks for a site's file, looked at before anything is changed. No DPDK.
#pragma once

#include <string>
#include <vector>

#include "config/site.h"
#include "dataplane/memory.h"

namespace gradgate::dataplane {

/// Largest MTU with which a driver of 4 KiB pages takes an XDP program without fragments (measured on veth).
constexpr unsigned kMaxXdpMtu = 3498;

/// One line a fault, with its remedy; empty if the ports can start.
std::vector<std::string> preflight(const config::Site& site, const MemoryPlan& memory);

/// Holds an interface against a second gradgate, which would take our program for a stale one. The kernel releases it
/// with the process, however that ends.
class InterfaceLock {
 public:
  InterfaceLock() = default;
  ~InterfaceLock();
  InterfaceLock(InterfaceLock&& other) noexcept;
  InterfaceLock& operator=(InterfaceLock&&) = delete;

  /// Returns an error text, empty on success.
  std::string acquire(const std::string& ifname);

 private:
  int fd_ = -1;
};

/// CPUs that this process may run on.
std::vector<unsigned> allowed_cpus();

}  // namespace gradgate::dataplane
