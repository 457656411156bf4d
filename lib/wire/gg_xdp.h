/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the XDP program and the process that configures it share: map layouts, verdicts, and the decision itself.
 * C subset shared with BPF. DESIGN section 9.
 */
#ifndef GG_XDP_H
#define GG_XDP_H

#include "gg_parse.h"

#define GG_XDP_PROGRAM "gradgate_xdp"
/* The AF_XDP PMD (`xdp_prog=`) finds its socket map by this very name. */
#define GG_XDP_SOCKET_MAP "xsks_map"
#define GG_XDP_CONFIG_MAP "gradgate_config"
#define GG_XDP_DROP_MAP "gradgate_drops"
#define GG_XDP_VERDICT_MAP "gradgate_verdicts"
#define GG_XDP_MAX_QUEUES 64u
#define GG_XDP_MAX_ADDRESSES 8u

/* The one entry of gradgate_config. Numbers in host order. All zero, as the kernel creates it, passes everything. */
struct gg_xdp_config {
  uint16_t site;                              /* own site, 1..GG_MAX_SITE; 0: not configured yet */
  uint16_t base_port;                         /* UDP destination port of lane 0 */
  uint16_t lanes;                             /* 1..GG_MAX_LANES */
  uint16_t address_count;                     /* own IPv4 addresses of this port; 0: any destination address is ours */
  uint8_t addresses[GG_XDP_MAX_ADDRESSES][4]; /* as they stand on the wire */
};

/*
 * What became of a packet: X(SYMBOL, "name", "what happened"). Every packet counts exactly once, so that the
 * verdicts sum to the packets received; `drop` is the sum of gradgate_drops. Order is stable: append only.
 */
#define GG_XDP_VERDICTS(X)                                                \
  X(PASS, "pass", "not ours: left to the kernel")                         \
  X(REDIRECT, "redirect", "to the AF_XDP socket of the receiving queue")  \
  X(DROP, "drop", "malformed or not for this site: see the drop reasons") \
  X(NO_SOCKET, "no_socket", "ours, but no AF_XDP socket on the receiving queue: dropped")

enum gg_xdp_verdict {
#define GG_XDP_VERDICT_ENUM(symbol, name, text) GG_XDP_VERDICT_##symbol,
  GG_XDP_VERDICTS(GG_XDP_VERDICT_ENUM)
#undef GG_XDP_VERDICT_ENUM
      GG_XDP_VERDICT_COUNT
};

/*
 * 0 for an IPv4 packet to another host, which a kernel that routes must still see, malformed or not; 1 otherwise.
 */
GG_INLINE int gg_xdp_own_address(const uint8_t* data, const uint8_t* end, const struct gg_xdp_config* config) {
  const uint8_t* ip = data + GG_ETH_BYTES;
  if (config->address_count == 0 || ip + GG_IPV4_BYTES > end || gg_get16(data + 12) != GG_ETHERTYPE_IPV4) return 1;
  uint32_t destination = gg_get32(ip + 16);
  for (uint32_t i = 0; i < GG_XDP_MAX_ADDRESSES; i++)
    if (i < config->address_count && gg_get32(config->addresses[i]) == destination) return 1;
  return 0;
}

/* As gg_parse, with what the configuration of the port adds: site, lanes, own addresses. */
GG_INLINE int gg_xdp_classify(const uint8_t* data, const uint8_t* end, const struct gg_xdp_config* config,
                              struct gg_packet* out) {
  if (config->site == 0 || !gg_xdp_own_address(data, end, config)) return GG_PARSE_NOT_OURS;
  int result = gg_parse(data, end, config->base_port, out);
  if (result != GG_PARSE_OURS) return result;
  if (out->link.lane >= config->lanes) return GG_DROP_BAD_LANE;
  if (gg_label_site(out->link.label) != config->site) return GG_DROP_BAD_LABEL;
  return GG_PARSE_OURS;
}

#endif
