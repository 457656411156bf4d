/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packets of gradgate: constants, layouts, field access. DESIGN section 4.
 *
 * This header and gg_parse.h are the C subset that compiles as C++20 and as BPF C, so that the XDP program, the
 * gateway, the client, pktgen, the tests and the fuzzers cannot disagree. No libc, no loops without a bound.
 *
 * All multi-byte header fields are big-endian on the wire; payload is little-endian elements as the machine holds
 * them, at any alignment.
 */
#ifndef GG_WIRE_H
#define GG_WIRE_H

#include <stdint.h>

#define GG_INLINE static inline __attribute__((always_inline, unused))

/* ---- constants ------------------------------------------------------------------------------------------------ */

#define GG_MAGIC 0x4747u
#define GG_VERSION 0u
/* First UDP destination port by default; lane n is reached at base + n. */
#define GG_DEFAULT_UDP_PORT 9472u
#define GG_MAX_LANES 64u
/* IEEE 802 Local Experimental EtherType 1: the `ethernet` modality, followed by a UDP header. */
#define GG_ETHERTYPE_ETHERNET 0x88B5u

#define GG_LINK_BYTES 16u
#define GG_FRAME_BYTES 24u
#define GG_CRC_BYTES 4u
/* Frames in one packet; a receiver refuses more. */
#define GG_MAX_FRAMES 16u
/* Ranges in one ACK frame: the first is 4 bytes, each further one 8. */
#define GG_MAX_ACK_RANGES 32u

enum gg_modality { GG_MODALITY_UDP4 = 0, GG_MODALITY_ETHERNET = 1, GG_MODALITY_COUNT };

enum gg_frame_type {
  GG_CONTRIBUTION = 1, /* worker to gateway: one chunk of a worker */
  GG_PARTIAL = 2,      /* gateway to gateway: a site's sum */
  GG_RESULT = 3,       /* the group's sum, to a site or a worker */
  GG_READY = 4,        /* a member that is no source announces its call: `count` indices of the lane up to `index` */
  GG_ACK = 5,          /* packet numbers received; see gg_ack in this file */
  GG_WATERMARK = 6,    /* index: the sender site's watermark (to a worker: the group's low); call: the sender's low */
  GG_PING = 7,         /* elicits an ACK, nothing else */
  GG_CLOSE = 8,        /* the member leaves: from `index` on it neither sends nor expects anything */
  GG_ERROR = 9,        /* the group has failed; payload is UTF-8 text */
  GG_DATA = 10,        /* point to point, forwarded by label only */
  GG_FRAME_TYPE_COUNT
};

enum gg_kind {
  GG_KIND_NONE = 0, /* frames that belong to no call: ACK, WATERMARK, PING, CLOSE, ERROR */
  GG_ALL_REDUCE = 1,
  GG_REDUCE_SCATTER = 2,
  GG_ALL_GATHER = 3,
  GG_BROADCAST = 4,
  GG_REDUCE = 5,
  GG_BARRIER = 6,
  GG_KIND_COUNT
};

enum gg_dtype { GG_BYTES = 0, GG_FLOAT32 = 1, GG_FLOAT16 = 2, GG_BFLOAT16 = 3, GG_INT32 = 4, GG_DTYPE_COUNT };

enum gg_op { GG_OP_NONE = 0, GG_SUM = 1, GG_AVERAGE = 2, GG_OP_COUNT };

/*
 * Every way to lose a packet or a frame: X(SYMBOL, "name", "what happened"). The name is the metric's label, the
 * word in logs, what the CLI prints and what tests compare. Order is stable: append only.
 */
