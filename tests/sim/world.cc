// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/chunking.h"
#include "wire/checksum.h"

namespace gradgate::sim {

namespace {

constexpr Nanoseconds kDeadline = 300 * core::kSecond;

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xBF58476D1CE4E5B9u + c * 0x94D049BB133111EBu + 0x1234567;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 29;
  return x;
}

class Output final : public core::Output {
 public:
  std::function<void(const core::Datagram&, std::vector<uint8_t>)> sink;
  bool send(const core::Datagram& datagram) override {
    std::vector<uint8_t> bytes(datagram.header, datagram.header + datagram.header_bytes);
    if (datagram.payload != nullptr)
      bytes.insert(bytes.end(), datagram.payload->data, datagram.payload->data + datagram.payload->length);
    if (datagram.trailer_crc) {
      const uint32_t crc = wire::packet_crc32c(bytes.data(), bytes.size());
      bytes.resize(bytes.size() + GG_CRC_BYTES);
      gg_put32(bytes.data() + bytes.size() - GG_CRC_BYTES, crc);
    }
    sink(datagram, std::move(bytes));
    return true;
  }
};

class Events final : public core::EventSink {
 public:
  std::vector<core::Event> seen;
  bool push(const core::Event& event) override {
    seen.push_back(event);
    return true;
  }
};

}  // namespace

struct World::Site {
  uint16_t id = 0;
  unsigned position = 0;
  Pool pool;
  Output output;
  Events events;
  bool up = false;
  bool waiting = false;  ///< returned, but other sites are still down
  uint64_t epoch = 0;
  uint64_t generation = 0;
  std::vector<std::unique_ptr<core::GatewayLane>> lanes;
  std::shared_ptr<core::Group> group;
  std::vector<std::shared_ptr<core::Neighbour>> neighbours;  ///< peers by position, then local workers
  std::vector<uint32_t> neighbour_nodes;
  std::vector<std::shared_ptr<core::FixedRate>> rates;
};

struct World::Worker final : core::Member::Observer {
  World* world = nullptr;
  unsigned rank = 0, site = 0;
  Output output;
  std::unique_ptr<core::Member> member;
  uint32_t local_link = 0;
  uint64_t epoch = 0;
  unsigned submitted = 0, done = 0;
  std::vector<core::Operation> operations;
  std::vector<std::vector<float>> buffers, outputs;
  void operation_done(core::Operation& operation) override {
    ++done;
    world->check_result(*this, static_cast<unsigned>(&operation - operations.data()));
  }
  void group_failed(const std::string& text) override { world->fail("a group failed that should not: " + text); }
};

Scenario Scenario::draw(uint64_t seed, unsigned max_restarts) {
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t n) { return random() % n; };
  Scenario s;
  s.seed = seed;
  s.workers_of_site.resize(1 + pick(4));
  for (unsigned& workers : s.workers_of_site) workers = static_cast<unsigned>(1 + pick(3));
  s.lanes = static_cast<uint8_t>(1u << pick(3));
  s.window = 4u << pick(4);
  s.exchange_limit_bytes = pick(2) != 0 ? 0 : 64 * 1024;
  s.calls = static_cast<unsigned>(5 + pick(20));
  const double losses[] = {0, 0.001, 0.01, 0.05, 0.1};
  s.loss = losses[pick(5)];
  s.duplication = pick(2) != 0 ? 0.02 : 0;
  s.reordering = pick(2) != 0 ? 0.1 : 0;
  s.wan_delay = (1 + pick(20)) * core::kMillisecond;
  s.restarts = max_restarts == 0 ? 0 : static_cast<unsigned>(pick(max_restarts + 1));
  return s;
}

std::string Scenario::describe() const {
  std::ostringstream out;
  out << "seed " << seed << ": workers";
  for (const unsigned workers : workers_of_site) out << ' ' << workers;
  out << ", lanes " << unsigned{lanes} << ", window " << window << ", calls " << calls << ", loss " << loss
      << ", duplication " << duplication << ", reordering " << reordering << ", wan " << wan_delay / core::kMillisecond
      << " ms, restarts " << restarts << ", exchange limit " << exchange_limit_bytes;
  return out.str();
}

