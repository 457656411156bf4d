// SPDX-License-Identifier: Apache-2.0
// One lane of a gateway: what one core does with the packets whose index is its own modulo the lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/counters.h"
#include "core/event.h"
#include "core/io.h"
#include "core/link.h"
#include "core/link_scheduler.h"
#include "core/packet.h"
#include "core/snapshot.h"

namespace gradgate::core {

class GroupLane;

class GatewayLane {
 public:
  GatewayLane(uint8_t lane, uint16_t site, BufferPool& pool, Output& output, EventSink& events);
  ~GatewayLane();

  /// Between bursts: adopts what control has published. Links and groups that vanished are released; the caller
  /// tells control afterwards that `snapshot.generation` is in use.
  void apply(std::shared_ptr<const Snapshot> snapshot, Nanoseconds now);

  /// Takes one packet. Returns the neighbour that sent it, or kNoNeighbour if it was dropped (and counted) before
  /// its link was known to be genuine.
  uint32_t receive(const Arrival& arrival, Nanoseconds now);

  /// Timers, then packets that may go out, acknowledgements last. Call after every burst and when next_deadline()
  /// has come. At most `budget_packets` data packets, so that reception is not starved.
  void poll(Nanoseconds now, uint32_t budget_packets = 64);

  /// When poll() wants to be called again; 0 = at once, kNever = only after a packet.
  Nanoseconds next_deadline() const;

  const LaneCounters& counters() const { return counters_; }
  LaneCounters& counters() { return counters_; }

 private:
  uint32_t drop(gg_drop reason);
  bool receive_frame(const ReceivedFrame& frame, const Neighbour& neighbour, uint32_t index, Link& link,
                     GroupLane* group, Buffer buffer, Nanoseconds now);

  const uint8_t lane_;
  const uint16_t site_;
  BufferPool& pool_;
  Output& output_;
  EventSink& events_;
  LaneCounters counters_;
  LinkScheduler links_;
  std::shared_ptr<const Snapshot> snapshot_;
  std::vector<PeerBudget*> budgets_;  ///< lane 0: what it runs for all lanes
};

}  // namespace gradgate::core
