// SPDX-License-Identifier: Apache-2.0
// What operators read: JSON of /v1/status, /v1/groups and /v1/drops, and the Prometheus text format 0.0.4.
#pragma once

#include <string>

#include "control/membership.h"

namespace gradgate::control {

/// What the answers are made of; everything is read at the time of the request.
struct View {
  const config::Site& site;
  const dataplane::Dataplane& dataplane;
  const SnapshotBuilder& builder;
  const Membership& membership;
  const PeerPipe& peers;
  core::Nanoseconds started_ns;
  size_t connections = 0;
  uint64_t connections_refused = 0;
};

Json status_json(const View& view);
Json groups_json(const View& view);
Json drops_json(const View& view);
std::string metrics_text(const View& view);

/// "forming", "running", "failed", "recovering".
std::string_view state_name(GroupState state);
/// Round-trip time of a peer as its busiest lane measured it; 0: not measured yet.
core::Nanoseconds peer_rtt(const SnapshotBuilder& builder, size_t peer);
uint64_t peer_in_flight(const SnapshotBuilder& builder, size_t peer);
/// The group's present stall; 0: it does not stall.
core::Nanoseconds stalled_ns(const View& view, const Group& group);

}  // namespace gradgate::control
