// SPDX-License-Identifier: Apache-2.0
#include "dataplane/dataplane.h"

#include <fmt/format.h>
#include <rte_eal.h>
#include <rte_launch.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "dataplane/eal.h"
#include "dataplane/join.h"
#include "dataplane/kernel_hello.h"
#include "dataplane/lcore.h"
#include "dataplane/memory.h"
#include "dataplane/ports.h"
#include "dataplane/preflight.h"
#include "dataplane/start.h"

namespace gradgate::dataplane {

namespace {

/// A peer that has not answered yet is greeted so often (kernel_hello.h).
constexpr std::chrono::milliseconds kHelloInterval{200};

int run_lcore(void* lcore) {
  static_cast<Lcore*>(lcore)->run();
  return 0;
}

class EalScope {
 public:
  EalScope(const config::Site& site, const MemoryPlan& memory, const StartOptions& options) {
    eal_init(eal_arguments(site, memory, allowed_cpus(), options), options.debug);
  }
  ~EalScope() { rte_eal_cleanup(); }
  EalScope(const EalScope&) = delete;
};

/// Locks the interfaces and takes our stale programs off them.
std::vector<InterfaceLock> take_interfaces(const config::Site& site, const std::vector<std::string>& preflight_faults) {
  std::vector<InterfaceLock> locks;
  std::vector<std::string> faults = preflight_faults;
  for (const config::Port& port : site.ports) {
    if (port.device.kind != config::PortDevice::Kind::kInterface) continue;
    std::string error = locks.emplace_back().acquire(port.device.text);
    if (!error.empty()) faults.push_back(fmt::format("port {}: {}", port.name, error));
  }
  if (!faults.empty()) throw StartError(faults);
  for (const config::Port& port : site.ports) {
    AttachedXdp attached;
    if (port.device.kind != config::PortDevice::Kind::kInterface || !inspect(port.device.text, attached).empty() ||
        attached.owner != XdpOwner::kOurs)
      continue;
    if (const std::string error = remove_stale(port.device.text); !error.empty())
      throw StartError(fmt::format("port {}: {}", port.name, error));
    spdlog::info("port {}: removed the XDP program that an earlier gradgate left on {}", port.name, port.device.text);
  }
  return locks;
}

class DpdkDataplane final : public Dataplane {
 public:
  DpdkDataplane(const config::Site& site, const MemoryPlan& memory, const StartOptions& options)
      : site_(site), locks_(take_interfaces(site, preflight(site, memory))), eal_(site, memory, options) {
    for (uint16_t i = 0; i < site.ports.size(); ++i) {
      ports_.push_back(std::make_unique<Port>(site, i));
      ports_.back()->start();
    }
    for (const auto& port : ports_) macs_.push_back(port->own.mac);
    for (unsigned k = 0; k < worker_count(site.dataplane); ++k)
      fabric_.lcores.push_back(std::make_unique<Lcore>(fabric_, k));
    for (unsigned k = 0; k < fabric_.lcores.size(); ++k) {
      const int error = rte_eal_remote_launch(run_lcore, fabric_.lcores[k].get(), worker_lcore(k));
      if (error != 0) {
        stop_lcores();
        throw StartError(fmt::format("cannot start lcore {}: {}", worker_lcore(k), rte_strerror(-error)));
      }
    }
    greeter_ = std::jthread([this](const std::stop_token& stop) { greet(stop); });
  }

  ~DpdkDataplane() override {
    greeter_.request_stop();
    if (greeter_.joinable()) greeter_.join();
    stop_lcores();
  }

  void publish(std::shared_ptr<const Snapshot> snapshot) override {
    {
      const std::lock_guard lock(mutex_);
      published_.push_back(publish_routes(site_, macs_, std::move(snapshot)));
      fabric_.newest.store(published_.back().get(), std::memory_order_release);
      const uint64_t adopted = adopted_generation();
      while (published_.size() > 1 && published_.front()->snapshot->core->generation < adopted) published_.pop_front();
    }
    for (const auto& lcore : fabric_.lcores) lcore->wake();
    changed_.notify_all();
  }

