// SPDX-License-Identifier: Apache-2.0
#include "control/watchdog.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "config/quantity.h"

namespace gradgate::control {

namespace {

std::string_view kind_name(uint8_t kind) {
  constexpr std::string_view kNames[] = {"nothing",   "all_reduce", "reduce_scatter", "all_gather",
                                         "broadcast", "reduce",     "barrier"};
  static_assert(std::size(kNames) == GG_KIND_COUNT);
  return kind < GG_KIND_COUNT ? kNames[kind] : "unknown kind";
}

std::string_view dtype_name(uint8_t dtype) {
  constexpr std::string_view kNames[] = {"bytes", "float32", "float16", "bfloat16", "int32"};
  static_assert(std::size(kNames) == GG_DTYPE_COUNT);
  return dtype < GG_DTYPE_COUNT ? kNames[dtype] : "unknown type";
}

std::string_view op_name(uint16_t op) {
  constexpr std::string_view kNames[] = {"no operation", "sum", "average"};
  static_assert(std::size(kNames) == GG_OP_COUNT);
  return op < GG_OP_COUNT ? kNames[op] : "unknown operation";
}

std::string seconds_text(core::Nanoseconds ns) {
  return fmt::format("{} s", (ns + core::kSecond / 2) / core::kSecond);
}

}  // namespace

std::string call_text(const core::CallParameters& call) {
  const std::string_view kind = kind_name(call.kind);
  switch (call.kind) {
    case GG_BARRIER:
      return std::string(kind);
    case GG_ALL_REDUCE:
    case GG_REDUCE_SCATTER:
      return fmt::format("{} {} {} of {} elements", kind, op_name(call.op), dtype_name(call.dtype), call.elements);
    case GG_REDUCE:
      return fmt::format("{} {} {} of {} elements to root {}", kind, op_name(call.op), dtype_name(call.dtype),
                         call.elements, call.root);
    case GG_BROADCAST:
      return fmt::format("{} of {} elements {} from root {}", kind, call.elements, dtype_name(call.dtype), call.root);
    default:
      return fmt::format("{} of {} elements {}", kind, call.elements, dtype_name(call.dtype));
  }
}

void Watchdog::tick(core::Nanoseconds now) {
  core::Event event;
  while (dataplane_.pop_event(event)) on_event(event, now);
  check_workers(now);
  check_peers(now);
  std::erase_if(logged_, [this](const auto& entry) { return !membership_.groups().contains(entry.first); });
}

void Watchdog::on_event(const core::Event& event, core::Nanoseconds now) {
  Group* group = membership_.find_by_context(event.context, event.generation);
  if (group == nullptr || group->state != GroupState::kRunning) return;
  if (event.type == core::Event::Type::kMismatch) {
    on_mismatch(*group, event, now);
  } else {
    on_wait(*group, event, now);
  }
}

std::string Watchdog::rank_text(const Group& group, uint16_t rank) const {
  const PlanSite* site = group.plan.site_of_rank(rank);
  return site == nullptr ? fmt::format("rank {}", rank) : fmt::format("rank {} (site {})", rank, site->name);
}

void Watchdog::on_mismatch(Group& group, const core::Event& event, core::Nanoseconds now) {
  std::string other = call_text(event.other_call);
  if (event.other_call.call != event.call.call) {
    other += fmt::format(" as call {}", event.other_call.call);
  } else if (other == call_text(event.call)) {
    // The same call in other words: what differs is the piece that this index is.
    other = fmt::format("a chunk of {} bytes of rank {}'s share where the other has {} bytes of rank {}'s",
                        event.other_call.length, event.other_call.root, event.call.length, event.call.root);
  }
  membership_.fail(group,
                   fmt::format("{} called {} as call {}, {} called {}", rank_text(group, event.rank),
                               call_text(event.call), event.call.call, rank_text(group, event.other_rank), other),
                   now);
}

std::string Watchdog::missing_text(const core::Event& event) const {
  std::string text;
  const size_t listed = std::min<size_t>(event.missing_rank_count, event.missing_ranks.size());
  if (listed > 0) {
    text = ranks_text({event.missing_ranks.begin(), event.missing_ranks.begin() + listed});
    if (event.missing_rank_count > listed) text += fmt::format(" and {} more", event.missing_rank_count - listed);
    text += fmt::format(" (site {})", site_.name);
  }
  for (size_t i = 0; i < std::min<size_t>(event.missing_site_count, event.missing_sites.size()); ++i)
    text += fmt::format("{}site {}", text.empty() ? "" : ", ", membership_.site_name(event.missing_sites[i]));
  return text.empty() ? "its last acknowledgements" : text;
}

void Watchdog::on_wait(Group& group, const core::Event& event, core::Nanoseconds now) {
  const std::string call = fmt::format("call {} ({})", event.call.call, call_text(event.call));
  // Who has left will not come.
  std::vector<uint16_t> left;
  for (size_t i = 0; i < std::min<size_t>(event.missing_rank_count, event.missing_ranks.size()); ++i)
    if (group.left.contains(event.missing_ranks[i])) left.push_back(event.missing_ranks[i]);
  std::string left_text = left.empty() ? "" : fmt::format("{} (site {})", ranks_text(left), site_.name);
  for (size_t i = 0; i < std::min<size_t>(event.missing_site_count, event.missing_sites.size()); ++i) {
    const PlanSite* site = group.plan.site(event.missing_sites[i]);
    if (site == nullptr ||
        !std::all_of(site->ranks.begin(), site->ranks.end(), [&](uint16_t r) { return group.left.contains(r); }))
      continue;
    left_text += fmt::format("{}{} (site {})", left_text.empty() ? "" : ", ", ranks_text(site->ranks), site->name);
  }
  if (!left_text.empty()) {
    membership_.fail(
        group, fmt::format("{} left before {}, which {} called", left_text, call, rank_text(group, event.rank)), now);
    return;
  }
  const std::string missing = missing_text(event);
  if (event.type == core::Event::Type::kTimeout) {
    membership_.fail(
        group,
        fmt::format("{} waited for {} for {}", call, config::format_duration(site_.group.call_timeout_ns), missing),
        now);
    return;
  }
  const std::string text = fmt::format("group {}: {} waits since {} for {}", group.plan.name(), call,
                                       seconds_text(event.waited_ns), missing);
  membership_.report_stall(group, text, event.waited_ns, event.missing_rank_count > 0, now);
  // Every lane reports for itself: one line per group and period.
  core::Nanoseconds& logged = logged_[group.plan.group_id];
  if (logged != 0 && now - logged < site_.group.stall_report_ns / 2) return;
  logged = now;
  spdlog::warn("{}", text);
}

void Watchdog::check_workers(core::Nanoseconds now) {
  const core::Nanoseconds limit = site_.group.worker_timeout_ns;
  for (auto& [id, group] : membership_.groups()) {
    if (group.state != GroupState::kRunning) continue;
    std::vector<uint16_t> silent;
    for (const auto& [rank, member] : group.members) {
      if (group.left.contains(rank)) continue;
      const core::Nanoseconds last = std::max({builder_.worker_heard(group.context, rank), group.since, member.since});
      if (now > last && now - last > limit) silent.push_back(rank);
    }
    if (silent.empty()) continue;
    membership_.fail(group,
                     fmt::format("no packet from {} (site {}) for {}: the worker has died or the network to it is "
                                 "broken",
                                 ranks_text(silent), site_.name, config::format_duration(limit)),
                     now);
  }
}

void Watchdog::check_peers(core::Nanoseconds now) {
  const core::Nanoseconds limit = site_.group.peer_timeout_ns;
  for (size_t i = 0; i < site_.peers.size(); ++i) {
    const config::Peer& peer = site_.peers[i];
    const auto down = membership_.peers_down_since().find(peer.id);
    if (down == membership_.peers_down_since().end()) continue;
    const core::Nanoseconds last = std::max(down->second, builder_.peer_heard(i));
    if (now <= last || now - last <= limit) continue;
    for (auto& [id, group] : membership_.groups())
      if (group.state == GroupState::kRunning && group.sites.contains(peer.id))
        membership_.fail(group,
                         fmt::format("no connection to and no packet from the gateway of site {} for {}", peer.site,
                                     config::format_duration(limit)),
                         now);
  }
}

}  // namespace gradgate::control
