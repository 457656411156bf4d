// SPDX-License-Identifier: Apache-2.0
// Membership: how a group forms across sites. Ranks gather (members), the lowest site with ranks proposes a plan
// (form), every site reserves memory and labels (formed), the proposer starts the group (start).
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "config/quantity.h"
#include "control/membership.h"

namespace gradgate::control {

namespace {

Json message_for(const char* type, const GroupName& name) {
  return {{"type", type}, {"tenant", name.tenant}, {"job", name.job}, {"group", name.group}};
}

GroupName name_of(const Fields& fields) {
  return {fields.name("tenant"), fields.name("job"), fields.name("group")};
}

}  // namespace

// ---- memory

Demand Membership::demand(const std::set<uint16_t>& sites, size_t local, uint32_t lanes, uint32_t chunk_bytes) const {
  Demand out;
  out.lanes = lanes;
  out.chunk_bytes = chunk_bytes;
  out.local_members = local;
  out.sites = sites.size();
  for (uint16_t site : sites)
    if (const config::Peer* p = peer(site))
      out.bdp_bytes = std::max(
          out.bdp_bytes, static_cast<double>(p->rate_bits_per_second) / 8.0 * static_cast<double>(p->rtt_ns) / 1e9);
  return out;
}

Room Membership::room(const std::string& tenant_name) const {
  Room out;
  out.tenant = tenant_name;
  out.tenant_bytes = tenant(tenant_name)->memory_bytes;
  out.tenant_bytes_left = out.tenant_bytes - std::min(out.tenant_bytes, tenant_bytes_used(tenant_name));
  out.buffers = dataplane_.admissible_buffers();
  out.buffers_left = out.buffers - std::min(out.buffers, buffers_used());
  out.buffer_bytes = dataplane_.buffer_bytes();
  return out;
}

// ---- gathering

RankSet Membership::missing_ranks(const Forming& forming) const {
  RankSet missing;
  for (uint32_t rank = 0; rank < forming.size; ++rank) missing.insert(static_cast<uint16_t>(rank));
  for (const auto& [rank, member] : forming.members) missing.erase(rank);
  for (const auto& [site, remote] : forming.remotes)
    for (uint16_t rank : remote.ranks) missing.erase(rank);
  return missing;
}

void Membership::members_changed(const GroupName& key, core::Nanoseconds now) {
  const GroupName name = key;  // what follows may erase the entry that owns the key
  Forming& forming = forming_.at(name);
  if (!forming.members.empty()) {
    std::set<uint16_t> sites{site_.id};
    for (const auto& [site, remote] : forming.remotes) sites.insert(site);
    const Demand needed = demand(sites, forming.members.size(), site_.dataplane.lanes, site_.dataplane.chunk_bytes);
    const Room left = room(name.tenant);
    if (fitting_window(needed, left, kMinWindow) == 0) {
      refuse_forming(name, {507, "no_memory", no_room_text(name.text(), needed, left)}, true);
      return;
    }
  }
  send_members(name, forming);
  if (forming.members.empty() && forming.remotes.empty()) {
    forming_.erase(name);
    return;
  }
  try_form(name, now);
}

void Membership::send_members(const GroupName& name, Forming& forming) {
  Json message = message_for("members", name);
  RankSet ranks;
  for (const auto& [rank, member] : forming.members) ranks.insert(rank);
  message["ranks"] = ranks;
  message["size"] = forming.size;
  message["lanes"] = site_.dataplane.lanes;
  message["chunk_bytes"] = site_.dataplane.chunk_bytes;
  message["window"] = 0;
  if (!ranks.empty()) {
    std::set<uint16_t> sites{site_.id};
    for (const auto& [site, remote] : forming.remotes) sites.insert(site);
    Demand needed = demand(sites, ranks.size(), site_.dataplane.lanes, site_.dataplane.chunk_bytes);
    // The others may not have been heard of yet.
    if (ranks.size() < forming.size) needed.sites = std::max<uint64_t>(needed.sites, 2);
    message["window"] = fitting_window(needed, room(name.tenant), kMaxWindow);
  }
  if (message == forming.last_sent || (ranks.empty() && forming.last_sent.is_null())) return;
  forming.last_sent = message;
  for (const config::Peer& p : site_.peers) peers_.send(p.id, message);
}

void Membership::on_members(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const GroupName name = name_of(fields);
  Forming::Remote remote;
  remote.size = static_cast<uint16_t>(fields.number("size", 1, kMaxGroupSize));
  for (uint32_t rank : fields.numbers("ranks", remote.size, remote.size - 1u))
    remote.ranks.insert(static_cast<uint16_t>(rank));
  remote.window = static_cast<uint32_t>(fields.number("window", 0, kMaxWindow));
  remote.lanes = static_cast<uint32_t>(fields.number("lanes", 1, GG_MAX_LANES));
  remote.chunk_bytes = static_cast<uint32_t>(fields.number("chunk_bytes", 16, 8192));
  // A group of a tenant that is not known here cannot have ranks here.
  if (tenant(name.tenant) == nullptr) return;
  if (remote.ranks.empty()) {
    const auto found = forming_.find(name);
    if (found != forming_.end() && found->second.remotes.erase(site) > 0) members_changed(name, now);
    return;
  }
  constexpr size_t kMaxForming = 8192;
  if (!forming_.contains(name) && forming_.size() >= kMaxForming) return;
  Forming& forming = forming_[name];
  if (forming.members.empty()) forming.size = remote.size;
  // Joins that crossed on the way: the lower site's stand.
  if (site < site_.id && !forming.members.empty()) {
    std::vector<Member> refused;
    std::string text;
    std::string code = "rank_taken";
    if (forming.size != remote.size) {
      code = "size_mismatch";
      text = fmt::format("this site's ranks say that group {} has {} ranks, rank {} (site {}) says {}", name.text(),
                         forming.size, *remote.ranks.begin(), site_name(site), remote.size);
      for (auto& [rank, member] : forming.members) refused.push_back(std::move(member));
      forming.members.clear();
      forming.size = remote.size;
    }
    for (uint16_t rank : remote.ranks) {
      const auto member = forming.members.find(rank);
      if (member == forming.members.end()) continue;
      text = fmt::format("rank {} of group {} is taken at site {}", rank, name.text(), site_name(site));
      refused.push_back(std::move(member->second));
      forming.members.erase(member);
    }
    forming.remotes[site] = std::move(remote);
    for (Member& member : refused) answer(member, to_reply({409, code, text}));
  } else {
    forming.remotes[site] = std::move(remote);
  }
  members_changed(name, now);
}

std::string Membership::late_text(const GroupName& name, const Forming& forming) const {
  const RankSet missing = missing_ranks(forming);
  std::vector<uint16_t> here;
  for (const auto& [rank, member] : forming.members) here.push_back(rank);
  std::string text = fmt::format("group {} did not form within {}: ", name.text(),
                                 config::format_duration(site_.group.join_timeout_ns));
  if (missing.empty()) {
    text += "all ranks have joined, but the sites do not agree";
  } else {
    text += fmt::format("{} of {} did not come", ranks_text({missing.begin(), missing.end()}), forming.size);
  }
  text += fmt::format("; {} (site {})", ranks_text(here), site_.name);
  for (const auto& [site, remote] : forming.remotes)
    text += fmt::format(", {} (site {})", ranks_text({remote.ranks.begin(), remote.ranks.end()}), site_name(site));
  text += " waited";
  for (const auto& [site, since] : down_since_) text += fmt::format("; site {} is not connected", site_name(site));
  return text;
}

void Membership::refuse_forming(const GroupName& key, const Refusal& refusal, bool tell_peers) {
  const GroupName name = key;
  const auto found = forming_.find(name);
  if (found == forming_.end()) return;
  spdlog::warn("group {} refused: {}", name.text(), refusal.text);
  std::map<uint16_t, Member> members = std::move(found->second.members);
  found->second.members.clear();
  if (tell_peers) {
    Json message = message_for("refuse", name);
    message["code"] = refusal.code;
    message["status"] = refusal.status;
    message["error"] = refusal.text;
    for (const auto& [site, remote] : found->second.remotes) peers_.send(site, message);
  }
  send_members(name, found->second);
  if (found->second.remotes.empty()) forming_.erase(found);
  for (auto& [rank, member] : members) answer(member, to_reply(refusal));
}

// ---- planning

void Membership::try_form(const GroupName& name, core::Nanoseconds now) {
  Forming& forming = forming_.at(name);
  if (forming.members.empty()) return;
  size_t total = forming.members.size();
  Plan plan;
  plan.lanes = static_cast<uint8_t>(site_.dataplane.lanes);
  plan.chunk_bytes = site_.dataplane.chunk_bytes;
  uint32_t window = kMaxWindow;
  std::set<uint16_t> sites{site_.id};
  PlanSite own{site_.id, site_.name, 1, {}};
  for (const auto& [rank, member] : forming.members) own.ranks.push_back(rank);
  plan.sites.push_back(std::move(own));
  for (const auto& [site, remote] : forming.remotes) {
    if (site < site_.id) return;  // it proposes
    if (remote.size != forming.size || remote.window == 0) return;
    total += remote.ranks.size();
    plan.lanes = static_cast<uint8_t>(std::min<uint32_t>(plan.lanes, remote.lanes));
    plan.chunk_bytes = std::min(plan.chunk_bytes, remote.chunk_bytes);
    window = std::min(window, remote.window);
    sites.insert(site);
    plan.sites.push_back({site, site_name(site), 1, {remote.ranks.begin(), remote.ranks.end()}});
  }
  if (total != forming.size || !missing_ranks(forming).empty()) return;

  const Demand needed = demand(sites, forming.members.size(), plan.lanes, plan.chunk_bytes);
  const Room left = room(name.tenant);
  plan.window = fitting_window(needed, left, std::min(window, wanted_window(needed)));
  if (plan.window == 0) {
    refuse_forming(name, {507, "no_memory", no_room_text(name.text(), needed, left)}, true);
    return;
  }
  plan.group_id = fmt::format("{:08x}{:08x}", random_(), random_());
  plan.tenant = name.tenant;
  plan.job = name.job;
  plan.group = name.group;
  plan.size = forming.size;
  plan.exchange_limit_bytes = core::GroupConfig{}.exchange_limit_bytes;
  for (uint32_t lane = 0; lane < plan.lanes; ++lane) plan.start.push_back((random_() & ~(plan.lanes - 1u)) | lane);

  Group& group = groups_[plan.group_id];
  group.plan = plan;
  group.since = now;
  group.members = std::move(forming.members);
  group.deadline = std::max(forming.since + site_.group.join_timeout_ns, now + 10 * core::kSecond);
  for (const PlanSite& site : plan.sites)
    if (site.id != site_.id) group.sites[site.id].name = site.name;
  send_to_sites(group, {{"type", "form"}, {"plan", to_json(plan)}});
  gathered(name);
  install(group, plan.start, now);
}

std::optional<Refusal> Membership::refuse_plan(const Plan& plan, uint16_t leader) const {
  const std::string name = plan.name();
  const auto broken = [&](const std::string& why) {
    return Refusal{409, "plan_refused", fmt::format("group {}: site {} refuses the plan: {}", name, site_.name, why)};
  };
  const PlanSite* own = plan.site(site_.id);
  if (own == nullptr || plan.sites.front().id != leader) return broken("it is not from the group's lowest site");
  if (plan.lanes > site_.dataplane.lanes || plan.chunk_bytes > site_.dataplane.chunk_bytes)
    return broken(fmt::format("{} lanes and chunks of {} bytes are more than {} and {}", plan.lanes, plan.chunk_bytes,
                              site_.dataplane.lanes, site_.dataplane.chunk_bytes));
  for (const PlanSite& site : plan.sites) {
    if (site.id == site_.id || site.id == leader) continue;
    if (peer(site.id) == nullptr || !peers_.up(site.id))
      return Refusal{503, "peer_lost",
                     fmt::format("group {}: site {} has no connection to site {}", name, site_.name, site.name)};
  }
  const auto found = forming_.find({plan.tenant, plan.job, plan.group});
  if (found == forming_.end() || found->second.size != plan.size) return broken("its ranks are no longer waiting");
  std::vector<uint16_t> waiting;
  for (const auto& [rank, member] : found->second.members) waiting.push_back(rank);
  if (waiting != own->ranks) return broken("its ranks have changed");
  return std::nullopt;
}

void Membership::on_form(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const Plan plan = plan_from_json(fields.object("plan"), "plan.");
  if (groups_.contains(plan.group_id)) throw BadMessage("\"plan.group_id\" is in use");
  const GroupName name{plan.tenant, plan.job, plan.group};
  if (const auto refusal = refuse_plan(plan, site)) {
    Json refuse = message_for("refuse", name);
    refuse["group_id"] = plan.group_id;
    refuse["code"] = refusal->code;
    refuse["status"] = refusal->status;
    refuse["error"] = refusal->text;
    for (const PlanSite& other : plan.sites)
      if (other.id != site_.id) peers_.send(other.id, refuse);
    refuse_forming(name, *refusal, false);
    return;
  }
  Forming& forming = forming_.at(name);
  Group& group = groups_[plan.group_id];
  group.plan = plan;
  group.since = now;
  group.members = std::move(forming.members);
  group.deadline = std::max(forming.since + site_.group.join_timeout_ns, now + 10 * core::kSecond);
  for (const PlanSite& other : plan.sites)
    if (other.id != site_.id) group.sites[other.id].name = other.name;
  gathered(name);
  install(group, plan.start, now);
}

/// Local members have moved into a group. A peer's ranks go when it says so: they may be those of the next group
/// already.
void Membership::gathered(const GroupName& name) {
  Forming& forming = forming_.at(name);
  forming.members.clear();
  send_members(name, forming);
  if (forming.remotes.empty()) forming_.erase(name);
}

void Membership::install(Group& group, const std::vector<uint32_t>& low, core::Nanoseconds now) {
  std::set<uint16_t> sites;
  for (const PlanSite& site : group.plan.sites) sites.insert(site.id);
  const Demand needed = demand(sites, group.members.size(), group.plan.lanes, group.plan.chunk_bytes);
  const Room left = room(group.plan.tenant);
  Refusal refusal{507, "no_memory", no_room_text(group.plan.name(), needed, left)};
  if (fits(needed, left, group.plan.window) && builder_.has_room_for(group.members.size())) {
    std::map<uint16_t, WorkerAddress> workers;
    for (const auto& [rank, member] : group.members) workers[rank] = member.request.address;
    group.context = builder_.add_group(group.plan, workers, low, now);
    refusal.text = "all label contexts of the gateway are in use";
  }
  if (group.context == 0) {
    if (group.state == GroupState::kRecovering) {
      fail(group, refusal.text, now);
    } else {
      refuse_planned(group, refusal, true, now);
    }
    return;
  }
  group.awaited_generation = builder_.publish();
  if (builder_.adopted(group.awaited_generation)) {
    installed(group, now);
  } else if (awaiting_) {
    awaiting_();
  }
}

void Membership::installed(Group& group, core::Nanoseconds now) {
  group.awaited_generation = 0;
  const Json formed = {
      {"type", "formed"}, {"group_id", group.plan.group_id}, {"label", gg_label(site_.id, group.context)}};
  if (group.state == GroupState::kRecovering) {
    send_to_sites(group, formed);
    run(group, now);
  } else if (group.plan.sites.front().id == site_.id) {
    try_start(group, now);
  } else {
    peers_.send(group.plan.sites.front().id, formed);
  }
}

void Membership::on_formed(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  Group* group = find(fields.id("group_id"));
  const uint32_t label = static_cast<uint32_t>(fields.number("label", 1, ~uint32_t{0}));
  if (gg_label_site(label) != site || gg_label_context(label) == GG_CONTEXT_LINK)
    throw BadMessage(fmt::format("\"label\" {} is no label of site {}", label, site));
  if (group == nullptr || !group->sites.contains(site)) return;
  Group::Site& state = group->sites[site];
  state.label = label;
  state.formed = true;
  if (group->state == GroupState::kPlanned) {
    try_start(*group, now);
  } else if (group->state == GroupState::kRunning) {
    builder_.set_site_label(group->context, site, label);
    const bool all = std::all_of(group->sites.begin(), group->sites.end(),
                                 [](const auto& entry) { return entry.second.label != 0; });
    if (all) group->deadline = core::kNever;
    spdlog::info("group {}: site {} has returned", group->plan.name(), state.name);
  }
}

void Membership::try_start(Group& group, core::Nanoseconds now) {
  if (group.plan.sites.front().id != site_.id || group.context == 0 || group.awaited_generation != 0) return;
  Json labels = {{std::to_string(site_.id), gg_label(site_.id, group.context)}};
  for (const auto& [site, state] : group.sites) {
    if (!state.formed) return;
    labels[std::to_string(site)] = state.label;
  }
  send_to_sites(group, {{"type", "start"}, {"group_id", group.plan.group_id}, {"labels", labels}});
  run(group, now);
}

void Membership::on_start(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  Group* group = find(fields.id("group_id"));
  const Fields labels(fields.object("labels"), "labels.");
  if (group == nullptr || group->state != GroupState::kPlanned || group->plan.sites.front().id != site) return;
  if (group->context == 0 || group->awaited_generation != 0) throw BadMessage("\"start\" before \"formed\"");
  for (auto& [other, state] : group->sites) {
    const uint32_t first = gg_label(other, 1);
    state.label = static_cast<uint32_t>(labels.number(std::to_string(other).c_str(), first, first | GG_CONTEXT_MASK));
  }
  run(*group, now);
}

void Membership::run(Group& group, core::Nanoseconds now) {
  const bool returned = group.state == GroupState::kRecovering;
  group.state = GroupState::kRunning;
  group.since = now;
  group.deadline = core::kNever;
  for (const auto& [site, state] : group.sites) {
    if (state.label != 0)
      builder_.set_site_label(group.context, site, state.label);
    else
      group.deadline = now + site_.group.peer_timeout_ns;
  }
  builder_.publish();
  spdlog::info("group {} {}: {} ranks at {} sites, {} lanes, {} slots per lane, {} of memory", group.plan.name(),
               returned ? "has returned" : "runs", group.plan.size, group.plan.sites.size(), group.plan.lanes,
               group.plan.window, config::format_size(group_memory_bytes(group)));
  for (auto& [rank, member] : group.members) answer(member, joined(group, member));
}

// ---- refusing

void Membership::refuse_planned(Group& planned, const Refusal& refusal, bool tell_peers, core::Nanoseconds now) {
  const std::string id = planned.plan.group_id;
  spdlog::warn("group {} refused: {}", planned.plan.name(), refusal.text);
  if (tell_peers) {
    Json message = message_for("refuse", {planned.plan.tenant, planned.plan.job, planned.plan.group});
    message["group_id"] = id;
    message["code"] = refusal.code;
    message["status"] = refusal.status;
    message["error"] = refusal.text;
    send_to_sites(planned, message);
  }
  end(planned, refusal.text, now);
  if (planned.context != 0) builder_.remove_group(planned.context, now);
  Group group = std::move(planned);
  groups_.erase(id);
  for (auto& [rank, member] : group.members) answer(member, to_reply(refusal));
}

void Membership::on_refuse(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const GroupName name = name_of(fields);
  Refusal refusal;
  refusal.status = static_cast<int>(fields.number("status", 400, 599));
  refusal.code = fields.name("code");
  refusal.text = fields.text("error", 4096);
  if (fields.has("group_id")) {
    Group* group = find(fields.id("group_id"));
    if (group == nullptr || !group->sites.contains(site)) return;
    if (group->state == GroupState::kPlanned) {
      refuse_planned(*group, refusal, false, now);
    } else {
      fail_here(*group, fmt::format("group {} failed: {}", group->plan.name(), refusal.text), now);
    }
    return;
  }
  const auto found = forming_.find(name);
  if (found == forming_.end() || !found->second.remotes.contains(site)) return;
  found->second.remotes.erase(site);
  refuse_forming(name, refusal, false);
}

}  // namespace gradgate::control
