// SPDX-License-Identifier: Apache-2.0
// What a kernel would do on a port that has none: answer ARP, IPv6 neighbour solicitations and ping for the port's own
// addresses, and ask for the link-layer address of a neighbour. No DPDK.
#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/routes.h"

namespace gradgate::dataplane {

using Ip6 = std::array<uint8_t, 16>;

struct OwnAddresses {
  Mac mac{};
  std::vector<Ip4> ip4;
  std::vector<Ip6> ip6;
};

/// Bytes of an ARP request as a frame of the least size.
constexpr uint32_t kArpFrameBytes = 60;

enum class SlowPath {
  kNotForUs,  ///< nothing that this answers
  kTaken,     ///< an ARP reply to us: `learnt` says from whom
  kReply,     ///< the frame is now the answer
};

struct Learnt {
  bool valid = false;
  Ip4 ip{};
  Mac mac{};
};

/// Looks at the frame [frame, frame + bytes) and turns a request to us into its answer in place. `bytes` becomes the
/// answer's length, never longer than the request but for a neighbour solicitation without options, which grows by 8
/// if `room` (from `frame` on) allows.
SlowPath respond(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes, uint32_t room, Learnt& learnt);

/// Writes kArpFrameBytes bytes.
void write_arp_request(uint8_t* frame, const uint8_t* own_mac, const uint8_t* own_ip, const Ip4& target);

}  // namespace gradgate::dataplane
