// SPDX-License-Identifier: Apache-2.0
/* The parser alone, as BPF: leaves what it found in a map, so that a test can compare offsets with the C++ build. */
#include "tests/bpf/parse_result.h"

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct parse_result);
} parse_results SEC(".maps");

SEC("xdp")
int parse_only(struct xdp_md* ctx) {
  const uint8_t* data = (const uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  uint32_t zero = 0;
  struct parse_result* out = bpf_map_lookup_elem(&parse_results, &zero);
  if (!out) return XDP_ABORTED;
  out->result = gg_parse(data, end, GG_DEFAULT_UDP_PORT, &out->packet);
  return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
