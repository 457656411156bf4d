// SPDX-License-Identifier: Apache-2.0
// Brings the data plane up on this machine. Once a process: EAL cannot be initialised twice.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "config/site.h"
#include "dataplane/dataplane.h"

namespace gradgate::dataplane {

/// What keeps the data plane from starting: one line a fault, each with what, where and remedy.
class StartError : public std::runtime_error {
 public:
  explicit StartError(std::vector<std::string> fault_lines);
  explicit StartError(const std::string& fault_line) : StartError(std::vector<std::string>{fault_line}) {}
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::vector<std::string> faults_;
};

struct StartOptions {
  std::vector<std::string> eal;  ///< arguments for EAL after those of the file
  bool debug = false;            ///< DPDK's own messages go to the log
};

/// Preflight, EAL, ports, lcores; `site` must outlive the result. The calling thread becomes EAL's main lcore and has
/// to destroy the result: the lcores then let go of their buffers and the ports are closed, which detaches the XDP
/// programs. Throws StartError.
std::unique_ptr<Dataplane> start(const config::Site& site, const StartOptions& options);

}  // namespace gradgate::dataplane
