// SPDX-License-Identifier: Apache-2.0
#include "wire/checksum.h"

#include <isa-l/crc.h>

#include <bit>
#include <cstring>

#include "wire/gg_build.h"
#include "wire/gg_wire.h"

namespace gradgate::wire {

static_assert(std::endian::native == std::endian::little, "payload is little-endian on the wire, see DESIGN section 4");

uint32_t crc32c(const uint8_t* data, size_t length, uint32_t seed) {
  // ISA-L's function picks carry-less multiplication where the CPU has it; it leaves both inversions to the caller
  // and takes a mutable pointer that it only reads.
  return ~crc32_iscsi(const_cast<uint8_t*>(data), static_cast<int>(length), ~seed);
}

uint32_t packet_crc32c(const uint8_t* link_header, size_t length) {
  uint8_t head[4];
  std::memcpy(head, link_header, sizeof head);
  head[2] = static_cast<uint8_t>(head[2] & ~GG_FLAGS_MUTABLE);
  return crc32c(link_header + sizeof head, length - sizeof head, crc32c(head, sizeof head));
}

uint32_t sum16(const uint8_t* data, size_t length) {
  // Eight bytes a step in machine order: one's complement addition does not care about byte order (RFC 1071 2.B),
  // so only the folded result is swapped.
  uint64_t sum = 0;
  uint64_t carry = 0;
  size_t i = 0;
  for (; i + 8 <= length; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    sum += word & 0xFFFFFFFFu;
    carry += word >> 32;
  }
  sum += carry;
  uint8_t rest[8] = {};
  if (i < length) std::memcpy(rest, data + i, length - i);
  uint64_t word;
  std::memcpy(&word, rest, sizeof word);
  sum = (sum & 0xFFFFFFFFu) + (sum >> 32) + (word & 0xFFFFFFFFu) + (word >> 32);
  const uint32_t folded = gg_sum_fold(sum);
  return (folded >> 8 | folded << 8) & 0xFFFFu;
}

}  // namespace gradgate::wire
