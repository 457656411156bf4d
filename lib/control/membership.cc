// SPDX-License-Identifier: Apache-2.0
#include "control/membership.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradgate::control {

Membership::Membership(const config::Site& site, dataplane::Dataplane& dataplane, SnapshotBuilder& builder,
                       PeerPipe& peers, Random random)
    : site_(site),
      dataplane_(dataplane),
      builder_(builder),
      peers_(peers),
      random_(std::move(random)),
      started_(dataplane.now_ns()) {
  for (const config::Peer& peer : site_.peers) down_since_[peer.id] = started_;
}

// ---- workers

void Membership::join(JoinRequest request, ConnectionId connection, Answer answer, core::Nanoseconds now) {
  if (stopping_) {
    answer(to_reply({503, "stopping", fmt::format("the gateway of site {} is stopping", site_.name)}));
    return;
  }
  if (request.restore) {
    restore(std::move(request), connection, std::move(answer), now);
    builder_.publish();
    return;
  }
  if (const auto refusal = refuse_join(request, now)) {
    spdlog::warn("join of rank {} of group {} refused: {}", request.rank, request.name.text(), refusal->text);
    answer(to_reply(*refusal));
    builder_.publish();
    return;
  }
  const GroupName name = request.name;
  Forming& forming = forming_[name];
  if (forming.members.empty()) forming.since = now;
  forming.size = request.size;
  const uint16_t rank = request.rank;
  spdlog::info("group {}: rank {} of {} has joined from {}:{}", name.text(), rank, request.size,
               config::format(request.address.ip), request.address.udp_port);
  forming.members[rank] = {std::move(request), connection, true, std::move(answer), now};
  members_changed(name, now);
  builder_.publish();
}

std::optional<Refusal> Membership::refuse_join(const JoinRequest& request, core::Nanoseconds now) {
  const std::string text = request.name.text();
  if (request.rank >= request.size)
    return Refusal{400, "bad_request",
                   fmt::format("rank {} of group {} is not below its size {}", request.rank, text, request.size)};
  if (!builder_.attachment(request.address.ip))
    return Refusal{400, "bad_request", fmt::format("no port of site {} has an IPv4 address for workers", site_.name)};
  const auto taken_name = [&](const GroupName& other) {
    return other.job == request.name.job && other.group == request.name.group && other.tenant != request.name.tenant;
  };
  const Refusal other_tenant{409, "other_tenant",
                             fmt::format("group {} exists for another tenant: choose another job name", text)};
  for (const auto& [name, forming] : forming_)
    if (taken_name(name)) return other_tenant;
  std::vector<std::string> stale;
  for (auto& [id, group] : groups_) {
    if (group.state == GroupState::kFailed) continue;
    if (taken_name({group.plan.tenant, group.plan.job, group.plan.group})) return other_tenant;
    if (group.plan.tenant != request.name.tenant || group.plan.name() != text || group.left.contains(request.rank))
      continue;
    const auto member = group.members.find(request.rank);
    const PlanSite* place = group.plan.site_of_rank(request.rank);
    // Whoever held the rank has closed its control connection: a job that was killed starts again.
    if (member != group.members.end() && !member->second.connected) {
      stale.push_back(id);
      continue;
    }
    return Refusal{409, "rank_taken",
                   fmt::format("rank {} of group {} is taken: the group {} with {} ranks{}", request.rank, text,
                               group.state == GroupState::kRecovering ? "is recovering" : "runs", group.plan.size,
                               place == nullptr ? "" : fmt::format(", this one at site {}", place->name))};
  }
  for (const std::string& id : stale)
    fail(groups_.at(id),
         fmt::format("rank {} (site {}) has joined again: its earlier process is gone", request.rank, site_.name), now);

  const auto found = forming_.find(request.name);
  if (found == forming_.end()) {
    constexpr size_t kMaxForming = 4096;
    if (forming_.size() >= kMaxForming)
      return Refusal{503, "too_many_groups", fmt::format("{} groups are forming here already", kMaxForming)};
  } else {
    const Forming& forming = found->second;
    const auto mismatch = [&](uint16_t size, const std::string& who) {
      return Refusal{409, "size_mismatch",
                     fmt::format("rank {} says that group {} has {} ranks, {} says {}", request.rank, text,
                                 request.size, who, size)};
    };
    if (!forming.members.empty() && forming.size != request.size)
      return mismatch(forming.size, fmt::format("rank {} (site {})", forming.members.begin()->first, site_.name));
    for (const auto& [site, remote] : forming.remotes)
      if (remote.size != request.size)
        return mismatch(remote.size, fmt::format("rank {} (site {})", *remote.ranks.begin(), site_name(site)));
    if (const auto member = forming.members.find(request.rank); member != forming.members.end())
      return Refusal{409, "rank_taken",
                     fmt::format("rank {} of group {} is taken by {}:{} (site {})", request.rank, text,
                                 config::format(member->second.request.address.ip),
                                 member->second.request.address.udp_port, site_.name)};
    for (const auto& [site, remote] : forming.remotes)
      if (remote.ranks.contains(request.rank))
        return Refusal{409, "rank_taken",
                       fmt::format("rank {} of group {} is taken at site {}", request.rank, text, site_name(site))};
  }
  if (!builder_.has_room_for(1)) return Refusal{507, "no_memory", "the gateway's table of 65536 neighbours is full"};
  return std::nullopt;
}

