/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the first byte of an Ethernet frame to our link header, for every modality. C subset shared with BPF: every
 * access is preceded by a comparison with `end` that the verifier understands.
 */
#ifndef GG_PARSE_H
#define GG_PARSE_H

#include "gg_wire.h"

#define GG_ETH_BYTES 14u
#define GG_IPV4_BYTES 20u
#define GG_UDP_BYTES 8u
#define GG_ETHERTYPE_IPV4 0x0800u

/* Results of gg_parse besides a gg_drop reason (>= 0). */
#define GG_PARSE_OURS (-1)
#define GG_PARSE_NOT_OURS (-2)

struct gg_packet {
  uint8_t modality;     /* enum gg_modality */
  uint8_t ce;           /* congestion experienced, from IP or from the link header */
  uint16_t l3_offset;   /* network header, from the start of the frame */
  uint16_t udp_offset;  /* UDP header */
  uint16_t link_offset; /* link header */
  uint16_t length;      /* bytes from the link header to the end of the UDP datagram, trailer included */
  uint16_t udp_port;    /* destination port */
  struct gg_link link;
};

/* UDP and link header at `udp`. `room` is the bytes that the network header grants them and their payload. */
GG_INLINE int gg_parse_udp(const uint8_t* udp, const uint8_t* end, uint32_t room, uint16_t base_port,
                           struct gg_packet* out) {
  if (udp + GG_UDP_BYTES > end) return GG_PARSE_NOT_OURS;
  uint16_t port = gg_get16(udp + 2);
  if ((uint16_t)(port - base_port) >= GG_MAX_LANES) return GG_PARSE_NOT_OURS;
  uint16_t length = gg_get16(udp + 4);
  if (length < GG_UDP_BYTES || length > room) return GG_DROP_BAD_UDP_LENGTH;
  if (length < GG_UDP_BYTES + GG_LINK_BYTES || udp + GG_UDP_BYTES + GG_LINK_BYTES > end) return GG_DROP_TRUNCATED;
  const uint8_t* link = udp + GG_UDP_BYTES;
  if (gg_get16(link) != GG_MAGIC) return GG_DROP_BAD_MAGIC;
  gg_link_get(link, &out->link);
  if (out->link.flags >> 6 != GG_VERSION) return GG_DROP_BAD_VERSION;
  if (out->link.lane >= GG_MAX_LANES || out->link.lane != (uint16_t)(port - base_port)) return GG_DROP_BAD_LANE;
  out->udp_port = port;
  out->length = (uint16_t)(length - GG_UDP_BYTES);
  if (out->link.flags & GG_FLAG_CE) out->ce = 1;
  return GG_PARSE_OURS;
}

GG_INLINE int gg_parse_udp4(const uint8_t* data, const uint8_t* end, uint16_t base_port, struct gg_packet* out) {
  const uint8_t* ip = data + GG_ETH_BYTES;
  if (ip + GG_IPV4_BYTES > end) return GG_PARSE_NOT_OURS;
  if (ip[0] >> 4 != 4 || ip[9] != 17) return GG_PARSE_NOT_OURS;
  uint32_t header = (uint32_t)(ip[0] & 0x0F) * 4;
  uint16_t total = gg_get16(ip + 2);
  uint16_t fragment = gg_get16(ip + 6);
  if (fragment & 0x1FFF) /* not the first fragment: carries no port */
    return GG_PARSE_NOT_OURS;
  if (header < GG_IPV4_BYTES) return GG_PARSE_NOT_OURS;
  const uint8_t* udp = ip + header;
  if (udp + GG_UDP_BYTES > end) return GG_PARSE_NOT_OURS;
  uint16_t port = gg_get16(udp + 2);
  if ((uint16_t)(port - base_port) >= GG_MAX_LANES) return GG_PARSE_NOT_OURS;
  if (fragment & 0x2000) return GG_DROP_FRAGMENT;
  if (total < header + GG_UDP_BYTES || ip + total > end) return GG_DROP_BAD_IP_HEADER;
  out->modality = GG_MODALITY_UDP4;
  out->ce = (ip[1] & 3) == 3;
  out->l3_offset = GG_ETH_BYTES;
  out->udp_offset = (uint16_t)(GG_ETH_BYTES + header);
  out->link_offset = (uint16_t)(GG_ETH_BYTES + header + GG_UDP_BYTES);
  return gg_parse_udp(udp, end, total - header, base_port, out);
}

GG_INLINE int gg_parse_ethernet(const uint8_t* data, const uint8_t* end, uint16_t base_port, struct gg_packet* out) {
  const uint8_t* udp = data + GG_ETH_BYTES;
  if (udp + GG_UDP_BYTES > end) return GG_DROP_TRUNCATED;
  /* The EtherType is for anybody's experiments (IEEE 802 annex): only the port makes the frame ours. */
  if ((uint16_t)(gg_get16(udp + 2) - base_port) >= GG_MAX_LANES) return GG_PARSE_NOT_OURS;
  /* Short frames are padded: the UDP length, not the frame's end, says where the packet ends. */
  uint16_t length = gg_get16(udp + 4);
  if (udp + length > end) return GG_DROP_BAD_UDP_LENGTH;
  out->modality = GG_MODALITY_ETHERNET;
  out->ce = 0;
  out->l3_offset = GG_ETH_BYTES;
  out->udp_offset = GG_ETH_BYTES;
  out->link_offset = GG_ETH_BYTES + GG_UDP_BYTES;
  return gg_parse_udp(udp, end, length, base_port, out);
}

/*
 * Parses the frame at [data, end). Returns GG_PARSE_OURS and fills `out`; GG_PARSE_NOT_OURS for what belongs to the
 * kernel; or the gg_drop reason of a malformed packet of ours. `out` is undefined unless it returns GG_PARSE_OURS.
 *
 * Ours is what goes to UDP ports base_port .. base_port + GG_MAX_LANES - 1, also where fewer lanes are configured.
 */
GG_INLINE int gg_parse(const uint8_t* data, const uint8_t* end, uint16_t base_port, struct gg_packet* out) {
  if (data + GG_ETH_BYTES > end) return GG_PARSE_NOT_OURS;
  uint16_t type = gg_get16(data + 12);
  if (type == GG_ETHERTYPE_IPV4) return gg_parse_udp4(data, end, base_port, out);
  if (type == GG_ETHERTYPE_ETHERNET) return gg_parse_ethernet(data, end, base_port, out);
  return GG_PARSE_NOT_OURS;
}

/*
 * Reads the frame header at `p` and checks what needs no state: type, kind, dtype, op and length. Returns
 * GG_PARSE_OURS or the gg_drop reason. The payload, `out->length` bytes, follows the header.
 */
GG_INLINE int gg_frame_parse(const uint8_t* p, const uint8_t* end, struct gg_frame* out) {
  if (p + GG_FRAME_BYTES > end) return GG_DROP_BAD_FRAME;
  gg_frame_get(p, out);
  if (out->type == 0 || out->type >= GG_FRAME_TYPE_COUNT) return GG_DROP_BAD_FRAME;
  if (out->kind >= GG_KIND_COUNT || out->dtype >= GG_DTYPE_COUNT || out->op >= GG_OP_COUNT) return GG_DROP_BAD_FRAME;
  if (out->length > (uint64_t)(end - p) - GG_FRAME_BYTES) return GG_DROP_BAD_FRAME;
  return GG_PARSE_OURS;
}

#endif
