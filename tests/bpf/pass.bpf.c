// SPDX-License-Identifier: Apache-2.0
/*
 * Passes everything. A foreign program for the tests, and what the peer of a veth needs so that packets which an XDP
 * program redirects or sends into the pair arrive (veth receives frames only with XDP or NAPI on the peer).
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("xdp")
int xdp_pass(struct xdp_md* ctx) {
  (void)ctx;
  return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