#define GG_DROP_REASONS(X)                                                                                   \
  X(TRUNCATED, "truncated", "shorter than its headers say")                                                  \
  X(FRAGMENT, "fragment", "IP fragment to our port: gradient packets are never fragmented")                  \
  X(BAD_IP_HEADER, "bad_ip_header", "IPv4 header length or total length is impossible")                      \
  X(BAD_UDP_LENGTH, "bad_udp_length", "UDP length is impossible")                                            \
  X(BAD_MAGIC, "bad_magic", "not a gradgate link header at our port")                                        \
  X(BAD_VERSION, "bad_version", "link header of another version")                                            \
  X(BAD_LANE, "bad_lane", "lane beyond the lanes configured, or not the lane of the UDP port")               \
  X(BAD_LABEL, "bad_label", "label of another site, or of no context here")                                  \
  X(UNKNOWN_LINK, "unknown_link", "link id of no neighbour here, or of an old epoch")                        \
  X(WRONG_SOURCE, "wrong_source", "source address or rank is not the one registered for the link")           \
  X(BAD_TRAILER, "bad_trailer", "trailer missing or CRC32C wrong")                                           \
  X(DUPLICATE_NUMBER, "duplicate_number", "packet number seen before, or older than the receive window")     \
  X(BAD_FRAME, "bad_frame", "frame header or its length is malformed")                                       \
  X(TOO_MANY_FRAMES, "too_many_frames", "more frames in the packet than a receiver takes")                   \
  X(UNEXPECTED_FRAME, "unexpected_frame", "frame type that this neighbour may not send here")                \
  X(FUTURE, "future", "index beyond the sender's credit")                                                    \
  X(WRONG_ROOT, "wrong_root", "partial for an index that another site decides, or result not from its root") \
  X(NOT_A_SOURCE, "not_a_source", "payload from a member that is no source of this call")                    \
  X(MISMATCH, "mismatch", "call, kind, type, operation, root or size differs from the slot's")               \
  X(GROUP_FAILED, "group_failed", "the group has failed already")                                            \
  X(BAD_ACK, "bad_ack", "acknowledges what was never sent, or is malformed")                                 \
  X(BAD_WATERMARK, "bad_watermark", "watermark beyond what can be complete")                                 \
  X(POOL_EXHAUSTED, "pool_exhausted", "buffer pool below its reserve: payload not kept")                     \
  X(TX_FULL, "tx_full", "transmit ring full or no transmit buffer")                                          \
  X(NO_ADDRESS, "no_address", "link-layer address of the neighbour not known yet")                           \
  X(RING_FULL, "ring_full", "ring between lcores full")                                                      \
  X(TOO_LARGE, "too_large", "packet larger than the port carries")                                           \
  X(NOT_OURS, "not_ours", "no gradgate packet on a port without a kernel")

enum gg_drop {
#define GG_DROP_ENUM(symbol, name, text) GG_DROP_##symbol,
  GG_DROP_REASONS(GG_DROP_ENUM)
#undef GG_DROP_ENUM
      GG_DROP_COUNT
};

/* ---- unaligned big-endian access ------------------------------------------------------------------------------ */

GG_INLINE uint16_t gg_get16(const uint8_t* p) {
  return (uint16_t)((uint16_t)p[0] << 8 | p[1]);
}

