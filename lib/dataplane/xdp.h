// SPDX-License-Identifier: Apache-2.0
// The XDP program of a kernel interface seen from user space: what is attached, removing a stale one of ours, the maps
// of the attached one, and the state of the interface that a preflight asks for. libbpf only.
//
// Functions that can fail return an error text for the operator (what, where, remedy), empty on success; their output
// parameter is unspecified after an error. None of them belongs on the packet path.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "wire/gg_xdp.h"

namespace gradgate::dataplane {

struct InterfaceState {
  bool exists = false;
  bool up = false;       ///< administratively
  bool carrier = false;  ///< operational: up and the cable (or veth peer) is there
  unsigned ifindex = 0;
  unsigned mtu = 0;        ///< bytes after the Ethernet header
  unsigned rx_queues = 0;  ///< receive queues in use now (`ethtool -l`), at least 1
  std::array<uint8_t, 6> mac{};
};

/// State of the interface called `ifname` in the calling thread's network namespace. A missing one is not an error:
/// `exists` is false then.
std::string interface_state(const std::string& ifname, InterfaceState& out);

enum class XdpOwner { kNone, kOurs, kForeign };
enum class XdpMode { kNative, kGeneric, kOffloaded };

struct AttachedXdp {
  XdpOwner owner = XdpOwner::kNone;
  uint32_t program_id = 0;
  std::string program_name;  ///< as the kernel keeps it, at most 15 characters
  XdpMode mode = XdpMode::kNative;
};

const char* xdp_mode_name(XdpMode mode);

/// What is attached to `ifname`. Ours is what bears the name of our program. With programs in several modes at once a
/// foreign one is reported before ours.
std::string inspect(const std::string& ifname, AttachedXdp& out);

/// Detaches our program from `ifname`, for instance one left by a gateway that was killed; succeeds when nothing is
/// attached. A foreign program stays and is an error. Packets are not redirected from here until the next attach.
std::string remove_stale(const std::string& ifname);

/// The maps of our program attached to one interface. Movable, owns its file descriptors; one thread at a time.
class XdpMaps {
 public:
  using Drops = std::array<uint64_t, GG_DROP_COUNT>;
  using Verdicts = std::array<uint64_t, GG_XDP_VERDICT_COUNT>;

  XdpMaps() = default;
  ~XdpMaps();
  XdpMaps(XdpMaps&& other) noexcept;
  XdpMaps& operator=(XdpMaps&& other) noexcept;
  XdpMaps(const XdpMaps&) = delete;
  XdpMaps& operator=(const XdpMaps&) = delete;

  /// Finds the maps through the program attached to `ifname`, whoever attached it (the AF_XDP PMD by `xdp_prog=`).
  std::string open(const std::string& ifname);

  /// Tells the program what is ours. Until the first call it passes everything to the kernel.
  std::string configure(const gg_xdp_config& config);

  /// Packets since the program was loaded, summed over CPUs; indexed by gg_drop and gg_xdp_verdict.
  std::string read_drops(Drops& out) const;
  std::string read_verdicts(Verdicts& out) const;

 private:
  void close();
  void take(XdpMaps& other);

  std::string ifname_;
  int config_fd_ = -1;
  int drops_fd_ = -1;
  int verdicts_fd_ = -1;
};

}  // namespace gradgate::dataplane
