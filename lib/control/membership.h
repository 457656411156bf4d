// SPDX-License-Identifier: Apache-2.0
// Who belongs to which group: forming across sites, leaving, failing, returning after a restart (PROTOCOL.md). Pure
// logic: no sockets, no clock; what it decides goes to a SnapshotBuilder, to peers and to the waiting joins.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/site.h"
#include "control/admission.h"
#include "control/protocol.h"
#include "control/snapshot_builder.h"

namespace gradgate::control {

using ConnectionId = uint64_t;
using Answer = std::function<void(const Reply&)>;  ///< called exactly once
using RankSet = std::set<uint16_t>;

/// The control connections to other gateways.
class PeerPipe {
 public:
  virtual ~PeerPipe() = default;
  virtual bool up(uint16_t site) const = 0;
  /// Dropped if the connection is down.
  virtual void send(uint16_t site, const Json& message) = 0;
};

struct GroupName {
  std::string tenant, job, group;
  auto operator<=>(const GroupName&) const = default;
  std::string text() const { return job + "/" + group; }
};

/// A join whose tenant and token have been checked.
struct JoinRequest {
  GroupName name;
  uint16_t rank = 0;
  uint16_t size = 0;
  WorkerAddress address;
  struct Restore {
    Plan plan;
    std::vector<uint32_t> low;
  };
  std::optional<Restore> restore;
};

/// A local worker.
struct Member {
  JoinRequest request;
  ConnectionId connection = 0;
  bool connected = true;  ///< its control connection is open
  Answer answer;          ///< empty once answered
  core::Nanoseconds since = 0;
};

struct Forming {
  struct Remote {
    RankSet ranks;
    uint16_t size = 0;
    uint32_t window = 0;  ///< the largest that fits there; 0: none
    uint32_t lanes = 0, chunk_bytes = 0;
  };
  uint16_t size = 0;  ///< as the local members say; without any, as the first remote says
  std::map<uint16_t, Member> members;
  std::map<uint16_t, Remote> remotes;  ///< by site
  core::Nanoseconds since = 0;         ///< of the first local member
  Json last_sent;
};

enum class GroupState { kPlanned, kRunning, kRecovering, kFailed };

struct Group {
  struct Site {
    std::string name;
    uint32_t label = 0;  ///< 0: not known yet
    bool formed = false;
    std::vector<uint32_t> low;  ///< recovering: what it said
    bool told = false;          ///< recovering: our low
    uint64_t asked = 0;         ///< it recovers and wants our low: this generation has its new link; 0 = nothing asked
  };
  Plan plan;
  GroupState state = GroupState::kPlanned;
  uint32_t context = 0;             ///< 0: no slots here
  uint64_t awaited_generation = 0;  ///< its slots are not in use by every lcore yet
  std::map<uint16_t, Member> members;
  std::map<uint16_t, Site> sites;             ///< the others
  RankSet left;                               ///< ranks of any site
  core::Nanoseconds since = 0;                ///< in this state
  core::Nanoseconds deadline = core::kNever;  ///< planned, recovering, or a site has not returned
  std::string error;
  std::string stall;  ///< latest report
  core::Nanoseconds stall_at = 0, stall_waited_ns = 0;
};

class Membership {
 public:
  /// A failed group stays in the snapshot for so long, so that ERROR frames reach its workers.
  static constexpr core::Nanoseconds kFailedLinger = 3 * core::kSecond;

  Membership(const config::Site& site, dataplane::Dataplane& dataplane, SnapshotBuilder& builder, PeerPipe& peers,
             Random random);

  // ---- workers
  void join(JoinRequest request, ConnectionId connection, Answer answer, core::Nanoseconds now);
  Reply leave(const std::string& tenant, const std::string& group_id, uint16_t rank, core::Nanoseconds now);
  /// The TCP connection has ended: joins that wait on it are withdrawn.
  void disconnected(ConnectionId connection, core::Nanoseconds now);

  // ---- peers
  /// `new_epoch`: the peer has forgotten everything. After SnapshotBuilder::set_peer.
  void peer_up(uint16_t site, bool new_epoch, core::Nanoseconds now);
  void peer_down(uint16_t site, core::Nanoseconds now);
  /// Throws BadMessage.
  void peer_message(uint16_t site, const Json& message, core::Nanoseconds now);

  // ---- watchdog
  /// Deadlines, adoption. Call every 100 ms, every few milliseconds while waits_for_adoption().
  void tick(core::Nanoseconds now);
  bool waits_for_adoption() const;
  /// Called when waits_for_adoption() becomes true.
  void on_awaiting(std::function<void()> callback) { awaiting_ = std::move(callback); }
  /// `cause` without the group's name; the whole text goes to every worker at every site.
  void fail(Group& group, const std::string& cause, core::Nanoseconds now);
  /// Fails all groups and refuses all joins from here on.
  void stop(core::Nanoseconds now);
  /// The group that an event of the data plane is about; nullptr: gone.
  Group* find_by_context(uint32_t context, uint32_t generation);
  /// A stall at this site: kept for status, told to the group's other sites.
  void report_stall(Group& group, const std::string& text, core::Nanoseconds waited_ns, bool names_ranks,
                    core::Nanoseconds now);

