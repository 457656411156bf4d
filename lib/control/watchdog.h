// SPDX-License-Identifier: Apache-2.0
// Watches the data plane for control: its events, and who has fallen silent.
#pragma once

#include <map>
#include <string>

#include "control/membership.h"

namespace gradgate::control {

/// "all_reduce sum float32 of 1024 elements", "broadcast of 2048 elements float32 from root 3", "barrier".
std::string call_text(const core::CallParameters& call);

class Watchdog {
 public:
  Watchdog(const config::Site& site, dataplane::Dataplane& dataplane, SnapshotBuilder& builder, Membership& membership)
      : site_(site), dataplane_(dataplane), builder_(builder), membership_(membership) {}

  /// Every 100 ms.
  void tick(core::Nanoseconds now);

 private:
  void on_event(const core::Event& event, core::Nanoseconds now);
  void on_mismatch(Group& group, const core::Event& event, core::Nanoseconds now);
  void on_wait(Group& group, const core::Event& event, core::Nanoseconds now);
  void check_workers(core::Nanoseconds now);
  void check_peers(core::Nanoseconds now);
  std::string rank_text(const Group& group, uint16_t rank) const;
  std::string missing_text(const core::Event& event) const;

  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  SnapshotBuilder& builder_;
  Membership& membership_;
  std::map<std::string, core::Nanoseconds> logged_;  ///< by group_id: when its stall was last logged
};

}  // namespace gradgate::control
