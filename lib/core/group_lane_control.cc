// SPDX-License-Identifier: Apache-2.0
// The rare side of a group's lane: forming, links that change, watermarks' pace, waiting calls, failure.
#include <algorithm>
#include <bit>

#include "core/group_lane.h"

namespace gradgate::core {

namespace {
/// Bytes of an ERROR's text: even (checksums of pieces), and small enough for every modality.
constexpr size_t kMaxErrorBytes = 900;
}  // namespace

GroupLane::GroupLane(const GroupConfig& config, uint8_t lane, uint16_t site, uint32_t low)
    : config_(config),
      lane_(lane),
      lane_shift_(static_cast<uint8_t>(std::countr_zero(config.lanes))),
      members_(static_cast<uint32_t>(config.members.size())),
      sites_(static_cast<uint32_t>(config.sites.size())),
      low_(low),
      announced_low_(low),
      announced_watermark_(low) {
  const size_t window = config_.window;
  slots_.resize(window);
  member_states_.resize(window * members_);
  contributions_.resize(window * members_);
  site_states_.resize(window * sites_);
  site_partials_.resize(window * sites_);
  operands_.resize(std::max(members_, sites_));
  flows_ = std::vector<Flow>(members_ + sites_);
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    flows_[i].source = this;
    flows_[i].position = static_cast<uint16_t>(i);
    // A frame stands in a ring at most once per slot, plus one of the slot's last index that went stale.
    flows_[i].reserve(config_.window * 2);
  }
  member_of_rank_.assign(config_.size, kNoMember);
  for (uint32_t m = 0; m < members_; ++m) member_of_rank_[config_.members[m].rank] = static_cast<uint16_t>(m);
  site_watermarks_.assign(sites_, low);
  site_links_.assign(sites_, nullptr);
  for (uint32_t s = 0; s < sites_; ++s) {
    if (config_.sites[s].site == site) self_ = s;
    total_weight_ += config_.sites[s].weight;
  }
  site_position_of_rank_.resize(config_.size);
  for (uint32_t rank = 0; rank < config_.size; ++rank)
    for (uint32_t s = 0; s < sites_; ++s)
      if (config_.sites[s].site == config_.site_of_rank[rank]) site_position_of_rank_[rank] = static_cast<uint16_t>(s);
  look_timer_.owner = flush_timer_.owner = this;
  look_timer_.fire = [](void* owner, Nanoseconds now) { static_cast<GroupLane*>(owner)->look(now); };
  flush_timer_.fire = [](void* owner, Nanoseconds) { static_cast<GroupLane*>(owner)->flush_watermarks(); };
  published_low_.set(low);
}

void GroupLane::attach(const Environment& environment, Nanoseconds now) {
  environment_ = environment;
  environment_.wheel->arm(look_timer_, now + kLook);
}

void GroupLane::detach() {
  for (Flow& flow : flows_) {
    if (flow.link != nullptr) flow.link->forget(flow);
    flow.link = nullptr;
  }
  for (Slot& s : slots_)
    if ((s.flags & kUsed) != 0) release_slot(s);
  environment_.wheel->disarm(look_timer_);
  environment_.wheel->disarm(flush_timer_);
  environment_ = {};
}

void GroupLane::update(const GroupEntry& entry, const Snapshot& snapshot) {
  for (Flow& flow : flows_) {
    const bool to_member = flow.position < members_;
    const uint32_t site = flow.position - members_;
    if (!to_member && site == self_) continue;
    const uint32_t neighbour = to_member ? config_.members[flow.position].neighbour : config_.sites[site].neighbour;
    const uint32_t label = to_member ? config_.members[flow.position].label : entry.site_labels[site];
    const Neighbour* n = neighbour < snapshot.neighbours.size() ? snapshot.neighbours[neighbour].get() : nullptr;
    Link* const epoch = n == nullptr ? nullptr : n->lanes[lane_].get();
    if (!to_member && epoch != site_links_[site]) {
      // What a peer had passed above low is gone with its old epoch (rule 7).
      site_links_[site] = epoch;
      site_watermarks_[site] = low_;
    }
    Link* const link = label == 0 ? nullptr : epoch;
    if (link == flow.link && label == flow.label) continue;
    // A link that is gone has forgotten the flow already; one that stays under a new label has not.
    if (flow.link != nullptr && flow.link == link) flow.link->forget(flow);
    flow.link = link;
    flow.label = label;
    flow.clear_chunks();
    flow.pending_control = 0;
    if (link == nullptr) continue;
    if (to_member) {
      requeue_member(flow.position);
    } else {
      requeue_site(site);
    }
  }
  if (entry.error != nullptr && error_.empty()) {
    error_ = entry.error->substr(0, kMaxErrorBytes);
    if (error_.size() % 2 != 0) error_.push_back(' ');
    error_payload_.data = reinterpret_cast<uint8_t*>(error_.data());
    error_payload_.length = static_cast<uint32_t>(error_.size());
    fail();
  }
}

/// The group's memory is free from here on; only the ERROR remains to be delivered.
void GroupLane::fail() {
  failed_ = true;
  for (Slot& s : slots_)
    if ((s.flags & kUsed) != 0) release_slot(s);
  for (Flow& flow : flows_) {
    flow.clear_chunks();
    flow.pending_control = 0;
    if (flow.position < members_) queue_control(flow, GG_ERROR);
  }
}