Reply Membership::leave(const std::string& tenant_name, const std::string& group_id, uint16_t rank,
                        core::Nanoseconds now) {
  Group* group = find(group_id);
  if (group == nullptr || group->plan.tenant != tenant_name) {
    if (const Ended* old = ended(group_id); old != nullptr && group == nullptr)
      return to_reply({409, "group_failed", old->error.empty() ? "all ranks have left the group" : old->error});
    return to_reply(
        {404, "unknown_group", fmt::format("tenant {} has no group {} at site {}", tenant_name, group_id, site_.name)});
  }
  if (group->state == GroupState::kFailed) return to_reply({409, "group_failed", group->error});
  if (!group->members.contains(rank))
    return to_reply({404, "unknown_group",
                     fmt::format("rank {} of group {} is not at site {}", rank, group->plan.name(), site_.name)});
  if (group->state != GroupState::kRunning)
    return to_reply({409, "group_failed", fmt::format("group {} is not running yet", group->plan.name())});
  if (group->left.insert(rank).second) {
    spdlog::info("group {}: rank {} has left", group->plan.name(), rank);
    send_to_sites(*group, {{"type", "left"}, {"group_id", group_id}, {"ranks", {rank}}});
    finish_leave(group_id, now);
    builder_.publish();
  }
  return {};
}

void Membership::finish_leave(const std::string& group_id, core::Nanoseconds now) {
  Group& group = groups_.at(group_id);
  if (group.left.size() < group.plan.size) return;
  spdlog::info("group {}: all ranks have left", group.plan.name());
  end(group, "", now);
  builder_.remove_group(group.context, now);
  groups_.erase(group_id);
}

void Membership::disconnected(ConnectionId connection, core::Nanoseconds now) {
  std::vector<GroupName> changed;
  for (auto& [name, forming] : forming_) {
    const size_t gone = std::erase_if(forming.members, [&](const auto& entry) {
      if (entry.second.connection != connection) return false;
      spdlog::warn("group {}: rank {} went away before the group had formed", name.text(), entry.first);
      return true;
    });
    if (gone > 0) changed.push_back(name);
  }
  for (const GroupName& name : changed) members_changed(name, now);
  std::vector<std::string> abandoned;
  for (auto& [id, group] : groups_) {
    bool lost = false;
    for (auto& [rank, member] : group.members) {
      if (member.connection != connection || !member.connected) continue;
      member.connected = false;
      lost = lost || member.answer != nullptr;
    }
    if (lost && group.state == GroupState::kPlanned) abandoned.push_back(id);
    if (lost && group.state == GroupState::kRecovering && group.context == 0)
      std::erase_if(group.members, [](const auto& entry) { return !entry.second.connected; });
  }
  for (const std::string& id : abandoned) {
    Group& group = groups_.at(id);
    std::vector<uint16_t> lost;
    for (const auto& [rank, member] : group.members)
      if (!member.connected) lost.push_back(rank);
    refuse_planned(group,
                   {503, "worker_lost",
                    fmt::format("group {}: {} (site {}) went away while the group formed", group.plan.name(),
                                ranks_text(lost), site_.name)},
                   true, now);
  }
  builder_.publish();
}