GG_INLINE uint32_t gg_get32(const uint8_t* p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

GG_INLINE void gg_put16(uint8_t* p, uint16_t v) {
  p[0] = (uint8_t)(v >> 8);
  p[1] = (uint8_t)v;
}

GG_INLINE void gg_put32(uint8_t* p, uint32_t v) {
  p[0] = (uint8_t)(v >> 24);
  p[1] = (uint8_t)(v >> 16);
  p[2] = (uint8_t)(v >> 8);
  p[3] = (uint8_t)v;
}

/* ---- labels: site (12 bits) and context (20 bits), assigned by the node that receives -------------------------- */

#define GG_CONTEXT_BITS 20u
#define GG_CONTEXT_MASK 0xFFFFFu
#define GG_MAX_SITE 4095u
/* Context 0 of every site: link control (ACK, PING) that belongs to no group. */
#define GG_CONTEXT_LINK 0u

GG_INLINE uint32_t gg_label(uint32_t site, uint32_t context) {
  return site << GG_CONTEXT_BITS | (context & GG_CONTEXT_MASK);
}

GG_INLINE uint32_t gg_label_site(uint32_t label) {
  return label >> GG_CONTEXT_BITS;
}

GG_INLINE uint32_t gg_label_context(uint32_t label) {
  return label & GG_CONTEXT_MASK;
}

/* ---- link header ---------------------------------------------------------------------------------------------- */

/* Byte 2 of the link header: version:2 encrypted:1 key_phase:1 ce:1 hops:3, from the top bit down. */
#define GG_FLAG_ENCRYPTED 0x20u
#define GG_FLAG_KEY_PHASE 0x10u
#define GG_FLAG_CE 0x08u
#define GG_HOPS_MASK 0x07u
/* Bits that a node on the way may change; outside CRC and AEAD. */
#define GG_FLAGS_MUTABLE (GG_FLAG_CE | GG_HOPS_MASK)

struct gg_link {
  uint8_t flags; /* version, encrypted, key_phase, ce, hops as in byte 2 */
  uint8_t lane;
  uint32_t label;
  uint32_t number; /* low half of the 64-bit packet number */
  uint32_t link;   /* receiver's link id */
};

GG_INLINE void gg_link_get(const uint8_t* p, struct gg_link* out) {
  out->flags = p[2];
  out->lane = p[3];
  out->label = gg_get32(p + 4);
  out->number = gg_get32(p + 8);
  out->link = gg_get32(p + 12);
}

GG_INLINE void gg_link_put(uint8_t* p, const struct gg_link* link) {
  gg_put16(p, GG_MAGIC);
  p[2] = link->flags;
  p[3] = link->lane;
  gg_put32(p + 4, link->label);
  gg_put32(p + 8, link->number);
  gg_put32(p + 12, link->link);
}

/* ---- frame header --------------------------------------------------------------------------------------------- */

struct gg_frame {
  uint8_t type;
  uint8_t kind;
  uint8_t dtype;
  uint16_t length; /* payload bytes after the header */
  uint32_t index;
  uint32_t call;
  uint32_t elements;
  uint16_t source;
  uint16_t root;
  uint16_t count;
  uint16_t op;
};

GG_INLINE void gg_frame_get(const uint8_t* p, struct gg_frame* out) {
  out->type = p[0];
  out->kind = (uint8_t)(p[1] >> 4);
  out->dtype = (uint8_t)(p[1] & 0x0F);
  out->length = gg_get16(p + 2);
  out->index = gg_get32(p + 4);
  out->call = gg_get32(p + 8);
  out->elements = gg_get32(p + 12);
  out->source = gg_get16(p + 16);
  out->root = gg_get16(p + 18);
  out->count = gg_get16(p + 20);
  out->op = gg_get16(p + 22);
}

GG_INLINE void gg_frame_put(uint8_t* p, const struct gg_frame* frame) {
  p[0] = frame->type;
  p[1] = (uint8_t)(frame->kind << 4 | (frame->dtype & 0x0F));
  gg_put16(p + 2, frame->length);
  gg_put32(p + 4, frame->index);
  gg_put32(p + 8, frame->call);
  gg_put32(p + 12, frame->elements);
  gg_put16(p + 16, frame->source);
  gg_put16(p + 18, frame->root);
  gg_put16(p + 20, frame->count);
  gg_put16(p + 22, frame->op);
}

/* Bytes of one element; 1 for GG_BYTES and for values out of range. */
GG_INLINE uint32_t gg_dtype_bytes(uint8_t dtype) {
  if (dtype == GG_FLOAT32 || dtype == GG_INT32) return 4;
  if (dtype == GG_FLOAT16 || dtype == GG_BFLOAT16) return 2;
  return 1;
}

/*
 * ACK frame: index = low half of the largest number received, call = delay in microseconds between receiving it and
 * sending this, elements = packets received with CE so far, count = number of ranges. Payload: u32 = packets
 * received in a row below the largest (RFC 9000 section 19.3 "First ACK Range"), then per further range
 * u32 gap, u32 length, as in RFC 9000 section 19.3.1.
 */

#endif
