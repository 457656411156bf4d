// SPDX-License-Identifier: Apache-2.0
// The seam between the core and whatever moves packets: DPDK, UDP sockets, the simulator.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "wire/gg_wire.h"

namespace gradgate::core {

/// Opaque handle of one packet's memory; what it points to is the pool's business (an rte_mbuf, a socket buffer).
using Buffer = void*;

/// Reference counts of packet memory. Called on the packet path by the lane's core only.
class BufferPool {
 public:
  virtual ~BufferPool() = default;
  virtual void retain(Buffer buffer) = 0;
  virtual void release(Buffer buffer) = 0;
  /// True when so few buffers are left that payload must be dropped before it is kept, so that ACKs and watermarks
  /// always get in (DESIGN section 5, rule 8).
  virtual bool below_reserve() const = 0;
};

/// Payload bytes inside a buffer. Does not own a reference by itself.
struct Payload {
  Buffer buffer = nullptr;  ///< nullptr: `data` is not packet memory and must be copied by the sender
  uint8_t* data = nullptr;
  uint32_t length = 0;  ///< bytes
  /// wire::sum16 of the payload plus kSumValid once somebody computed it: results go to many workers, whose UDP
  /// checksums share this part. 0 = not computed yet.
  mutable uint32_t sum = 0;
  static constexpr uint32_t kSumValid = 0x10000;
};

/// One packet to send. Everything it points to is valid during the call only, `payload->buffer` for as long as the
/// receiver of the call holds a reference of its own.
struct Datagram {
  uint32_t neighbour = kNoNeighbour;  ///< index into the snapshot's neighbours (a worker's core: always 0)
  uint8_t lane = 0;
  bool trailer_crc = false;          ///< the sender appends wire::packet_crc32c, big-endian
  const uint8_t* header = nullptr;   ///< link header, frame headers and payload of all frames but the last one's
  uint16_t header_bytes = 0;         ///< even
  const Payload* payload = nullptr;  ///< payload of the last frame, or nullptr
};

class Output {
 public:
  virtual ~Output() = default;
  /// Takes one packet. False: no room now; nothing was sent, the core tries again at its next poll.
  virtual bool send(const Datagram& datagram) = 0;
};

/// One received packet whose link header gg_parse accepted.
struct Arrival {
  gg_link link = {};
  uint8_t* packet = nullptr;  ///< the link header; the core sums results into the payload in place
  uint32_t length = 0;        ///< bytes from the link header to the end of the UDP datagram, trailer included
  bool ce = false;
  uint64_t source = 0;      ///< tag of the source address, compared with the neighbour's registered one
  Buffer buffer = nullptr;  ///< the caller keeps its reference; the core retains what it keeps
};

}  // namespace gradgate::core
