/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers in front of the link header, and the Internet checksum (RFC 1071). C subset shared with BPF.
 */
#ifndef GG_BUILD_H
#define GG_BUILD_H

#include "gg_parse.h"

/* Where a packet comes from and goes to on one link; addresses in network byte order as they stand on the wire. */
struct gg_path {
  uint8_t modality; /* enum gg_modality */
  uint8_t source_mac[6];
  uint8_t destination_mac[6];
  uint8_t source_ip[4];
  uint8_t destination_ip[4];
  uint16_t source_port; /* host order */
  uint16_t destination_port;
};

/* Bytes of the headers in front of the link header. */
GG_INLINE uint32_t gg_header_bytes(uint8_t modality) {
  return modality == GG_MODALITY_UDP4 ? GG_ETH_BYTES + GG_IPV4_BYTES + GG_UDP_BYTES : GG_ETH_BYTES + GG_UDP_BYTES;
}

GG_INLINE uint32_t gg_sum_fold(uint64_t sum) {
  sum = (sum & 0xFFFFFFFFu) + (sum >> 32);
  sum = (sum & 0xFFFFFFFFu) + (sum >> 32);
  sum = (sum & 0xFFFFu) + (sum >> 16);
  sum = (sum & 0xFFFFu) + (sum >> 16);
  return (uint32_t)sum;
}

/* Sum of the IPv4 pseudo header, to be completed by the sum of the UDP datagram. */
GG_INLINE uint32_t gg_sum_pseudo4(const uint8_t* source, const uint8_t* destination, uint16_t udp_bytes) {
  return (uint32_t)gg_get16(source) + gg_get16(source + 2) + gg_get16(destination) + gg_get16(destination + 2) + 17u +
         udp_bytes;
}

GG_INLINE void gg_put_ethernet(uint8_t* p, const struct gg_path* path, uint16_t ethertype) {
  __builtin_memcpy(p, path->destination_mac, 6);
  __builtin_memcpy(p + 6, path->source_mac, 6);
  gg_put16(p + 12, ethertype);
}

/* IPv4 header without options, DF set (RFC 6864: identification is meaningless then), ECT(0) for congestion marks. */
GG_INLINE void gg_put_ipv4(uint8_t* p, const struct gg_path* path, uint16_t total_bytes) {
  uint32_t sum = 0;
  p[0] = 0x45;
  p[1] = 0x02;
  gg_put16(p + 2, total_bytes);
  gg_put16(p + 4, 0);
  gg_put16(p + 6, 0x4000);
  p[8] = 64;
  p[9] = 17;
  gg_put16(p + 10, 0);
  __builtin_memcpy(p + 12, path->source_ip, 4);
  __builtin_memcpy(p + 16, path->destination_ip, 4);
  for (uint32_t i = 0; i < GG_IPV4_BYTES; i += 2) sum += gg_get16(p + i);
  gg_put16(p + 10, (uint16_t)~gg_sum_fold(sum));
}

GG_INLINE void gg_put_udp(uint8_t* p, const struct gg_path* path, uint16_t udp_bytes, uint16_t checksum) {
  gg_put16(p, path->source_port);
  gg_put16(p + 2, path->destination_port);
  gg_put16(p + 4, udp_bytes);
  gg_put16(p + 6, checksum);
}

/*
 * Writes gg_header_bytes(path->modality) bytes at `p` for a UDP payload of `payload_bytes` (link header, frames,
 * trailer), whose 16-bit one's complement sum is `payload_sum`. In `ethernet` the checksum is zero: the trailer
 * protects it.
 */
GG_INLINE void gg_put_headers(uint8_t* p, const struct gg_path* path, uint16_t payload_bytes, uint32_t payload_sum) {
  uint16_t udp_bytes = (uint16_t)(GG_UDP_BYTES + payload_bytes);
  if (path->modality == GG_MODALITY_ETHERNET) {
    gg_put_ethernet(p, path, GG_ETHERTYPE_ETHERNET);
    gg_put_udp(p + GG_ETH_BYTES, path, udp_bytes, 0);
    return;
  }
  gg_put_ethernet(p, path, GG_ETHERTYPE_IPV4);
  gg_put_ipv4(p + GG_ETH_BYTES, path, (uint16_t)(GG_IPV4_BYTES + udp_bytes));
  uint32_t sum = gg_sum_pseudo4(path->source_ip, path->destination_ip, udp_bytes);
  sum += (uint32_t)path->source_port + path->destination_port + udp_bytes + payload_sum;
  uint16_t checksum = (uint16_t)~gg_sum_fold(sum);
  gg_put_udp(p + GG_ETH_BYTES + GG_IPV4_BYTES, path, udp_bytes, checksum ? checksum : 0xFFFF);
}

#endif