Reply Membership::joined(const Group& group, const Member& member) const {
  const auto attached = builder_.attachment(member.request.address.ip).value_or(SnapshotBuilder::Attachment{});
  const uint32_t label = gg_label(site_.id, group.context);
  const uint64_t worker_timeout_ms = site_.group.worker_timeout_ns / core::kMillisecond;
  Reply reply;
  reply.body = {{"plan", to_json(group.plan)},
                {"site", site_.id},
                {"gateway", {{"address", config::format(attached.gateway)}, {"udp_port", site_.dataplane.udp_port}}},
                {"remote_link", builder_.worker_link(group.context, member.request.rank)},
                {"group_label", label},
                {"own_label", label},
                {"trailer_crc_send", true},
                {"trailer_crc_receive", false},
                {"max_in_flight", builder_.worker_max_in_flight(group.members.size())},
                {"heartbeat_ms", std::clamp<uint64_t>(worker_timeout_ms / 10, 10, 1000)},
                {"worker_timeout_ms", worker_timeout_ms},
                {"call_timeout_ms", site_.group.call_timeout_ns / core::kMillisecond}};
  return reply;
}

void Membership::answer(Member& member, const Reply& reply) {
  if (member.answer == nullptr) return;
  const Answer answer = std::move(member.answer);
  member.answer = nullptr;
  answer(reply);
}

// ---- peers

void Membership::peer_up(uint16_t site, bool new_epoch, core::Nanoseconds now) {
  down_since_.erase(site);
  if (new_epoch) {
    std::vector<std::string> planned;
    for (auto& [id, group] : groups_) {
      const auto entry = group.sites.find(site);
      if (entry == group.sites.end()) continue;
      entry->second.label = 0;
      entry->second.low.clear();
      if (group.state == GroupState::kPlanned) planned.push_back(id);
      if (group.state != GroupState::kRunning) continue;
      spdlog::warn("group {}: the gateway of site {} has restarted; waiting for its workers to return",
                   group.plan.name(), site_name(site));
      builder_.set_site_label(group.context, site, 0);
      group.deadline = now + site_.group.peer_timeout_ns;
    }
    for (const std::string& id : planned) {
      Group& group = groups_.at(id);
      refuse_planned(group,
                     {503, "peer_lost",
                      fmt::format("group {}: the gateway of site {} restarted while the group "
                                  "formed",
                                  group.plan.name(), site_name(site))},
                     true, now);
    }
  }
  for (auto& [name, forming] : forming_) {
    forming.last_sent = nullptr;
    send_members(name, forming);
  }
  for (const Ended& old : ended_)
    if (!old.error.empty() && old.sites.contains(site) && now - old.since < site_.group.peer_timeout_ns)
      peers_.send(site, {{"type", "failed"}, {"group_id", old.group_id}, {"error", old.error}});
  for (const auto& [id, group] : groups_) {
    if (!group.sites.contains(site)) continue;
    if (group.state == GroupState::kRecovering && complete(group)) send_recover(group, site);
    RankSet own_left;
    for (uint16_t rank : group.left)
      if (group.members.contains(rank)) own_left.insert(rank);
    if (!own_left.empty()) peers_.send(site, {{"type", "left"}, {"group_id", id}, {"ranks", own_left}});
  }
  builder_.publish();
}

void Membership::peer_down(uint16_t site, core::Nanoseconds now) {
  down_since_[site] = now;
  std::vector<GroupName> changed;
  for (auto& [name, forming] : forming_)
    if (forming.remotes.erase(site) > 0) changed.push_back(name);
  for (const GroupName& name : changed) members_changed(name, now);
  std::vector<std::string> planned;
  for (const auto& [id, group] : groups_)
    if (group.state == GroupState::kPlanned && group.sites.contains(site)) planned.push_back(id);
  for (const std::string& id : planned) {
    Group& group = groups_.at(id);
    refuse_planned(group,
                   {503, "peer_lost",
                    fmt::format("group {}: the connection to site {} was lost while the group "
                                "formed",
                                group.plan.name(), site_name(site))},
                   true, now);
  }
  builder_.publish();
}

