// SPDX-License-Identifier: Apache-2.0
/*
 * The XDP program of a gateway's port: our packets to the AF_XDP socket of the receiving queue, malformed ones dropped
 * under their reason, everything else to the kernel. DESIGN section 9.
 *
 * Not `xdp.frags`: an AF_XDP socket without XDP_USE_SG never sees a packet of several buffers, and the MTU of an
 * AF_XDP port is limited to one buffer anyway.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "wire/gg_xdp.h"

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, GG_XDP_MAX_QUEUES);
  __type(key, uint32_t);
  __type(value, uint32_t);
} xsks_map SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct gg_xdp_config);
} gradgate_config SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, GG_DROP_COUNT);
  __type(key, uint32_t);
  __type(value, uint64_t);
} gradgate_drops SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, GG_XDP_VERDICT_COUNT);
  __type(key, uint32_t);
  __type(value, uint64_t);
} gradgate_verdicts SEC(".maps");

static __always_inline void count(void* map, uint32_t key) {
  uint64_t* value = bpf_map_lookup_elem(map, &key);
  if (value) *value += 1;
}

static __always_inline int verdict(uint32_t which, int action) {
  count(&gradgate_verdicts, which);
  return action;
}

SEC("xdp")
int gradgate_xdp(struct xdp_md* ctx) {
  const uint8_t* data = (const uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  uint32_t zero = 0;
  uint32_t queue = ctx->rx_queue_index;
  struct gg_packet packet;

  const struct gg_xdp_config* config = bpf_map_lookup_elem(&gradgate_config, &zero);
  if (!config) return verdict(GG_XDP_VERDICT_PASS, XDP_PASS);

  int result = gg_xdp_classify(data, end, config, &packet);
  if (result == GG_PARSE_NOT_OURS) return verdict(GG_XDP_VERDICT_PASS, XDP_PASS);
  if (result != GG_PARSE_OURS) {
    count(&gradgate_drops, (uint32_t)result);
    return verdict(GG_XDP_VERDICT_DROP, XDP_DROP);
  }
  /* Looked up by hand, because the fallback action of bpf_redirect_map leaves no trace in a counter. */
  if (!bpf_map_lookup_elem(&xsks_map, &queue)) return verdict(GG_XDP_VERDICT_NO_SOCKET, XDP_DROP);
  return verdict(GG_XDP_VERDICT_REDIRECT, (int)bpf_redirect_map(&xsks_map, queue, XDP_DROP));
}

char LICENSE[] SEC("license") = "Apache-2.0";
