// SPDX-License-Identifier: Apache-2.0
// One worker of the data plane: the loop of DESIGN section 7. An lcore owns whole lanes (lane mod lcores) and the
// receive queues of whole ports (port mod lcores).
#pragma once

#include <rte_mbuf.h>
#include <rte_ring.h>

#include <atomic>
#include <memory>
#include <vector>

#include "core/gateway_lane.h"
#include "dataplane/pool.h"
#include "dataplane/ports.h"
#include "dataplane/routes.h"
#include "dataplane/tx.h"

namespace gradgate::dataplane {

class Lcore;

/// What all lcores see.
struct Fabric {
  const config::Site& site;
  const std::vector<std::unique_ptr<Port>>& ports;
  MacTable macs;
  std::atomic<const Published*> newest{nullptr};
  std::atomic<bool> stopping{false};
  std::vector<std::unique_ptr<Lcore>> lcores;
};

/// CLOCK_MONOTONIC.
core::Nanoseconds clock_ns();

class Lcore final : public core::EventSink {
 public:
  /// `number` from 0. Throws StartError. All of them are made before one runs.
  Lcore(Fabric& fabric, unsigned number);
  ~Lcore() override;

  /// Until Fabric::stopping; then the lanes let go of groups and buffers.
  void run();

  // ---- other threads
  void wake();
  uint64_t adopted_generation() const { return adopted_.load(std::memory_order_acquire); }
  bool pop_event(core::Event& event);
  const std::vector<std::unique_ptr<core::GatewayLane>>& lanes() const { return lanes_; }
  uint64_t drops(uint16_t port, unsigned reason) const { return drops_[port][reason].get(); }
  uint64_t answered(uint16_t port) const { return answered_[port].get(); }
  LcoreStatus status() const;
  /// By another lcore: a packet of one of our lanes. False: the ring is full.
  bool hand_over(unsigned from, rte_mbuf* packet);

  bool push(const core::Event& event) override;

 private:
  static constexpr uint16_t kBurst = 32;
  static constexpr uint32_t kRingSize = 1024;
  static constexpr uint32_t kEventRingSize = 1024;

  void adopt();
  uint32_t receive(Port& port);
  uint32_t drain_rings();
  void dispatch(Port& port, rte_mbuf* packet);
  void deliver(Port& port, rte_mbuf* packet, const gg_packet& parsed);
  void show_life(core::Link& link, const gg_packet& parsed) const;
  void slow_path(Port& port, rte_mbuf* packet);
  void learn(const Port& port, const Learnt& learnt);
  void resolve();
  void drop(const Port& port, rte_mbuf* packet, int reason);
  void account(bool busy);
  void sleep();
  void release_all();

  Fabric& fabric_;
  const unsigned number_;
  const unsigned lcore_count_;
  const uint16_t base_port_;
  const unsigned lane_count_;
  MbufPool pool_;
  std::vector<PortDrops> drops_;  ///< by port
  std::vector<core::Counter> answered_;
  Transmitter transmitter_;
  std::vector<std::unique_ptr<core::GatewayLane>> lanes_;  ///< lane number_ + k * lcore_count_
  std::vector<Port*> rx_ports_;
  bool all_ports_wake_ = true;      ///< every port of ours has a descriptor to sleep on
  std::vector<rte_ring*> inbound_;  ///< by the lcore that fills it; nullptr: ourselves
  rte_ring* events_ = nullptr;
  const Published* current_ = nullptr;
  std::atomic<uint64_t> adopted_{0};

  core::Nanoseconds now_ = 0;
  core::Nanoseconds next_resolve_ = 0;
  uint32_t empty_polls_ = 0;
  int wake_fd_ = -1;
  std::atomic<bool> sleeping_{false};
  core::Counter busy_ns_, idle_ns_, polls_, sleeps_, heartbeat_ns_;
};

}  // namespace gradgate::dataplane