void Membership::peer_message(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const std::string type = fields.text("type", 32);
  if (type == "members") {
    on_members(site, message, now);
  } else if (type == "form") {
    on_form(site, message, now);
  } else if (type == "formed") {
    on_formed(site, message, now);
  } else if (type == "refuse") {
    on_refuse(site, message, now);
  } else if (type == "start") {
    on_start(site, message, now);
  } else if (type == "left") {
    left_elsewhere(site, message, now);
  } else if (type == "recover") {
    on_recover(site, message, now);
  } else if (type == "recovered") {
    on_recovered(site, message, now);
  } else if (type == "unknown") {
    on_unknown(site, message, now);
  } else if (type == "failed" || type == "stalled") {
    Group* group = find(fields.id("group_id"));
    const std::string text = fields.text(type == "failed" ? "error" : "text", 4096);
    if (group != nullptr && group->sites.contains(site)) {
      if (type == "failed") {
        fail_here(*group, text, now);
      } else {
        group->stall = text;
        group->stall_at = now;
        group->stall_waited_ns = fields.number("waited_ms", 0, uint64_t{1} << 40) * core::kMillisecond;
      }
    }
  } else {
    throw BadMessage(fmt::format("\"type\" is \"{}\", which this version does not know", type));
  }
  builder_.publish();
}

void Membership::left_elsewhere(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const std::string group_id = fields.id("group_id");
  const std::vector<uint32_t> ranks = fields.numbers("ranks", kMaxGroupSize, kMaxGroupSize - 1);
  Group* group = find(group_id);
  if (group == nullptr || group->state != GroupState::kRunning) return;
  for (uint32_t rank : ranks) {
    const PlanSite* place = group->plan.site_of_rank(static_cast<uint16_t>(rank));
    if (place != nullptr && place->id == site) group->left.insert(static_cast<uint16_t>(rank));
  }
  finish_leave(group_id, now);
}

// ---- look-up

Group* Membership::find(const std::string& group_id) {
  const auto found = groups_.find(group_id);
  return found == groups_.end() ? nullptr : &found->second;
}

Group* Membership::find_by_context(uint32_t context, uint32_t generation) {
  for (auto& [id, group] : groups_)
    if (group.context == context && context != 0 && builder_.generation_of(context) == generation) return &group;
  return nullptr;
}

void Membership::report_stall(Group& group, const std::string& text, core::Nanoseconds waited_ns, bool names_ranks,
                              core::Nanoseconds now) {
  // A peer's report that names the rank says more than ours that only knows the site.
  if (names_ranks || now - group.stall_at > site_.group.stall_report_ns) group.stall = text;
  group.stall_at = now;
  group.stall_waited_ns = waited_ns;
  if (names_ranks)
    send_to_sites(group, {{"type", "stalled"},
                          {"group_id", group.plan.group_id},
                          {"text", text},
                          {"waited_ms", waited_ns / core::kMillisecond}});
}

const Membership::Ended* Membership::ended(const std::string& group_id) const {
  for (const Ended& old : ended_)
    if (old.group_id == group_id) return &old;
  return nullptr;
}

void Membership::send_to_sites(const Group& group, const Json& message) {
  for (const auto& [site, state] : group.sites) peers_.send(site, message);
}

const config::Tenant* Membership::tenant(const std::string& name) const {
  for (const config::Tenant& tenant : site_.tenants)
    if (tenant.name == name) return &tenant;
  return nullptr;
}

const config::Peer* Membership::peer(uint16_t site) const {
  for (const config::Peer& peer : site_.peers)
    if (peer.id == site) return &peer;
  return nullptr;
}

std::string Membership::site_name(uint16_t site) const {
  if (site == site_.id) return site_.name;
  const config::Peer* found = peer(site);
  return found == nullptr ? std::to_string(site) : found->site;
}

uint64_t Membership::group_memory_bytes(const Group& group) const {
  // A failed group's buffers are given back when the lanes adopt its error.
  if (group.state == GroupState::kFailed || group.context == 0) return 0;
  return core::group_buffers(group.plan.window, group.plan.lanes, group.members.size(), group.plan.sites.size()) *
         dataplane_.buffer_bytes();
}

uint64_t Membership::tenant_bytes_used(const std::string& name) const {
  uint64_t used = 0;
  for (const auto& [id, group] : groups_)
    if (group.plan.tenant == name) used += group_memory_bytes(group);
  return used;
}

uint64_t Membership::buffers_used() const {
  uint64_t used = 0;
  for (const auto& [id, group] : groups_) used += group_memory_bytes(group) / dataplane_.buffer_bytes();
  return used;
}

}  // namespace gradgate::control