World::World(const Scenario& scenario) : scenario_(scenario), random_(scenario.seed ^ 0x5eed) {
  const unsigned site_count = static_cast<unsigned>(scenario_.workers_of_site.size());
  for (unsigned s = 0; s < site_count; ++s) {
    auto site = std::make_unique<Site>();
    site->id = static_cast<uint16_t>(s + 1);
    site->position = s;
    Site* raw = site.get();
    site->output.sink = [this, raw](const core::Datagram& d, std::vector<uint8_t> bytes) {
      const uint32_t node = raw->neighbour_nodes[d.neighbour];
      transmit(node, d.lane, std::move(bytes), d.neighbour < sites_.size() ? scenario_.wan_delay : scenario_.lan_delay);
    };
    sites_.push_back(std::move(site));
    for (unsigned w = 0; w < scenario_.workers_of_site[s]; ++w) {
      auto worker = std::make_unique<Worker>();
      worker->world = this;
      worker->rank = size_++;
      worker->site = s;
      Worker* to = worker.get();
      worker->output.sink = [this, to](const core::Datagram& d, std::vector<uint8_t> bytes) {
        transmit(to->site, d.lane, std::move(bytes), scenario_.lan_delay);
      };
      workers_.push_back(std::move(worker));
    }
  }
  const uint32_t base = static_cast<uint32_t>(random_());
  for (uint8_t lane = 0; lane < scenario_.lanes; ++lane)
    start_.push_back(
        (base + static_cast<uint32_t>(random_() % 100) * scenario_.lanes) / scenario_.lanes * scenario_.lanes + lane);
  const uint8_t kinds[] = {GG_ALL_REDUCE, GG_ALL_REDUCE, GG_ALL_REDUCE, GG_REDUCE_SCATTER,
                           GG_ALL_GATHER, GG_BROADCAST,  GG_REDUCE,     GG_BARRIER};
  for (unsigned c = 0; c < scenario_.calls; ++c) {
    Call call{};
    call.kind = kinds[random_() % 8];
    const bool sums = call.kind == GG_ALL_REDUCE || call.kind == GG_REDUCE || call.kind == GG_REDUCE_SCATTER;
    call.op = sums ? (random_() % 2 != 0 ? GG_SUM : GG_AVERAGE) : GG_OP_NONE;
    call.root = static_cast<uint16_t>(call.kind == GG_BROADCAST || call.kind == GG_REDUCE ? random_() % size_ : 0);
    const uint32_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 8192};
    call.elements = call.kind == GG_BARRIER ? 0 : sizes[random_() % 8];
    if (call.kind == GG_REDUCE_SCATTER || call.kind == GG_ALL_GATHER) call.elements = call.elements / size_ * size_;
    calls_.push_back(call);
  }
}

World::~World() = default;

void World::fail(const std::string& text) {
  if (outcome_.violation.empty()) outcome_.violation = text;
}

std::vector<float> World::input_of(unsigned call, unsigned rank, uint32_t elements) const {
  std::vector<float> values(elements);
  for (uint32_t i = 0; i < elements; ++i) {
    const uint64_t bits = mix(scenario_.seed + call, rank, i);
    // Of very different magnitudes, so that another order of summing gives other bits.
    values[i] = static_cast<float>(static_cast<double>(static_cast<int64_t>(bits >> 20)) / (1u << (bits % 24)));
    if (bits & 0x80000) values[i] = -values[i];
  }
  return values;
}

