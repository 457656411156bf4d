// SPDX-License-Identifier: Apache-2.0
// A deployment in virtual time: the real lib/core of gateways and workers over a network that loses, repeats and
// reorders, with gateways that crash and return. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "core/gateway_lane.h"
#include "core/group_lane.h"
#include "core/member.h"

namespace gradgate::sim {

using core::Nanoseconds;

/// What one run is made of; drawn from the seed by Scenario::draw.
struct Scenario {
  uint64_t seed = 0;
  std::vector<unsigned> workers_of_site;  ///< one entry a site
  uint8_t lanes = 1;
  uint32_t window = 16;
  uint32_t chunk_bytes = 256;
  uint32_t exchange_limit_bytes = 0;
  unsigned calls = 10;
  double loss = 0, duplication = 0, reordering = 0;
  Nanoseconds lan_delay = 50 * core::kMicrosecond, wan_delay = 5 * core::kMillisecond;
  unsigned restarts = 0;

  static Scenario draw(uint64_t seed, unsigned max_restarts);
  std::string describe() const;
};

struct Outcome {
  std::string violation;  ///< empty: none
  uint64_t events = 0, packets = 0, lost = 0, duplicated = 0, reordered = 0, restarts = 0, results = 0;
};

/// Packet memory that is counted, so that leaks and use after release show (the latter under ASan).
class Pool final : public core::BufferPool {
 public:
  struct Item {
    std::vector<uint8_t> bytes;
    unsigned references = 1;
  };
  Item* allocate(std::vector<uint8_t> bytes) {
    ++live_;
    return new Item{std::move(bytes), 1};
  }
  void retain(core::Buffer buffer) override { ++static_cast<Item*>(buffer)->references; }
  void release(core::Buffer buffer) override {
    Item* item = static_cast<Item*>(buffer);
    if (--item->references > 0) return;
    delete item;
    --live_;
  }
  bool below_reserve() const override { return false; }
  uint64_t live() const { return live_; }

 private:
  uint64_t live_ = 0;
};

class World {
 public:
  explicit World(const Scenario& scenario);
  ~World();
  Outcome run();

 private:
  struct Site;
  struct Worker;
  struct Packet {
    Nanoseconds time;
    uint64_t order;
    uint32_t destination;  ///< node
    uint8_t lane;
    uint64_t epoch;  ///< of the destination: a crash loses what is under way to the process
    std::vector<uint8_t> bytes;
  };
  struct Later {
    bool operator()(const Packet& a, const Packet& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  struct Action {
    Nanoseconds time;
    std::function<void()> run;
  };

  void deliver(const Packet& packet);
  void transmit(uint32_t destination, uint8_t lane, std::vector<uint8_t> bytes, Nanoseconds delay);
  void submit_calls(Worker& worker);
  void poll_node(uint32_t node);
  Nanoseconds node_deadline(uint32_t node) const;
  void crash(unsigned site);
  void come_back(unsigned site);
  void start_sites(const std::vector<unsigned>& sites, bool recovered);
  void publish(unsigned site);
  std::vector<uint32_t> highest_low() const;
  void check_result(const Worker& worker, unsigned call);
  void check_books();
  void fail(const std::string& text);
  std::vector<float> input_of(unsigned call, unsigned rank, uint32_t elements) const;
  bool finished() const;

  Scenario scenario_;
  Outcome outcome_;
  std::mt19937_64 random_;
  Nanoseconds now_ = core::kSecond;
  uint64_t order_ = 0;
  unsigned size_ = 0;
  std::vector<std::unique_ptr<Site>> sites_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::priority_queue<Packet, std::vector<Packet>, Later> packets_;
  std::vector<Action> actions_;
  std::vector<uint32_t> start_;

  struct Call {
    uint8_t kind;
    uint16_t op;
    uint16_t root;
    uint32_t elements;
  };
  std::vector<Call> calls_;
};

}  // namespace gradgate::sim
