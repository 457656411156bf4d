// SPDX-License-Identifier: Apache-2.0
// Membership: how a group returns after a gateway's restart (DESIGN section 5, rule 7). Workers join again with the
// plan and their low; when all local ones have, the gateways of the group's sites tell each other their lows.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "control/membership.h"

namespace gradgate::control {

namespace {

/// One index per lane; throws BadMessage.
std::vector<uint32_t> read_low(const Fields& fields, const Plan& plan) {
  std::vector<uint32_t> low = fields.numbers("low", GG_MAX_LANES, ~uint32_t{0});
  if (low.size() != plan.lanes) throw BadMessage(fmt::format("\"{}\" must have one per lane", fields.where("low")));
  for (size_t lane = 0; lane < low.size(); ++lane)
    if (low[lane] % plan.lanes != lane)
      throw BadMessage(fmt::format("\"{}\"[{}] is no index of lane {}", fields.where("low"), lane, lane));
  return low;
}

void raise(std::vector<uint32_t>& low, const std::vector<uint32_t>& other) {
  for (size_t lane = 0; lane < low.size(); ++lane) low[lane] = core::serial_max(low[lane], other[lane]);
}

}  // namespace

std::optional<Refusal> Membership::refuse_restore(const JoinRequest& request) const {
  const Plan& plan = request.restore->plan;
  const auto bad = [](const std::string& text) { return Refusal{400, "bad_request", text}; };
  if (const Ended* old = ended(plan.group_id))
    return Refusal{409, "group_failed", old->error.empty() ? "all ranks have left the group" : old->error};
  if (GroupName{plan.tenant, plan.job, plan.group} != request.name || plan.size != request.size)
    return bad("\"restore.plan\" is of another tenant, job, group or size than the join");
  const PlanSite* own = plan.site(site_.id);
  if (own == nullptr || !std::binary_search(own->ranks.begin(), own->ranks.end(), request.rank))
    return bad(fmt::format("\"restore.plan\" does not have rank {} at site {}", request.rank, site_.name));
  if (plan.lanes > site_.dataplane.lanes || plan.chunk_bytes > site_.dataplane.chunk_bytes)
    return Refusal{
        409, "group_failed",
        fmt::format("group {} cannot return: it has {} lanes and chunks of {} bytes, the gateway now {} and {}",
                    plan.name(), plan.lanes, plan.chunk_bytes, site_.dataplane.lanes, site_.dataplane.chunk_bytes)};
  for (const PlanSite& site : plan.sites)
    if (site.id != site_.id && peer(site.id) == nullptr)
      return Refusal{409, "group_failed",
                     fmt::format("group {} cannot return: site {} is no peer of site {} any more", plan.name(),
                                 site.name, site_.name)};
  if (!builder_.attachment(request.address.ip))
    return bad(fmt::format("no port of site {} has an IPv4 address for workers", site_.name));
  return std::nullopt;
}

void Membership::restore(JoinRequest request, ConnectionId connection, Answer reply, core::Nanoseconds now) {
  const auto refuse = [&](const Refusal& refusal) {
    spdlog::warn("return of rank {} to group {} refused: {}", request.rank, request.name.text(), refusal.text);
    reply(to_reply(refusal));
  };
  if (const auto refusal = refuse_restore(request)) return refuse(*refusal);
  const Plan plan = request.restore->plan;
  Group* group = find(plan.group_id);
  if (group != nullptr && group->state == GroupState::kFailed) return refuse({409, "group_failed", group->error});
  if (group != nullptr && group->plan != plan)
    return refuse({409, "group_failed", fmt::format("\"restore.plan\" differs from that of group {}", plan.group_id)});
  if (group != nullptr && (group->state == GroupState::kPlanned || group->left.contains(request.rank)))
    return refuse({409, "group_failed", fmt::format("rank {} is not in the running group", request.rank)});
  const uint16_t rank = request.rank;
  if (group != nullptr && group->context != 0) {
    // The gateway lives, only the connection was lost.
    builder_.replace_worker(group->context, rank, request.address);
    Member& member = group->members.at(rank);
    member = {std::move(request), connection, true, std::move(reply), now};
    builder_.publish();
    if (group->state == GroupState::kRunning) answer(member, joined(*group, member));
    return;
  }
  if (group != nullptr && group->members.contains(rank))
    return refuse({409, "rank_taken", fmt::format("rank {} of group {} has returned already", rank, plan.name())});
  Group& recovering = recovering_group(plan, now);
  recovering.members[rank] = {std::move(request), connection, true, std::move(reply), now};
  spdlog::info("group {}: rank {} has returned", plan.name(), rank);
  try_recover(recovering, now);
}

Group& Membership::recovering_group(const Plan& plan, core::Nanoseconds now) {
  const auto [entry, fresh] = groups_.try_emplace(plan.group_id);
  Group& group = entry->second;
  if (!fresh) return group;
  group.plan = plan;
  group.state = GroupState::kRecovering;
  group.since = now;
  group.deadline = now + site_.group.peer_timeout_ns;
  for (const PlanSite& site : plan.sites)
    if (site.id != site_.id) group.sites[site.id].name = site.name;
  return group;
}

bool Membership::complete(const Group& group) const {
  return group.members.size() == group.plan.site(site_.id)->ranks.size();
}

std::vector<uint32_t> Membership::own_low(const Group& group) const {
  std::vector<uint32_t> low = group.members.begin()->second.request.restore->low;
  for (const auto& [rank, member] : group.members) raise(low, member.request.restore->low);
  return low;
}

void Membership::send_recover(const Group& group, uint16_t site) {
  peers_.send(
      site,
      {{"type", "recover"}, {"group_id", group.plan.group_id}, {"plan", to_json(group.plan)}, {"low", own_low(group)}});
}

void Membership::try_recover(Group& group, core::Nanoseconds now) {
  if (group.state != GroupState::kRecovering || group.context != 0 || !complete(group)) return;
  std::vector<uint32_t> low = own_low(group);
  bool all = true;
  for (auto& [site, state] : group.sites) {
    // Also one that has told us its low needs ours: it may be recovering too.
    if (!state.told) send_recover(group, site);
    state.told = true;
    if (state.low.empty()) {
      all = false;
    } else {
      raise(low, state.low);
    }
  }
  if (all) install(group, low, now);
}

void Membership::on_recover(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  const Plan plan = plan_from_json(fields.object("plan"), "plan.");
  const std::vector<uint32_t> low = read_low(fields, plan);
  const std::string& id = plan.group_id;
  const auto failed = [&](const std::string& text) {
    peers_.send(site, {{"type", "failed"}, {"group_id", id}, {"error", text}});
  };
  if (plan.site(site) == nullptr || plan.site(site_.id) == nullptr)
    throw BadMessage("\"plan\" does not have both this site and its sender");
  Group* group = find(id);
  if (group == nullptr) {
    if (const Ended* old = ended(id))
      return failed(old->error.empty() ? fmt::format("group {} failed: all ranks have left", plan.name()) : old->error);
    // It may have restarted together with us, and our workers are still on their way.
    if (now - started_ >= site_.group.peer_timeout_ns || tenant(plan.tenant) == nullptr) {
      peers_.send(site, {{"type", "unknown"}, {"group_id", id}});
      return;
    }
    for (const PlanSite& other : plan.sites)
      if (other.id != site_.id && peer(other.id) == nullptr)
        return failed(fmt::format("group {} failed: site {} is no peer of site {} any more", plan.name(), other.name,
                                  site_.name));
    group = &recovering_group(plan, now);
  }
  if (group->state == GroupState::kFailed) return failed(group->error);
  if (group->plan != plan || group->state == GroupState::kPlanned)
    return failed(fmt::format("group {} failed: site {} knows another plan for it", plan.name(), site_.name));
  Group::Site& state = group->sites.at(site);
  state.low = low;
  if (group->context != 0) {
    state.asked = builder_.publish();
    answer_recover(*group);
  } else if (complete(*group)) {
    peers_.send(site, {{"type", "recovered"}, {"group_id", id}, {"low", own_low(*group)}, {"label", 0}});
    try_recover(*group, now);
  }
}

/// Our low is read when every lcore has the peer's new link: a watermark of the old one could still raise it, and the
/// peer would start below what we have freed. Our slots hold what it needs from there on.
void Membership::answer_recover(Group& group) {
  for (auto& [site, state] : group.sites) {
    if (state.asked == 0 || !builder_.adopted(state.asked)) continue;
    state.asked = 0;
    // A label is given when its slots are in use: with "formed".
    const uint32_t label = group.state == GroupState::kRunning ? gg_label(site_.id, group.context) : 0;
    peers_.send(site, {{"type", "recovered"},
                       {"group_id", group.plan.group_id},
                       {"low", builder_.low(group.context)},
                       {"label", label}});
  }
}

void Membership::on_recovered(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  Group* group = find(fields.id("group_id"));
  const uint32_t label = static_cast<uint32_t>(fields.number("label", 0, ~uint32_t{0}));
  if (label != 0 && gg_label_site(label) != site)
    throw BadMessage(fmt::format("\"label\" {} is no label of site {}", label, site));
  if (group == nullptr || group->state != GroupState::kRecovering || !group->sites.contains(site)) return;
  Group::Site& state = group->sites[site];
  state.low = read_low(fields, group->plan);
  if (label != 0) state.label = label;
  try_recover(*group, now);
}

void Membership::on_unknown(uint16_t site, const Json& message, core::Nanoseconds now) {
  const Fields fields(message);
  Group* group = find(fields.id("group_id"));
  if (group == nullptr || group->state != GroupState::kRecovering || !group->sites.contains(site)) return;
  fail(*group, fmt::format("the gateway of site {} does not know it any more: start the job again", site_name(site)),
       now);
}

}  // namespace gradgate::control
