// SPDX-License-Identifier: Apache-2.0
#include "dataplane/tx_packet.h"

#include <cstring>

#include "wire/checksum.h"

namespace gradgate::dataplane {

namespace {

uint32_t payload_sum(const core::Payload& payload) {
  if ((payload.sum & core::Payload::kSumValid) == 0)
    payload.sum = wire::sum16(payload.data, payload.length) | core::Payload::kSumValid;
  return payload.sum & 0xFFFF;
}

}  // namespace

void write_packet(uint8_t* out, const gg_path& path, const core::Datagram& datagram) {
  uint8_t* const link = out + gg_header_bytes(path.modality);
  std::memcpy(link, datagram.header, datagram.header_bytes);
  uint32_t bytes = datagram.header_bytes;
  if (datagram.payload != nullptr) {
    std::memcpy(link + bytes, datagram.payload->data, datagram.payload->length);
    bytes += datagram.payload->length;
  }
  const uint32_t before_trailer = bytes;
  if (datagram.trailer_crc) {
    gg_put32(link + bytes, wire::packet_crc32c(link, bytes));
    bytes += GG_CRC_BYTES;
  }
  uint64_t sum = 0;
  if (path.modality == GG_MODALITY_UDP4) {
    sum = wire::sum16(link, datagram.header_bytes);
    if (datagram.payload != nullptr) sum += payload_sum(*datagram.payload);
    if (datagram.trailer_crc) {
      const uint32_t trailer = wire::sum16(link + before_trailer, GG_CRC_BYTES);
      // Behind an odd payload the trailer's bytes stand in the other halves of the words (RFC 1071 section 2 B).
      sum += before_trailer % 2 == 0 ? trailer : (trailer >> 8 | trailer << 8) & 0xFFFF;
    }
  }
  gg_put_headers(out, &path, static_cast<uint16_t>(bytes), gg_sum_fold(sum));
}

}  // namespace gradgate::dataplane
