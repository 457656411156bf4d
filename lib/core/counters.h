// SPDX-License-Identifier: Apache-2.0
// What a lane counts. Balances: packets_received = packets_parsed + sum(packet_drops);
// frames_received = frames_kept + frames_duplicate + frames_past + sum(frame_drops).
#pragma once

#include <array>

#include "core/types.h"

namespace gradgate::core {

/// X(name, "help text of the metric")
#define GG_LANE_COUNTERS(X)                                                             \
  X(packets_received, "packets handed to the lane")                                     \
  X(packets_parsed, "packets whose link, trailer and number were accepted")             \
  X(packets_sent, "packets sent")                                                       \
  X(packets_lost, "packets sent and declared lost")                                     \
  X(packets_spurious, "packets declared lost that were acknowledged later")             \
  X(probe_timeouts, "probe timeouts (RFC 9002 section 6.2)")                            \
  X(frames_received, "frames in accepted packets")                                      \
  X(frames_kept, "frames that changed state or were control")                           \
  X(frames_duplicate, "frames whose contributor or site was counted already")           \
  X(frames_past, "frames of indices that are complete everywhere")                      \
  X(frames_sent, "frames sent, repeats included")                                       \
  X(frames_resent, "frames queued again after a loss")                                  \
  X(chunks_summed, "local sums completed: one per index with local sources")            \
  X(bytes_summed, "bytes of contributions that went into local sums")                   \
  X(results_completed, "indices whose result is known here")                            \
  X(worker_bytes_received, "bytes of packets from workers, from the link header on")    \
  X(worker_bytes_sent, "bytes of packets to workers, from the link header on")          \
  X(wan_bytes_received, "bytes of packets from peer gateways, from the link header on") \
  X(wan_bytes_sent, "bytes of packets to peer gateways, from the link header on")       \
  X(send_blocked, "times that the output had no room")                                  \
  X(events_lost, "events to control that found its ring full")

struct LaneCounters {
#define GG_COUNTER_MEMBER(name, help) Counter name;
  GG_LANE_COUNTERS(GG_COUNTER_MEMBER)
#undef GG_COUNTER_MEMBER
  std::array<Counter, 64> packet_drops;  ///< by enum gg_drop
  std::array<Counter, 64> frame_drops;   ///< by enum gg_drop
};

}  // namespace gradgate::core
