/* SPDX-License-Identifier: Apache-2.0 */
/* What parse.bpf.c leaves in its map for the test. C subset shared with BPF. */
#ifndef GG_PARSE_RESULT_H
#define GG_PARSE_RESULT_H

#include "wire/gg_parse.h"

struct parse_result {
  int32_t result;
  struct gg_packet packet;
};

#endif
