// SPDX-License-Identifier: Apache-2.0
// Membership: what time and failures do to groups.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "config/quantity.h"
#include "control/membership.h"

namespace gradgate::control {

namespace {

/// Failed and finished groups that are remembered, for joins and peers that ask for them.
constexpr size_t kMaxEnded = 1024;

}  // namespace

void Membership::end(Group& group, const std::string& error, core::Nanoseconds now) {
  Ended old{group.plan.group_id, error, {}, now};
  for (const auto& [site, state] : group.sites) old.sites.insert(site);
  ended_.push_back(std::move(old));
  if (ended_.size() > kMaxEnded) ended_.pop_front();
}

void Membership::fail(Group& group, const std::string& cause, core::Nanoseconds now) {
  if (group.state == GroupState::kFailed) return;
  const std::string text = fmt::format("group {} failed: {}", group.plan.name(), cause);
  send_to_sites(group, {{"type", "failed"}, {"group_id", group.plan.group_id}, {"error", text}});
  fail_here(group, text, now);
  builder_.publish();
}

void Membership::fail_here(Group& group, const std::string& text, core::Nanoseconds now) {
  if (group.state == GroupState::kFailed) return;
  spdlog::error("{}", text);
  group.state = GroupState::kFailed;
  group.since = now;
  group.deadline = core::kNever;
  group.awaited_generation = 0;
  group.error = text;
  ++failed_total_;
  end(group, text, now);
  if (group.context != 0) builder_.fail_group(group.context, text);
  for (auto& [rank, member] : group.members) answer(member, to_reply({409, "group_failed", text}));
}

void Membership::stop(core::Nanoseconds now) {
  stopping_ = true;
  const std::string text = fmt::format("the gateway of site {} is stopping", site_.name);
  std::vector<GroupName> names;
  for (const auto& [name, forming] : forming_) names.push_back(name);
  for (const GroupName& name : names) refuse_forming(name, {503, "stopping", text}, false);
  std::vector<std::string> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (const std::string& id : ids) {
    Group& group = groups_.at(id);
    if (group.state == GroupState::kPlanned) {
      refuse_planned(group, {503, "stopping", text}, true, now);
    } else {
      fail(group, text, now);
    }
  }
  builder_.publish();
}

void Membership::tick(core::Nanoseconds now) {
  builder_.collect();
  std::vector<std::string> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (const std::string& id : ids) {
    Group* group = find(id);
    if (group == nullptr) continue;
    if (group->awaited_generation != 0 && builder_.adopted(group->awaited_generation)) installed(*group, now);
    if (group->context != 0) answer_recover(*group);
    if (group->state == GroupState::kFailed && now - group->since >= kFailedLinger) {
      if (group->context != 0) builder_.remove_group(group->context, now);
      groups_.erase(id);
      continue;
    }
    if (now < group->deadline) continue;
    if (group->state == GroupState::kPlanned) {
      refuse_planned(*group,
                     {504, "join_timeout",
                      fmt::format("group {} did not form in time: not all sites reserved "
                                  "its memory",
                                  group->plan.name())},
                     true, now);
      continue;
    }
    std::vector<uint16_t> missing;
    if (group->state == GroupState::kRecovering)
      for (uint16_t rank : group->plan.site(site_.id)->ranks)
        if (!group->members.contains(rank)) missing.push_back(rank);
    std::string who = missing.empty() ? "" : fmt::format("{} (site {})", ranks_text(missing), site_.name);
    for (const auto& [site, state] : group->sites) {
      const bool returned = group->state == GroupState::kRecovering ? !state.low.empty() : state.label != 0;
      if (!returned) who += fmt::format("{}site {}", who.empty() ? "" : ", ", state.name);
    }
    fail(*group,
         fmt::format("after a gateway's restart {} did not return within {}", who,
                     config::format_duration(site_.group.peer_timeout_ns)),
         now);
  }
  std::vector<GroupName> late;
  for (const auto& [name, forming] : forming_)
    if (!forming.members.empty() && now - forming.since >= site_.group.join_timeout_ns) late.push_back(name);
  for (const GroupName& name : late)
    refuse_forming(name, {504, "join_timeout", late_text(name, forming_.at(name))}, true);
  builder_.publish();
}

bool Membership::waits_for_adoption() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.awaited_generation != 0; });
}

}  // namespace gradgate::control
