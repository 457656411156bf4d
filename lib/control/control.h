// SPDX-License-Identifier: Apache-2.0
// The control thread of a gateway: HTTP API, peer sessions, membership, watchdog (DESIGN section 7).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "config/site.h"
#include "dataplane/dataplane.h"

namespace gradgate::control {

/// What tests set otherwise; programs leave it alone.
struct ControlOptions {
  /// From a request's first byte to its last.
  uint64_t request_timeout_ns = 10'000'000'000;
  /// Handle SIGINT and SIGTERM as stop().
  bool signals = true;
};

class Control {
 public:
  /// `site` and `dataplane` must outlive this. Throws std::runtime_error, with the remedy, if [control] listen cannot
  /// be bound.
  Control(const config::Site& site, dataplane::Dataplane& dataplane, const ControlOptions& options = {});
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// TCP port that is listened on.
  uint16_t port() const;
  /// Called once by run(), when connections are served.
  void on_listening(std::function<void()> callback);
  /// Serves until SIGINT, SIGTERM or stop(); then groups fail with that reason, and it returns within 2 s.
  void run();
  /// From any thread; not from a signal handler, which run() has its own for.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradgate::control
