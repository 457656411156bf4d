// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gradgate::pktgen {

struct Options {
  std::string gateway = "127.0.0.1:9470";
  std::string tenant, token;
  std::string job = "pktgen";
  std::string group = "g";  ///< groups are called g0, g1, …
  std::string address;      ///< own IPv4 address or interface; empty: the one that reaches the gateway
  uint32_t groups = 1;
  uint32_t workers = 1;  ///< ranks here, of each group
  uint32_t first_rank = 0;
  uint32_t size = 0;  ///< ranks of a group; 0: workers
  std::string kind_name = "all_reduce", dtype_name = "float32", op_name = "sum";
  uint8_t kind = 0;             ///< enum gg_kind
  uint8_t dtype = 0;            ///< enum gg_dtype
  uint16_t op = 0;              ///< enum gg_op
  uint32_t elements = 1 << 20;  ///< of the whole call
  uint64_t calls = 0;           ///< of each group; 0: no limit but the duration
  double duration_s = 0;        ///< 0: no limit but the calls
  uint32_t pipeline = 2;        ///< calls that a worker has outstanding
  uint64_t seed = 1;
  uint32_t join_timeout_s = 60;
  bool json = false;
};

/// Parses and checks the command line. Returns -1 to go on, else the exit status (help printed: 0, usage: 2).
int parse_options(int argc, char** argv, Options& options);

}  // namespace gradgate::pktgen