/// Rank order inside a site, site order across: DESIGN section 5, rules 2 and 3.
void World::check_result(const Worker& worker, unsigned c) {
  const Call& call = calls_[c];
  const core::Operation& operation = worker.operations[c];
  ++outcome_.results;
  if (operation.results != 0 || operation.contributions != 0) fail("done with chunks outstanding");
  std::vector<float> expected(call.elements);
  std::vector<std::vector<float>> inputs;
  const bool gather = call.kind == GG_ALL_GATHER;
  for (unsigned rank = 0; rank < size_; ++rank)
    inputs.push_back(input_of(c, rank, gather ? call.elements / size_ : call.elements));
  for (uint32_t i = 0; i < call.elements; ++i) {
    if (gather) {
      const uint32_t shard = call.elements / size_;
      expected[i] = inputs[i / shard][i % shard];
    } else if (call.kind == GG_BROADCAST) {
      expected[i] = inputs[call.root][i];
    } else {
      float total = 0;
      unsigned rank = 0;
      for (unsigned s = 0; s < sites_.size(); ++s) {
        float partial = 0;
        for (unsigned w = 0; w < scenario_.workers_of_site[s]; ++w, ++rank)
          partial = w == 0 ? inputs[rank][i] : partial + inputs[rank][i];
        total = s == 0 ? partial : total + partial;
      }
      expected[i] = call.op == GG_AVERAGE ? total / static_cast<float>(size_) : total;
    }
  }
  const std::vector<float>& got = worker.outputs[c].empty() ? worker.buffers[c] : worker.outputs[c];
  uint32_t first = 0, count = call.elements;
  if (call.kind == GG_REDUCE && worker.rank != call.root) count = 0;
  if (call.kind == GG_REDUCE_SCATTER) {
    count = call.elements / size_;
    first = worker.rank * count;
  }
  if (count > 0 && std::memcmp(got.data(), expected.data() + first, count * sizeof(float)) != 0) {
    uint32_t i = 0;
    while (std::memcmp(&got[i], &expected[first + i], 4) == 0) ++i;
    std::ostringstream out;
    out << "rank " << worker.rank << ", call " << c << " (kind " << unsigned{call.kind} << "), element " << i << ": "
        << got[i] << " instead of " << expected[first + i];
    fail(out.str());
  }
}

void World::transmit(uint32_t destination, uint8_t lane, std::vector<uint8_t> bytes, Nanoseconds delay) {
  ++outcome_.packets;
  const auto chance = [&](double p) { return p > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < p; };
  const auto put = [&](Nanoseconds extra, std::vector<uint8_t> copy) {
    const uint64_t epoch = destination < sites_.size() ? sites_[destination]->epoch : 0;
    packets_.push({now_ + delay + extra + random_() % (2 * core::kMicrosecond), order_++, destination, lane, epoch,
                   std::move(copy)});
  };
  if (chance(scenario_.loss)) {
    ++outcome_.lost;
    return;
  }
  if (chance(scenario_.duplication)) {
    ++outcome_.duplicated;
    put(random_() % delay, bytes);
  }
  Nanoseconds extra = 0;
  if (chance(scenario_.reordering)) {
    ++outcome_.reordered;
    extra = random_() % delay;
  }
  put(extra, std::move(bytes));
}

void World::deliver(const Packet& packet) {
  core::Arrival arrival;
  std::vector<uint8_t> bytes = packet.bytes;
  gg_link_get(bytes.data(), &arrival.link);
  arrival.packet = bytes.data();
  arrival.length = static_cast<uint32_t>(bytes.size());
  if (packet.destination >= sites_.size()) {
    workers_[packet.destination - sites_.size()]->member->receive(arrival, now_);
    return;
  }
  Site& site = *sites_[packet.destination];
  if (!site.up || site.epoch != packet.epoch) return;
  Pool::Item* item = site.pool.allocate(std::move(bytes));
  arrival.packet = item->bytes.data();
  arrival.buffer = item;
  site.lanes[packet.lane]->receive(arrival, now_);
  site.pool.release(item);
}

void World::publish(unsigned s) {
  Site& site = *sites_[s];
  auto snapshot = std::make_shared<core::Snapshot>();
  snapshot->generation = ++site.generation;
  snapshot->site = site.id;
  snapshot->neighbours = site.neighbours;
  core::GroupEntry entry;
  entry.group = site.group;
  for (const auto& other : sites_)
    entry.site_labels.push_back(site.neighbours[other->position] == nullptr ? 0 : gg_label(other->id, 1));
  snapshot->groups.resize(2);
  snapshot->groups[1] = entry;
  for (auto& lane : site.lanes) lane->apply(snapshot, now_);
}

