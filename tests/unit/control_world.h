// SPDX-License-Identifier: Apache-2.0
// Gateways' control parts wired together in memory: a fake data plane, a fake pipe between sites, a fake clock.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/membership.h"
#include "control/snapshot_builder.h"
#include "control/watchdog.h"
#include "core/group_lane.h"
#include "core/link.h"

namespace gradgate::control::testing {

class FakeDataplane final : public dataplane::Dataplane {
 public:
  void publish(std::shared_ptr<const dataplane::Snapshot> next) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(next->core->generation, (snapshot_ == nullptr ? 0 : snapshot_->core->generation) + 1);
    EXPECT_EQ(next->core->neighbours.size(), next->endpoints.size());
    snapshot_ = std::move(next);
    if (adopts) adopted_ = snapshot_->core->generation;
  }
  uint64_t adopted_generation() const override {
    const std::lock_guard lock(mutex_);
    return adopted_;
  }
  bool pop_event(core::Event& event) override {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return false;
    event = events_.front();
    events_.pop_front();
    return true;
  }
  std::vector<const core::LaneCounters*> lane_counters() const override { return {&counters[0], &counters[1]}; }
  std::vector<dataplane::PortStatus> ports() const override {
    dataplane::PortStatus port;
    port.name = "lan";
    port.device = "net_\"odd\\name\"";
    port.drops[GG_DROP_BAD_MAGIC] = 3;
    port.xdp_drops[GG_DROP_FRAGMENT] = 4;
    return {port};
  }
  std::vector<dataplane::LcoreStatus> lcores() const override { return {{}}; }
  uint64_t admissible_buffers() const override { return buffers; }
  uint64_t buffer_bytes() const override { return 4096; }
  uint64_t now_ns() const override {
    const std::lock_guard lock(mutex_);
    return clock ? clock() : now;
  }

  void push(const core::Event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  std::shared_ptr<const core::Snapshot> snapshot() const {
    const std::lock_guard lock(mutex_);
    return snapshot_ == nullptr ? nullptr : snapshot_->core;
  }
  const dataplane::Endpoint& endpoint(uint32_t index) const { return snapshot_->endpoints[index]; }
  /// As if all lcores had just picked up the newest snapshot.
  void adopt() { adopted_ = snapshot_->core->generation; }

  core::LaneCounters counters[2];
  uint64_t buffers = 1 << 20;
  bool adopts = true;
  core::Nanoseconds now = 1000 * core::kSecond;
  std::function<uint64_t()> clock;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const dataplane::Snapshot> snapshot_;
  uint64_t adopted_ = 0;
  std::deque<core::Event> events_;
};

/// Site `id` ("a" is 1) with a LAN port 10.ID.0.1/24, a WAN port 198.51.100.ID/24 and the other sites as peers.
inline config::Site make_site(uint16_t id, uint16_t sites) {
  config::Site site;
  site.id = id;
  site.name = std::string(1, static_cast<char>('a' + id - 1));
  const auto octet = static_cast<uint8_t>(id);
  config::Port lan, wan;
  lan.name = "lan";
  lan.addresses = {{config::Ip4{{10, octet, 0, 1}}, 24}};
  wan.name = "wan";
  wan.addresses = {{config::Ip4{{198, 51, 100, octet}}, 24}};
  site.ports = {wan, lan};
  for (uint16_t other = 1; other <= sites; ++other) {
    if (other == id) continue;
    config::Peer peer;
    peer.id = other;
    peer.site = std::string(1, static_cast<char>('a' + other - 1));
    peer.port = 0;
    peer.address = config::Ip4{{198, 51, 100, static_cast<uint8_t>(other)}};
    peer.rate_bits_per_second = 1'000'000'000;
    peer.rtt_ns = 10 * core::kMillisecond;
    peer.control = {"127.0.0.1", 1};
    site.peers.push_back(peer);
  }
  site.dataplane.lanes = 4;
  site.tenants = {{"lab", "lab-token-1", uint64_t{1} << 30}, {"other", "other-token", uint64_t{1} << 30}};
  return site;
}

class World;

/// One site's gateway process; restarting it makes a new one.
struct Gateway final : PeerPipe {
  Gateway(World& owner, uint16_t id, uint16_t sites, uint32_t seed);
  bool up(uint16_t site) const override;
  void send(uint16_t site, const Json& message) override;

