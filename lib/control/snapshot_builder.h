// SPDX-License-Identifier: Apache-2.0
// The table that control and the lanes share: neighbours by index, groups by label context. Turns changes into
// generations of core::Snapshot. No sockets; single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/site.h"
#include "control/protocol.h"
#include "dataplane/dataplane.h"

namespace gradgate::control {

/// 32 random bits; unpredictable outside tests, since link ids keep strangers' packets out.
using Random = std::function<uint32_t()>;

/// Where a worker receives, as it registered.
struct WorkerAddress {
  config::Ip4 ip;
  uint16_t udp_port = 0;
  uint32_t link = 0;  ///< its link id
  bool operator==(const WorkerAddress&) const = default;
};

class SnapshotBuilder {
 public:
  /// A label context is not used again before this has passed (DESIGN section 2).
  static constexpr core::Nanoseconds kQuarantine = 120 * core::kSecond;

  SnapshotBuilder(const config::Site& site, dataplane::Dataplane& dataplane, Random random);

  // ---- peers; `peer` is the position in Site::peers and the neighbour's index
  /// Link id for packets from the peer, should an epoch begin.
  uint32_t draw_peer_link(size_t peer);
  /// A new epoch of the peer: packets to it carry `remote_link`, packets from it `local_link`.
  void set_peer(size_t peer, uint32_t local_link, uint32_t remote_link, uint16_t udp_port);
  /// nullptr before the first epoch.
  const core::Neighbour* peer(size_t peer) const { return neighbours_[peer].get(); }

  // ---- groups
  /// Whether the link id's 16 index bits have room for so many more workers; to be asked before add_group().
  bool has_room_for(size_t workers) const;
  /// Allocates the group's slots and neighbours. `low` as in core::Group. Returns its label context, 0 if all contexts
  /// are in use or in quarantine. Memory has been admitted by the caller.
  uint32_t add_group(const Plan& plan, const std::map<uint16_t, WorkerAddress>& workers,
                     const std::vector<uint32_t>& low, core::Nanoseconds now);
  /// Link id that the worker puts into its packets.
  uint32_t worker_link(uint32_t context, uint16_t rank) const;
  /// The worker came back: a new epoch in its place of the table.
  void replace_worker(uint32_t context, uint16_t rank, const WorkerAddress& address);
  /// Label of a peer's site for the group; 0: not known (it restarted).
  void set_site_label(uint32_t context, uint16_t site, uint32_t label);
  void fail_group(uint32_t context, const std::string& text);
  void remove_group(uint32_t context, core::Nanoseconds now);

  /// The group's generation in events.
  uint32_t generation_of(uint32_t context) const { return groups_[context].group->config.generation; }
  /// First index per lane that is not complete everywhere, as the lanes have published it.
  std::vector<uint32_t> low(uint32_t context) const;
  uint64_t slots_in_use(uint32_t context) const;
  /// When a packet of the worker last came in on any lane; 0 = never.
  core::Nanoseconds worker_heard(uint32_t context, uint16_t rank) const;
  core::Nanoseconds peer_heard(size_t peer) const;

  // ---- publishing
  /// Publishes what has changed since; returns the newest generation.
  uint64_t publish();
  bool adopted(uint64_t generation) const { return dataplane_.adopted_generation() >= generation; }
  /// Frees snapshots that every lcore has left.
  void collect();
  size_t snapshots_held() const { return published_.size(); }

  /// What a worker at `ip` is reached through, as position in Site::ports, and the gateway's address there.
  struct Attachment {
    uint16_t port = 0;
    config::Ip4 gateway;
  };
  std::optional<Attachment> attachment(const config::Ip4& ip) const;
  /// Packets per lane that each of a group's local workers may have on the way: bursts of all of them fit into half of
  /// a port's receive ring of 2048 packets, as far as 16 a lane allow.
  uint32_t worker_max_in_flight(size_t workers) const;
  static constexpr uint64_t kWorkerBurst = 1024;

 private:
  struct FreeIndex {
    uint32_t index;
    uint64_t generation;  ///< the first without the neighbour
  };
  struct FreeContext {
    uint32_t context;
    core::Nanoseconds since;
  };
  struct Worker {
    uint16_t rank;
    uint32_t index;
  };

  uint32_t link_of(uint32_t index) { return random_() << 16 | index; }
  uint32_t take_index();
  uint32_t take_context(core::Nanoseconds now);
  void put_worker(uint32_t index, uint32_t label, const WorkerAddress& address, size_t workers);
  core::GroupConfig group_config(const Plan& plan, uint32_t context, const std::vector<Worker>& workers) const;
  uint32_t worker_index(uint32_t context, uint16_t rank) const;
  static core::Nanoseconds heard(const core::Neighbour* neighbour);

  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  Random random_;

  std::vector<std::shared_ptr<core::Neighbour>> neighbours_;
  std::vector<dataplane::Endpoint> endpoints_;       ///< parallel
  std::vector<core::GroupEntry> groups_;             ///< by context; 0 is never used
  std::map<uint32_t, std::vector<Worker>> workers_;  ///< by context
  std::deque<FreeIndex> free_indices_;
  std::deque<FreeContext> free_contexts_;
  uint32_t group_generation_ = 0;

  uint64_t generation_ = 0;  ///< newest published
  bool changed_ = true;
  std::deque<std::shared_ptr<const dataplane::Snapshot>> published_;
};

}  // namespace gradgate::control
