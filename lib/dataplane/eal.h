// SPDX-License-Identifier: Apache-2.0
// DPDK's environment abstraction layer, from the site's file.
#pragma once

#include <string>
#include <vector>

#include "config/site.h"
#include "dataplane/memory.h"
#include "dataplane/start.h"

namespace gradgate::dataplane {

/// Lcore of the k-th worker; the calling thread is lcore 0.
constexpr unsigned worker_lcore(unsigned k) {
  return k + 1;
}
/// One that floats over all CPUs where the file names none.
inline unsigned worker_count(const config::Dataplane& dataplane) {
  return dataplane.lcores.empty() ? 1 : static_cast<unsigned>(dataplane.lcores.size());
}

/// argv for rte_eal_init, program name included.
std::vector<std::string> eal_arguments(const config::Site& site, const MemoryPlan& memory,
                                       const std::vector<unsigned>& allowed_cpus, const StartOptions& options);

/// Throws StartError.
void eal_init(const std::vector<std::string>& arguments, bool debug);

/// What DPDK and libbpf said last, for error texts: "; DPDK says: …" or nothing. Forgets it.
std::string dpdk_words();

}  // namespace gradgate::dataplane
