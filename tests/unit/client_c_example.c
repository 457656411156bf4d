/* SPDX-License-Identifier: Apache-2.0 */
/* The example at the top of gradgate.h, as C. Returns 0 if the average over two ranks is right. */
#include <stdio.h>

#include "client/gradgate.h"

int client_c_example(const char* gateway, int rank);

int client_c_example(const char* gateway, int rank) {
  float gradients[1000];
  gg_config_t config;
  gg_comm_t comm;
  size_t i;
  int wrong = 0;
  for (i = 0; i < 1000; i++) gradients[i] = (float)(rank * 2);
  gg_config_init(&config);
  config.gateway = gateway;
  config.tenant = "lab";
  config.token = "secret";
  config.job = "gpt";
  config.rank = rank;
  config.size = 2;
  if (gg_comm_init(&comm, &config) != GG_SUCCESS) {
    puts(gg_last_error(NULL));
    return -1;
  }
  if (gg_all_reduce(comm, gradients, gradients, 1000, GG_DTYPE_FLOAT32, GG_OP_AVERAGE, NULL) != GG_SUCCESS) wrong = -1;
  for (i = 0; i < 1000; i++) wrong += gradients[i] != 1.0f;
  if (gg_comm_finalize(comm, 10000) != GG_SUCCESS) wrong = -1;
  gg_comm_destroy(comm);
  return wrong;
}