  World& world;
  config::Site site;
  FakeDataplane dataplane;
  uint32_t random_state;
  SnapshotBuilder builder;
  Membership membership;
  Watchdog watchdog;
};

/// A join's answer, once there is one.
struct Pending {
  std::optional<Reply> reply;
  uint16_t site = 0, rank = 0;
  ConnectionId connection = 0;

  int status() const { return reply ? reply->status : 0; }
  std::string error() const {
    return reply && reply->body.contains("error") ? reply->body["error"].get<std::string>() : "";
  }
  std::string code() const {
    return reply && reply->body.contains("code") ? reply->body["code"].get<std::string>() : "";
  }
  const Json& plan() const { return reply->body.at("plan"); }
  std::string group_id() const { return plan().at("group_id"); }
};

class World {
 public:
  explicit World(uint16_t sites) : sites_(sites) {
    for (uint16_t id = 1; id <= sites; ++id) gateways_[id] = std::make_unique<Gateway>(*this, id, sites, id);
    for (uint16_t a = 1; a <= sites; ++a)
      for (uint16_t b = static_cast<uint16_t>(a + 1); b <= sites; ++b) connect(a, b, true);
  }

  Gateway& at(uint16_t site) { return *gateways_.at(site); }
  core::Nanoseconds now() const { return now_; }

  /// `fresh`: the one that both sides take for a new epoch.
  void connect(uint16_t a, uint16_t b, bool fresh) {
    links_.insert({a, b});
    links_.insert({b, a});
    if (fresh) {
      at(a).builder.set_peer(position(a, b), at(a).builder.draw_peer_link(position(a, b)), 77, 9472);
      at(b).builder.set_peer(position(b, a), at(b).builder.draw_peer_link(position(b, a)), 88, 9472);
    }
    at(a).membership.peer_up(b, fresh, now_);
    at(b).membership.peer_up(a, fresh, now_);
  }

  void disconnect(uint16_t a, uint16_t b) {
    links_.erase({a, b});
    links_.erase({b, a});
    queues_.erase({a, b});
    queues_.erase({b, a});
    if (gateways_.contains(a)) at(a).membership.peer_down(b, now_);
    if (gateways_.contains(b)) at(b).membership.peer_down(a, now_);
  }

  /// The process dies: its state and its joins' connections are gone.
  void kill(uint16_t site) {
    auto dead = std::move(gateways_.at(site));
    gateways_.erase(site);
    for (auto& [other, gateway] : gateways_) disconnect(site, other);
  }

  void start(uint16_t site) {
    gateways_[site] = std::make_unique<Gateway>(*this, site, sites_, ++seed_);
    for (auto& [other, gateway] : gateways_)
      if (other != site) connect(site, other, true);
  }

  bool linked(uint16_t a, uint16_t b) const { return links_.contains({a, b}); }
  void enqueue(uint16_t from, uint16_t to, std::string text) {
    if (linked(from, to)) queues_[{from, to}].push_back(std::move(text));
  }

  bool deliver_one(uint16_t from, uint16_t to) {
    const auto queue = queues_.find({from, to});
    if (queue == queues_.end() || queue->second.empty()) return false;
    const std::string text = std::move(queue->second.front());
    queue->second.pop_front();
    seen.push_back({from, to, parse_json(text).at("type")});
    at(to).membership.peer_message(from, parse_json(text), now_);
    return true;
  }

  /// Until all is quiet. `order` picks which pair goes next, so that tests can try many interleavings.
  void deliver(uint32_t order = 0) {
    for (int i = 0; i < 100'000; ++i) {
      std::vector<std::pair<uint16_t, uint16_t>> ready;
      for (const auto& [pair, queue] : queues_)
        if (!queue.empty()) ready.push_back(pair);
      if (ready.empty()) return;
      order = order * 1664525 + 1013904223;
      const auto [from, to] = ready[(order >> 16) % ready.size()];
      deliver_one(from, to);
    }
    FAIL() << "messages never end";
  }