  uint64_t adopted_generation() const override {
    uint64_t least = ~uint64_t{0};
    for (const auto& lcore : fabric_.lcores) least = std::min(least, lcore->adopted_generation());
    return least;
  }

  bool pop_event(core::Event& event) override {
    return std::any_of(fabric_.lcores.begin(), fabric_.lcores.end(),
                       [&](const auto& lcore) { return lcore->pop_event(event); });
  }

  std::vector<const core::LaneCounters*> lane_counters() const override {
    std::vector<const core::LaneCounters*> out;
    for (unsigned lane = 0; lane < site_.dataplane.lanes; ++lane) {
      const unsigned lcores = static_cast<unsigned>(fabric_.lcores.size());
      out.push_back(&std::as_const(*fabric_.lcores[lane % lcores]->lanes()[lane / lcores]).counters());
    }
    return out;
  }

  std::vector<PortStatus> ports() const override {
    std::vector<PortStatus> out;
    for (const auto& port : ports_) {
      PortStatus status = port->status();
      for (const auto& lcore : fabric_.lcores) {
        status.answered += lcore->answered(port->index);
        for (unsigned reason = 0; reason < GG_DROP_COUNT; ++reason)
          status.drops[reason] += lcore->drops(port->index, reason);
      }
      out.push_back(std::move(status));
    }
    return out;
  }

  std::vector<LcoreStatus> lcores() const override {
    std::vector<LcoreStatus> out;
    for (const auto& lcore : fabric_.lcores) out.push_back(lcore->status());
    return out;
  }

  uint64_t admissible_buffers() const override {
    uint64_t least = ~uint64_t{0};
    for (const auto& port : ports_) {
      const uint64_t used = port->ring_buffers + port->reserve;
      least = std::min<uint64_t>(least, port->buffers > used ? port->buffers - used : 0);
    }
    return least;
  }

  uint64_t buffer_bytes() const override {
    uint64_t most = 0;
    for (const auto& port : ports_) most = std::max<uint64_t>(most, port->buffer_bytes);
    return most;
  }

  uint64_t now_ns() const override { return clock_ns(); }

 private:
  void stop_lcores() {
    fabric_.stopping = true;
    for (const auto& lcore : fabric_.lcores) lcore->wake();
    rte_eal_mp_wait_lcore();
  }

  /// Own thread: greets peers on kernel interfaces that have not answered us yet.
  void greet(const std::stop_token& stop) {
    KernelHello hello;
    std::string last_error;
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      // The snapshot, not the Published: it stays ours while publish() clears up.
      const auto snapshot = published_.empty() ? nullptr : published_.back()->snapshot;
      const std::vector<Route> routes = published_.empty() ? std::vector<Route>() : published_.back()->routes;
      lock.unlock();
      for (size_t i = 0; i < routes.size(); ++i) {
        const Route& route = routes[i];
        if (!route.in_use || !route.peer || route.mac_tag == 0 || !ports_[route.port]->has_kernel) continue;
        // Not the RTT: a side that only acknowledges never has one.
        Mac known;
        if (fabric_.macs.find(static_cast<uint32_t>(i), route.mac_tag, known.data())) continue;
        const std::string error = hello.send(ports_[route.port]->config.device.text, route.path,
                                             hello_packet(snapshot->core->neighbours[i]->lanes[0]->config()));
        if (!error.empty() && error != last_error) spdlog::warn("{}", error);
        last_error = error;
      }
      lock.lock();
      changed_.wait_for(lock, stop, kHelloInterval, [] { return false; });
    }
  }

  const config::Site& site_;
  std::vector<InterfaceLock> locks_;
  EalScope eal_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<Mac> macs_;
  Fabric fabric_{site_, ports_, {}, {}, {}, {}};

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::unique_ptr<const Published>> published_;
  std::jthread greeter_;
};

}  // namespace

StartError::StartError(std::vector<std::string> fault_lines)
    : std::runtime_error(fmt::format("{}", join(fault_lines, "\n"))), faults_(std::move(fault_lines)) {}

std::unique_ptr<Dataplane> start(const config::Site& site, const StartOptions& options) {
  return std::make_unique<DpdkDataplane>(site, plan_memory(site, free_hugepage_bytes()), options);
}

}  // namespace gradgate::dataplane