void GroupLane::requeue_member(uint32_t member) {
  for (uint32_t i = 0; i < config_.window; ++i) {
    Slot& s = slot(low_ + (i << lane_shift_));
    if ((s.flags & kUsed) == 0) continue;
    member_state(position(s.index), member) &= static_cast<uint8_t>(~kQueued);
    queue_result(s, member);
  }
  queue_control(member_flow(member), error_.empty() ? GG_WATERMARK : GG_ERROR);
}

/// A peer that starts anew has nothing from low on; what it had acknowledged is gone with it (rule 7).
void GroupLane::requeue_site(uint32_t site) {
  for (uint32_t i = 0; i < config_.window; ++i) {
    Slot& s = slot(low_ + (i << lane_shift_));
    if ((s.flags & kUsed) == 0) continue;
    site_state(position(s.index), site) &= static_cast<uint8_t>(~(kSiteQueued | kSiteDelivered));
    if ((s.flags & kPartialDone) != 0 && decides(site, s.call, s.index)) queue_to_site(s, site, GG_PARTIAL);
    if ((s.flags & kResultDone) != 0 && sharded(s.call) && root_site(s.index) == self_ && site_has_sink(site, s.call))
      queue_to_site(s, site, GG_RESULT);
  }
  queue_control(site_flow(site), GG_WATERMARK);
}

void GroupLane::push(Flow& flow, const FrameId& id) {
  if (flow.link == nullptr) return;  // update() queues what is needed once the link is there
  flow.make_room([&](const FrameId& queued) { return needed(flow, queued); });
  flow.push(id);
  flow.link->activate(flow);
}

void GroupLane::queue_control(Flow& flow, uint8_t type) {
  if (flow.link == nullptr) return;
  flow.pending_control = static_cast<uint16_t>(flow.pending_control | 1u << type);
  flow.link->activate(flow);
}

void GroupLane::announce_progress(Nanoseconds now) {
  if (environment_.wheel == nullptr) return;
  const uint32_t eighth = std::max(window_span() / 8, step());
  const bool far = low_ - announced_low_ >= eighth || site_watermarks_[self_] - announced_watermark_ >= eighth;
  if (far) {
    flush_watermarks();
  } else if (flush_timer_.deadline == kNever) {
    environment_.wheel->arm(flush_timer_, now + kFlush);
  }
}

void GroupLane::flush_watermarks() {
  if (failed_) return;
  if (low_ != announced_low_) {
    announced_low_ = low_;
    for (uint32_t member = 0; member < members_; ++member) queue_control(member_flow(member), GG_WATERMARK);
  }
  if (site_watermarks_[self_] != announced_watermark_) {
    announced_watermark_ = site_watermarks_[self_];
    for (uint32_t site = 0; site < sites_; ++site)
      if (site != self_) queue_control(site_flow(site), GG_WATERMARK);
  }
}

void GroupLane::look(Nanoseconds now) {
  environment_.wheel->arm(look_timer_, now + kLook);
  if (failed_) return;
  const Slot& s = slot(site_watermarks_[self_]);
  if (!live(s, site_watermarks_[self_]) || passed(s) || now - s.since < kLook) return;
  for (uint32_t site = 0; site < sites_; ++site)
    if (site != self_) queue_control(site_flow(site), GG_READY);
  const Nanoseconds waited = now - s.since;
  if (waited >= config_.call_timeout_ns && !timed_out_) {
    timed_out_ = report_wait(s, Event::Type::kTimeout, now);
  } else if (waited >= config_.stall_report_ns && now - last_stall_report_ >= config_.stall_report_ns) {
    last_stall_report_ = now;
    report_wait(s, Event::Type::kStall, now);
  }
}

bool GroupLane::report_wait(const Slot& s, Event::Type type, Nanoseconds now) {
  Event event;
  event.type = type;
  event.index = s.index;
  event.call = s.call;
  event.rank = s.first_rank;
  event.waited_ns = now - s.since;
  const uint32_t pos = position(s.index);
  const bool result = (s.flags & kResultDone) != 0;
  for (uint32_t member = 0; member < members_; ++member) {
    const uint16_t rank = config_.members[member].rank;
    const uint8_t state = member_state(pos, member);
    const bool source_missing = is_source(s.call, rank) && (state & kContributed) == 0;
    const bool sink_missing = is_sink(s.call, rank) && ((state & kReady) == 0 || (result && (state & kDelivered) == 0));
    if (!source_missing && !sink_missing) continue;
    if (event.missing_rank_count < event.missing_ranks.size()) event.missing_ranks[event.missing_rank_count] = rank;
    ++event.missing_rank_count;
  }
  if (!result) {
    for (uint32_t site = 0; site < sites_; ++site) {
      if (site == self_) continue;
      const bool expected = sharded(s.call) && root_site(s.index) != self_
                                ? root_site(s.index) == site
                                : site_has_source(site, s.call) && (site_state(pos, site) & kHavePartial) == 0;
      if (!expected) continue;
      if (event.missing_site_count < event.missing_sites.size())
        event.missing_sites[event.missing_site_count] = config_.sites[site].site;
      ++event.missing_site_count;
    }
  }
  return emit(event);
}

bool GroupLane::emit(const Event& event) {
  Event complete = event;
  complete.lane = lane_;
  complete.context = config_.context;
  complete.generation = config_.generation;
  if (environment_.events->push(complete)) return true;
  environment_.counters->events_lost.add();
  return false;
}

}  // namespace gradgate::core