  // ---- status
  const std::map<std::string, Group>& groups() const { return groups_; }  ///< by group_id
  std::map<std::string, Group>& groups() { return groups_; }
  const std::map<GroupName, Forming>& forming() const { return forming_; }
  uint64_t tenant_bytes_used(const std::string& tenant) const;
  uint64_t buffers_used() const;
  uint64_t group_memory_bytes(const Group& group) const;
  RankSet missing_ranks(const Forming& forming) const;
  std::string site_name(uint16_t site) const;
  const std::map<uint16_t, core::Nanoseconds>& peers_down_since() const { return down_since_; }
  uint64_t failed_total() const { return failed_total_; }

 private:
  struct Ended {
    std::string group_id, error;
    std::set<uint16_t> sites;
    core::Nanoseconds since;
  };

  // membership.cc
  std::optional<Refusal> refuse_join(const JoinRequest& request, core::Nanoseconds now);
  Group* active(const GroupName& name);
  void drop_if_empty(const GroupName& name);
  void finish_leave(const std::string& group_id, core::Nanoseconds now);
  void left_elsewhere(uint16_t site, const Json& message, core::Nanoseconds now);
  void end(Group& group, const std::string& error, core::Nanoseconds now);
  void fail_here(Group& group, const std::string& text, core::Nanoseconds now);
  void answer(Member& member, const Reply& reply);
  Reply joined(const Group& group, const Member& member) const;
  const Ended* ended(const std::string& group_id) const;

  // forming.cc
  void members_changed(const GroupName& name, core::Nanoseconds now);
  void send_members(const GroupName& name, Forming& forming);
  void gathered(const GroupName& name);
  void refuse_forming(const GroupName& name, const Refusal& refusal, bool tell_peers);
  void refuse_planned(Group& group, const Refusal& refusal, bool tell_peers, core::Nanoseconds now);
  void try_form(const GroupName& name, core::Nanoseconds now);
  void install(Group& group, const std::vector<uint32_t>& low, core::Nanoseconds now);
  void installed(Group& group, core::Nanoseconds now);
  void try_start(Group& group, core::Nanoseconds now);
  void run(Group& group, core::Nanoseconds now);
  void on_members(uint16_t site, const Json& message, core::Nanoseconds now);
  void on_form(uint16_t site, const Json& message, core::Nanoseconds now);
  std::optional<Refusal> refuse_plan(const Plan& plan, uint16_t leader) const;
  void on_formed(uint16_t site, const Json& message, core::Nanoseconds now);
  void on_start(uint16_t site, const Json& message, core::Nanoseconds now);
  void on_refuse(uint16_t site, const Json& message, core::Nanoseconds now);
  std::string late_text(const GroupName& name, const Forming& forming) const;
  Demand demand(const std::set<uint16_t>& sites, size_t local, uint32_t lanes, uint32_t chunk_bytes) const;
  Room room(const std::string& tenant) const;

  // recovery.cc
  void restore(JoinRequest request, ConnectionId connection, Answer answer, core::Nanoseconds now);
  std::optional<Refusal> refuse_restore(const JoinRequest& request) const;
  Group& recovering_group(const Plan& plan, core::Nanoseconds now);
  bool complete(const Group& group) const;
  std::vector<uint32_t> own_low(const Group& group) const;
  void send_recover(const Group& group, uint16_t site);
  void answer_recover(Group& group);
  void try_recover(Group& group, core::Nanoseconds now);
  void on_recover(uint16_t site, const Json& message, core::Nanoseconds now);
  void on_recovered(uint16_t site, const Json& message, core::Nanoseconds now);
  void on_unknown(uint16_t site, const Json& message, core::Nanoseconds now);

  Group* find(const std::string& group_id);
  void send_to_sites(const Group& group, const Json& message);
  const config::Tenant* tenant(const std::string& name) const;
  const config::Peer* peer(uint16_t site) const;

  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  SnapshotBuilder& builder_;
  PeerPipe& peers_;
  Random random_;
  const core::Nanoseconds started_;

  std::map<GroupName, Forming> forming_;
  std::map<std::string, Group> groups_;
  std::deque<Ended> ended_;
  std::map<uint16_t, core::Nanoseconds> down_since_;  ///< peers without a control connection
  uint64_t failed_total_ = 0;
  bool stopping_ = false;
  std::function<void()> awaiting_;
};

}  // namespace gradgate::control