std::vector<uint32_t> World::highest_low() const {
  std::vector<uint32_t> low = start_;
  for (uint8_t lane = 0; lane < scenario_.lanes; ++lane) {
    for (const auto& worker : workers_)
      if (worker->member != nullptr) low[lane] = core::serial_max(low[lane], worker->member->low()[lane]);
    for (const auto& site : sites_)
      if (site->up) low[lane] = core::serial_max(low[lane], site->group->lanes[lane]->low());
  }
  return low;
}

/// Control's part in small: link ids, labels, snapshots; `recovered`: after a crash.
void World::start_sites(const std::vector<unsigned>& starting, bool recovered) {
  const auto is_starting = [&](unsigned s) { return std::find(starting.begin(), starting.end(), s) != starting.end(); };
  const unsigned site_count = static_cast<unsigned>(sites_.size());
  // Link ids between every pair with a starting end: index of the neighbour in the low bits, a new epoch above.
  const auto link_id = [&](uint32_t index) { return static_cast<uint32_t>(random_()) << 16 | index; };
  for (const unsigned s : starting) {
    Site& site = *sites_[s];
    site.neighbours.assign(site_count, nullptr);
    site.neighbour_nodes.resize(site_count);
    for (unsigned p = 0; p < site_count; ++p) site.neighbour_nodes[p] = p;
  }
  const auto peer_link = [&](unsigned from, unsigned to, uint32_t local, uint32_t remote) {
    Site& site = *sites_[from];
    core::LinkConfig link;
    link.neighbour = to;
    link.remote_link = remote;
    link.link_label = gg_label(sites_[to]->id, 0);
    link.trailer_crc = true;
    link.chunk_bytes = scenario_.chunk_bytes;
    link.initial_rtt_ns = 2 * scenario_.wan_delay;
    link.peer = true;
    auto neighbour = std::make_shared<core::Neighbour>(link, scenario_.lanes);
    neighbour->peer = true;
    neighbour->site = sites_[to]->id;
    neighbour->local_link = local;
    site.rates.push_back(std::make_shared<core::FixedRate>(1'000'000'000));
    neighbour->budget = std::make_shared<core::PeerBudget>(*site.rates.back(), scenario_.lanes, core::kMillisecond);
    site.neighbours[to] = neighbour;
  };
  for (unsigned a = 0; a < site_count; ++a)
    for (unsigned b = a + 1; b < site_count; ++b) {
      if (!is_starting(a) && !is_starting(b)) continue;
      const uint32_t in_a = link_id(b), in_b = link_id(a);
      peer_link(a, b, in_a, in_b);
      peer_link(b, a, in_b, in_a);
    }
  // Peers adopt the new epoch before their low is read: afterwards nothing of the old one can raise it.
  for (unsigned s = 0; s < site_count; ++s)
    if (!is_starting(s)) publish(s);
  const std::vector<uint32_t> low = highest_low();

  for (const unsigned s : starting) {
    Site& site = *sites_[s];
    core::GroupConfig config;
    config.name = "sim/group";
    config.context = 1;
    config.size = static_cast<uint16_t>(size_);
    config.chunk_bytes = scenario_.chunk_bytes;
    config.lanes = scenario_.lanes;
    config.window = scenario_.window;
    config.exchange_limit_bytes = scenario_.exchange_limit_bytes;
    config.start = start_;
    for (const auto& other : sites_)
      config.sites.push_back(
          {other->id, other->position == s ? core::kNoNeighbour : other->position, 1u + other->position % 2});
    for (const auto& worker : workers_) config.site_of_rank.push_back(sites_[worker->site]->id);
    std::vector<Worker*> local;
    for (const auto& worker : workers_)
      if (worker->site == s) local.push_back(worker.get());
    for (Worker* worker : local) {
      const uint32_t index = static_cast<uint32_t>(site.neighbours.size());
      core::LinkConfig link;
      link.neighbour = index;
      worker->local_link = static_cast<uint32_t>(random_());
      link.remote_link = worker->local_link;
      link.link_label = gg_label(site.id, 7);
      link.chunk_bytes = scenario_.chunk_bytes;
      auto neighbour = std::make_shared<core::Neighbour>(link, scenario_.lanes);
      neighbour->local_link = link_id(index);
      site.neighbours.push_back(neighbour);
      site.neighbour_nodes.push_back(static_cast<uint32_t>(sites_.size() + worker->rank));
      config.members.push_back({static_cast<uint16_t>(worker->rank), index, gg_label(site.id, 7)});
    }
    site.group = std::make_shared<core::Group>(config, site.id, low);
    site.lanes.clear();
    for (uint8_t lane = 0; lane < scenario_.lanes; ++lane)
      site.lanes.push_back(std::make_unique<core::GatewayLane>(lane, site.id, site.pool, site.output, site.events));
    site.up = true;
    site.waiting = false;
    publish(s);
    for (size_t i = 0; i < local.size(); ++i) {
      Worker* worker = local[i];
      const uint32_t remote = site.neighbours[site_count + i]->local_link;
      if (!recovered) {
        core::MemberConfig member;
        member.rank = static_cast<uint16_t>(worker->rank);
        member.size = static_cast<uint16_t>(size_);
        member.chunk_bytes = scenario_.chunk_bytes;
        member.lanes = scenario_.lanes;
        member.window = scenario_.window;
        member.start = start_;
        member.group_label = gg_label(site.id, 1);
        member.own_label = gg_label(site.id, 7);
        member.local_link = worker->local_link;
        member.link.remote_link = remote;
        member.link.link_label = gg_label(site.id, 0);
        member.link.trailer_crc = true;
        member.link.max_in_flight = 64;
        worker->member = std::make_unique<core::Member>(member, worker->output, *worker, now_);
      } else {
        // Workers find their way back at different times.
        const uint32_t local_link = worker->local_link;
        actions_.push_back({now_ + random_() % (50 * core::kMillisecond), [this, worker, remote, local_link, s] {
                              if (!sites_[s]->up || worker->local_link != local_link) return;
                              worker->member->gateway_restarted(remote, local_link, gg_label(sites_[s]->id, 1),
                                                                gg_label(sites_[s]->id, 7), now_);
                            }});
      }
    }
  }
}

void World::crash(unsigned s) {
  Site& site = *sites_[s];
  if (!site.up || finished()) return;
  ++outcome_.restarts;
  site.up = false;
  ++site.epoch;
  // The process is gone with its memory; the pool's count is checked on sites that live.
  auto nothing = std::make_shared<core::Snapshot>();
  for (auto& lane : site.lanes) lane->apply(nothing, now_);
  if (site.pool.live() != 0) fail("buffers left after every group was detached");
  site.lanes.clear();
  site.group.reset();
  site.neighbours.clear();
  actions_.push_back({now_ + random_() % (300 * core::kMillisecond), [this, s] { come_back(s); }});
}

void World::come_back(unsigned s) {
  sites_[s]->waiting = true;
  // A returning gateway needs every peer's answer; a peer that is down answers when it is back (rule 7).
  std::vector<unsigned> starting;
  for (const auto& site : sites_) {
    if (!site->up && !site->waiting) return;
    if (site->waiting) starting.push_back(site->position);
  }
  start_sites(starting, true);
}

void World::submit_calls(Worker& worker) {
  // A few calls in flight, as DDP's buckets are.
  while (worker.submitted < calls_.size() && worker.submitted < worker.done + 4) {
    const unsigned c = worker.submitted++;
    const Call& call = calls_[c];
    core::Operation& operation = worker.operations[c];
    const bool gather = call.kind == GG_ALL_GATHER;
    const bool scatter = call.kind == GG_REDUCE_SCATTER;
    worker.buffers[c] = input_of(c, worker.rank, gather ? call.elements / size_ : call.elements);
    if (call.kind == GG_BROADCAST && worker.rank != call.root) worker.buffers[c].assign(call.elements, -1);
    if (gather) worker.outputs[c].assign(call.elements, -1);
    if (scatter) worker.outputs[c].assign(call.elements / size_, -1);
    operation.kind = call.kind;
    operation.dtype = call.kind == GG_BARRIER ? GG_BYTES : GG_FLOAT32;
    operation.op = call.op;
    operation.root = call.root;
    operation.elements = call.elements;
    operation.input = reinterpret_cast<const uint8_t*>(worker.buffers[c].data());
    // In place wherever the kind allows: results overwrite what was contributed.
    operation.output = gather || scatter ? reinterpret_cast<uint8_t*>(worker.outputs[c].data())
                                         : reinterpret_cast<uint8_t*>(worker.buffers[c].data());
    worker.member->submit(operation, now_);
  }
}

bool World::finished() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const auto& w) { return w->done == calls_.size() && w->member->drained(); });
}

