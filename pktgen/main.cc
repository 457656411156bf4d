// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <deque>
#include <iostream>

#include "pktgen/emulated_worker.h"

namespace gradgate::pktgen {
namespace {

constexpr int kExitWrong = 1, kExitJoin = 3, kExitFailed = 4;
constexpr core::Nanoseconds kDrainTimeout = 10 * core::kSecond;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void wait_for(std::vector<pollfd>& fds, core::Nanoseconds deadline) {
  const core::Nanoseconds now = client::monotonic_ns();
  const core::Nanoseconds wait = deadline <= now ? 0 : deadline - now;
  const timespec timeout{static_cast<time_t>(wait / core::kSecond), static_cast<long>(wait % core::kSecond)};
  if (ppoll(fds.data(), fds.size(), deadline == core::kNever ? nullptr : &timeout, nullptr) <= 0)
    for (pollfd& fd : fds) fd.revents = 0;
}

class Generator {
 public:
  explicit Generator(const Options& options)
      : options_(options), pattern_(options.seed, options.dtype, options.op, options.size) {
    for (uint32_t g = 0; g < options.groups; ++g) {
      groups_.emplace_back(options, pattern_, g);
      for (uint32_t w = 0; w < options.workers; ++w)
        workers_.emplace_back(options, groups_.back(), options.first_rank + w, totals_);
    }
  }

  /// Joins all ranks of all groups at once: a group forms only when all of them are there.
  void join() {
    client::JoinRequest common;
    client::parse_gateway(options_.gateway, common.gateway_host, common.gateway_port);
    common.tenant = options_.tenant;
    common.token = options_.token;
    common.job = options_.job;
    common.size = static_cast<uint16_t>(options_.size);
    common.address = options_.address.empty()
                         ? client::HttpConnection::connect(common.gateway_host, common.gateway_port,
                                                           client::monotonic_ns() + 10 * core::kSecond, -1)
                               .local_address()
                         : client::resolve_own_address(options_.address);
    const core::Nanoseconds deadline = client::monotonic_ns() + options_.join_timeout_s * core::kSecond;
    std::deque<client::UdpSocket> sockets;
    std::deque<client::JoinTask> tasks;
    for (size_t i = 0; i < workers_.size(); ++i) {
      client::JoinRequest request = common;
      request.group = options_.group + std::to_string(i / options_.workers);
      request.rank = static_cast<uint16_t>(workers_[i].rank());
      sockets.emplace_back(request.address);
      request.udp_port = sockets.back().port();
      tasks.emplace_back(std::move(request), deadline, false);
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      while (!tasks[i].done()) {
        std::vector<pollfd> fd = {{tasks[i].fd(), POLLIN, 0}};
        wait_for(fd, core::kNever);
      }
      client::Joined joined = tasks[i].take();
      workers_[i].start(tasks[i].request(), std::move(sockets[i]), std::move(joined), client::monotonic_ns());
    }
  }

  void run() {
    const core::Nanoseconds start = client::monotonic_ns();
    const double cpu_start = cpu_seconds();
    const core::Nanoseconds end =
        options_.duration_s > 0 ? start + static_cast<core::Nanoseconds>(options_.duration_s * 1e9) : core::kNever;
    const auto finished = [](EmulatedWorker& w) { return w.finished(); };
    serve_until(finished, core::kNever, end);
    totals_.seconds = static_cast<double>(client::monotonic_ns() - start) / 1e9;
    totals_.cpu_seconds = cpu_seconds() - cpu_start;
    for (EmulatedWorker& w : workers_) add_counters(w.worker());
    if (!totals_.failure.empty()) return;

    const auto drained = [](EmulatedWorker& w) { return w.worker().drained(); };
    serve_until(drained, client::monotonic_ns() + kDrainTimeout, end);
    for (EmulatedWorker& w : workers_) {
      try {
        w.worker().leave(client::monotonic_ns() + core::kSecond);
      } catch (const client::ClientError& e) {
        std::cerr << "gradgate-pktgen: rank " << w.rank() << " could not leave: " << e.what() << "\n";
      }
    }
  }

  Totals& totals() { return totals_; }

 private:
  template <typename Condition>
  void serve_until(Condition&& condition, core::Nanoseconds deadline, core::Nanoseconds end) {
    std::vector<pollfd> fds;
    for (;;) {
      bool all = true;
      core::Nanoseconds wake = deadline;
      fds.clear();
      const core::Nanoseconds start = client::monotonic_ns();
      for (EmulatedWorker& w : workers_) {
        w.pump(start, end);
        all = all && condition(w);
        w.worker().add_poll_fds(fds);
        wake = std::min(wake, w.worker().next_deadline());
      }
      if (all || !totals_.failure.empty() || start >= deadline) return;
      wait_for(fds, wake);
      const core::Nanoseconds now = client::monotonic_ns();
      for (size_t i = 0; i < workers_.size(); ++i)
        workers_[i].worker().run(&fds[i * client::Worker::kPollFds], buffers_, now);
    }
  }

  void add_counters(const client::Worker& worker) {
    const core::LaneCounters& c = worker.counters();
    totals_.packets_sent += c.packets_sent.get();
    totals_.packets_received += c.packets_received.get();
    totals_.bytes_sent += worker.bytes_sent();
    totals_.bytes_received += worker.bytes_received();
    totals_.packets_lost += c.packets_lost.get();
    totals_.frames_resent += c.frames_resent.get();
    totals_.packets_dropped += worker.packets_dropped();
    totals_.gateway_restarts += worker.restarts();
  }

  const Options& options_;
  const Pattern pattern_;
  Totals totals_;
  std::deque<EmulatedGroup> groups_;
  std::deque<EmulatedWorker> workers_;
  client::ReceiveBuffers buffers_;
};

int run(const Options& options) {
  Generator generator(options);
  try {
    generator.join();
  } catch (const client::ClientError& e) {
    std::cerr << "gradgate-pktgen: could not join: " << e.what() << "\n";
    return kExitJoin;
  }
  generator.run();
  Totals& totals = generator.totals();
  print_report(options, totals);
  if (!totals.failure.empty()) std::cerr << "gradgate-pktgen: a group failed: " << totals.failure << "\n";
  if (totals.elements_wrong > 0) return kExitWrong;
  return totals.failure.empty() ? 0 : kExitFailed;
}

}  // namespace
}  // namespace gradgate::pktgen

int main(int argc, char** argv) {
  gradgate::pktgen::Options options;
  const int status = gradgate::pktgen::parse_options(argc, argv, options);
  if (status >= 0) return status;
  try {
    return gradgate::pktgen::run(options);
  } catch (const std::exception& e) {
    std::cerr << "gradgate-pktgen: " << e.what() << "\n";
    return gradgate::pktgen::kExitFailed;
  }
}
