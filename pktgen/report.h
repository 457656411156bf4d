// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pktgen/options.h"

namespace gradgate::pktgen {

/// What the emulated workers did together.
struct Totals {
  double seconds = 0;      ///< from the first call's start to the last one's end
  double cpu_seconds = 0;  ///< of this process, meanwhile
  uint64_t calls = 0;      ///< calls of workers
  uint64_t chunks = 0;
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;  ///< UDP payload
  uint64_t packets_lost = 0, frames_resent = 0, packets_dropped = 0;
  uint64_t gateway_restarts = 0;
  uint64_t elements_checked = 0, elements_wrong = 0;
  std::string first_wrong;  ///< which element, expected and found
  std::vector<uint64_t> latencies_ns;
  std::string failure;  ///< why a group failed
};

/// Prints to stdout: a table, or one JSON object. Sorts the latencies.
void print_report(const Options& options, Totals& totals);

}  // namespace gradgate::pktgen