void World::poll_node(uint32_t node) {
  if (node >= sites_.size()) {
    Worker& worker = *workers_[node - sites_.size()];
    submit_calls(worker);
    worker.member->poll(now_);
    return;
  }
  if (sites_[node]->up)
    for (auto& lane : sites_[node]->lanes) lane->poll(now_);
}

Nanoseconds World::node_deadline(uint32_t node) const {
  if (node >= sites_.size()) return workers_[node - sites_.size()]->member->next_deadline();
  Nanoseconds earliest = core::kNever;
  if (sites_[node]->up)
    for (const auto& lane : sites_[node]->lanes) earliest = std::min(earliest, lane->next_deadline());
  return earliest;
}

void World::check_books() {
  for (const auto& site : sites_)
    for (const auto& lane : site->lanes) {
      const core::LaneCounters& c = lane->counters();
      uint64_t packets = c.packets_parsed.get();
      uint64_t frames = c.frames_kept.get() + c.frames_duplicate.get() + c.frames_past.get();
      for (const auto& drop : c.packet_drops) packets += drop.get();
      for (const auto& drop : c.frame_drops) frames += drop.get();
      if (packets != c.packets_received.get()) fail("packets received are not parsed + dropped");
      if (frames != c.frames_received.get()) fail("frames received are not kept + duplicate + past + dropped");
    }
}

