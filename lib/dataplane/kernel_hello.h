// SPDX-License-Identifier: Apache-2.0
// On a kernel interface the link-layer address of a peer gateway is learnt from its packets, and neither side can send
// the first one. So the kernel does: it resolves the next hop, routes included, and its packet carries our address.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/link.h"
#include "dataplane/routes.h"

namespace gradgate::dataplane {

/// Link header to trailer: a PING with packet number 0. No link ever gives that number to a packet, so the receiver
/// checks label, link and trailer, learns, and drops it as a duplicate; it answers with a PING of its own.
std::vector<uint8_t> hello_packet(const core::LinkConfig& link);

/// UDP sockets of the kernel, one for each own address used. Not for lcores.
class KernelHello {
 public:
  KernelHello() = default;
  ~KernelHello();
  KernelHello(const KernelHello&) = delete;
  KernelHello& operator=(const KernelHello&) = delete;

  /// Sends from `path.source_ip` of the interface `device`. Returns an error text, empty on success.
  std::string send(const std::string& device, const gg_path& path, const std::vector<uint8_t>& packet);

 private:
  std::map<std::pair<std::string, Ip4>, int> sockets_;
};

}  // namespace gradgate::dataplane