  void advance(core::Nanoseconds by) {
    now_ += by;
    for (auto& [id, gateway] : gateways_) {
      gateway->dataplane.now = now_;
      gateway->watchdog.tick(now_);
      gateway->membership.tick(now_);
    }
    deliver();
  }

  struct Want {
    std::string tenant = "lab", job = "gpt", group = "dp";
    std::optional<Json> restore_plan = std::nullopt;
    std::vector<uint32_t> low = {};
  };

  Pending& join(uint16_t site, uint16_t rank, uint16_t size) { return join(site, rank, size, Want{}); }
  Pending& join(uint16_t site, uint16_t rank, uint16_t size, const Want& want) {
    pending_.push_back(std::make_unique<Pending>());
    Pending& pending = *pending_.back();
    pending.site = site;
    pending.rank = rank;
    pending.connection = ++connections_;
    JoinRequest request;
    request.name = {want.tenant, want.job, want.group};
    request.rank = rank;
    request.size = size;
    request.address = {config::Ip4{{10, static_cast<uint8_t>(site), 0, static_cast<uint8_t>(10 + rank)}},
                       static_cast<uint16_t>(40000 + rank), 0xABC00000u + rank};
    if (want.restore_plan)
      request.restore = JoinRequest::Restore{plan_from_json(*want.restore_plan, "plan."), want.low};
    at(site).membership.join(
        std::move(request), pending.connection,
        [&pending](const Reply& reply) {
          EXPECT_FALSE(pending.reply.has_value()) << "answered twice";
          pending.reply = reply;
        },
        now_);
    return pending;
  }

  void hang_up(const Pending& pending) { at(pending.site).membership.disconnected(pending.connection, now_); }

  /// Ranks 0..size-1, `per_site` at each site in turn, all running.
  std::vector<Pending*> run_group(uint16_t size, uint16_t per_site) {
    std::vector<Pending*> out;
    for (uint16_t rank = 0; rank < size; ++rank)
      out.push_back(&join(static_cast<uint16_t>(1 + rank / per_site), rank, size));
    deliver();
    for (Pending* pending : out) EXPECT_EQ(pending->status(), 200) << pending->error();
    return out;
  }

  /// The only group that the site has.
  Group& group(uint16_t site) {
    EXPECT_EQ(at(site).membership.groups().size(), 1u);
    return at(site).membership.groups().begin()->second;
  }
  const core::GroupEntry& entry(uint16_t site) { return at(site).dataplane.snapshot()->groups.at(group(site).context); }

  struct Seen {
    uint16_t from, to;
    std::string type;
  };
  std::vector<Seen> seen;

 private:
  size_t position(uint16_t site, uint16_t peer) {
    for (size_t i = 0; i < at(site).site.peers.size(); ++i)
      if (at(site).site.peers[i].id == peer) return i;
    return 0;
  }

  uint16_t sites_;
  uint32_t seed_ = 1000;
  core::Nanoseconds now_ = 1000 * core::kSecond;
  std::map<uint16_t, std::unique_ptr<Gateway>> gateways_;
  std::set<std::pair<uint16_t, uint16_t>> links_;
  std::map<std::pair<uint16_t, uint16_t>, std::deque<std::string>> queues_;
  std::vector<std::unique_ptr<Pending>> pending_;
  ConnectionId connections_ = 0;
};

inline Gateway::Gateway(World& owner, uint16_t id, uint16_t sites, uint32_t seed)
    : world(owner),
      site(make_site(id, sites)),
      random_state(seed * 2654435761u),
      builder(site, dataplane, [this] { return random_state = random_state * 1664525 + 1013904223; }),
      membership((dataplane.now = owner.now(), site), dataplane, builder, *this,
                 [this] { return random_state = random_state * 1664525 + 1013904223; }),
      watchdog(site, dataplane, builder, membership) {}

inline bool Gateway::up(uint16_t other) const {
  return world.linked(site.id, other);
}
inline void Gateway::send(uint16_t other, const Json& message) {
  world.enqueue(site.id, other, message.dump());
}

}  // namespace gradgate::control::testing