Outcome World::run() {
  std::vector<unsigned> all;
  for (unsigned s = 0; s < sites_.size(); ++s) all.push_back(s);
  for (auto& worker : workers_) {
    worker->operations.resize(calls_.size());
    worker->buffers.resize(calls_.size());
    worker->outputs.resize(calls_.size());
  }
  start_sites(all, false);
  for (unsigned r = 0; r < scenario_.restarts; ++r) {
    const unsigned victim = static_cast<unsigned>(random_() % sites_.size());
    actions_.push_back({now_ + random_() % (400 * core::kMillisecond), [this, victim] { crash(victim); }});
  }
  const Nanoseconds end = now_ + kDeadline;
  const uint32_t nodes = static_cast<uint32_t>(sites_.size() + workers_.size());
  while (outcome_.violation.empty() && !finished()) {
    Nanoseconds next = core::kNever;
    for (uint32_t node = 0; node < nodes; ++node) {
      poll_node(node);
      next = std::min(next, node_deadline(node));
    }
    if (!packets_.empty()) next = std::min(next, packets_.top().time);
    for (const Action& action : actions_) next = std::min(next, action.time);
    if (next == core::kNever) {
      fail("nothing will ever happen again");
      break;
    }
    now_ = std::max(now_ + 1, next);
    if (now_ > end) {
      std::ostringstream out;
      out << "no end within " << kDeadline / core::kSecond << " s:";
      for (const auto& worker : workers_)
        out << " rank " << worker->rank << " did " << worker->done << " of " << calls_.size();
      fail(out.str());
      break;
    }
    ++outcome_.events;
    while (!packets_.empty() && packets_.top().time <= now_) {
      const Packet packet = packets_.top();
      packets_.pop();
      deliver(packet);
    }
    for (size_t i = 0; i < actions_.size();) {
      if (actions_[i].time > now_) {
        ++i;
        continue;
      }
      const auto run = std::move(actions_[i].run);
      actions_.erase(actions_.begin() + static_cast<std::ptrdiff_t>(i));
      run();
    }
  }
  for (const auto& site : sites_)
    for (const core::Event& event : site->events.seen)
      if (event.type == core::Event::Type::kMismatch) fail("a mismatch where all call alike");
  check_books();
  if (outcome_.violation.empty()) {
    auto nothing = std::make_shared<core::Snapshot>();
    for (const auto& site : sites_) {
      for (auto& lane : site->lanes) lane->apply(nothing, now_);
      if (site->pool.live() != 0) fail("buffers left after every group was detached");
    }
  }
  return outcome_;
}

}  // namespace gradgate::sim
