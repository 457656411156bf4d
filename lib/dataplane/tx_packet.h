// SPDX-License-Identifier: Apache-2.0
// The bytes of one packet from the core to a neighbour. No DPDK.
#pragma once

#include <cstdint>

#include "core/io.h"
#include "wire/gg_build.h"

namespace gradgate::dataplane {

/// Bytes of the whole Ethernet frame.
inline uint32_t packet_bytes(uint8_t modality, const core::Datagram& datagram) {
  return gg_header_bytes(modality) + datagram.header_bytes +
         (datagram.payload == nullptr ? 0 : datagram.payload->length) + (datagram.trailer_crc ? GG_CRC_BYTES : 0);
}

/// Writes packet_bytes() bytes at `out`: headers of the modality, link header and frames, payload, trailer. The UDP
/// checksum is valid in udp4; the payload's part of it is kept in the payload for further copies.
void write_packet(uint8_t* out, const gg_path& path, const core::Datagram& datagram);

}  // namespace gradgate::dataplane
