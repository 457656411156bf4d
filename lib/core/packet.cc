// SPDX-License-Identifier: Apache-2.0
#include "core/packet.h"

#include "wire/checksum.h"
#include "wire/gg_parse.h"

namespace gradgate::core {

gg_drop parse_packet(const Arrival& arrival, bool trailer_crc, ReceivedPacket& out) {
  uint32_t length = arrival.length;
  if (trailer_crc) {
    if (length < GG_LINK_BYTES + GG_CRC_BYTES) return GG_DROP_BAD_TRAILER;
    length -= GG_CRC_BYTES;
    if (gg_get32(arrival.packet + length) != wire::packet_crc32c(arrival.packet, length)) return GG_DROP_BAD_TRAILER;
  }
  uint8_t* p = arrival.packet + GG_LINK_BYTES;
  uint8_t* const end = arrival.packet + length;
  while (p < end) {
    if (out.count == GG_MAX_FRAMES) return GG_DROP_TOO_MANY_FRAMES;
    ReceivedFrame& frame = out.frames[out.count];
    const int verdict = gg_frame_parse(p, end, &frame.header);
    if (verdict != GG_PARSE_OURS) return static_cast<gg_drop>(verdict);
    frame.payload = p + GG_FRAME_BYTES;
    p = frame.payload + frame.header.length;
    out.ack_eliciting |= frame.header.type != GG_ACK;
    ++out.count;
  }
  return out.count == 0 ? GG_DROP_BAD_FRAME : GG_DROP_COUNT;
}

}  // namespace gradgate::core
