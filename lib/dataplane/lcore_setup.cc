// SPDX-License-Identifier: Apache-2.0
// What an lcore does seldom: being made, sleeping, ending, being asked.
#include <fmt/format.h>
#include <poll.h>
#include <rte_errno.h>
#include <rte_ring_elem.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dataplane/eal.h"
#include "dataplane/lcore.h"

namespace gradgate::dataplane {

namespace {

constexpr core::Nanoseconds kLongestSleep = 10 * core::kMillisecond;
/// Where a port has nothing to sleep on. Measured: 14 % of a CPU (facts, prototypes 5).
constexpr core::Nanoseconds kNap = 50 * core::kMicrosecond;

static_assert(sizeof(core::Event) % 4 == 0, "rte_ring's elements are whole words");

rte_ring* make_ring(const std::string& name, uint32_t element_bytes, uint32_t count) {
  rte_ring* ring =
      rte_ring_create_elem(name.c_str(), element_bytes, count, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
  if (ring == nullptr) throw StartError(fmt::format("cannot allocate the ring {}: {}", name, rte_strerror(rte_errno)));
  return ring;
}

}  // namespace

Lcore::Lcore(Fabric& fabric, unsigned number)
    : fabric_(fabric),
      number_(number),
      lcore_count_(worker_count(fabric.site.dataplane)),
      base_port_(fabric.site.dataplane.udp_port),
      lane_count_(fabric.site.dataplane.lanes),
      drops_(fabric.ports.size()),
      answered_(fabric.ports.size()),
      transmitter_(fabric.ports, fabric.macs, drops_) {
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) throw StartError(fmt::format("cannot create an eventfd: {}", std::strerror(errno)));
  for (const auto& port : fabric.ports) {
    pool_.watch(port->pool, port->reserve);
    if (port->index % lcore_count_ != number_) continue;
    rx_ports_.push_back(port.get());
    all_ports_wake_ &= port->wait_fd >= 0;
  }
  for (unsigned from = 0; from < lcore_count_; ++from)
    inbound_.push_back(
        from == number_ ? nullptr : make_ring(fmt::format("lanes{}to{}", from, number_), sizeof(void*), kRingSize));
  events_ = make_ring(fmt::format("events{}", number_), sizeof(core::Event), kEventRingSize);
  for (unsigned lane = number_; lane < lane_count_; lane += lcore_count_)
    lanes_.push_back(
        std::make_unique<core::GatewayLane>(static_cast<uint8_t>(lane), fabric.site.id, pool_, transmitter_, *this));
}

Lcore::~Lcore() {
  for (rte_ring* ring : inbound_) {
    void* packet = nullptr;
    while (ring != nullptr && rte_ring_sc_dequeue(ring, &packet) == 0) rte_pktmbuf_free(static_cast<rte_mbuf*>(packet));
    rte_ring_free(ring);
  }
  rte_ring_free(events_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Lcore::release_all() {
  const auto nothing = std::make_shared<core::Snapshot>();
  for (const auto& lane : lanes_) lane->apply(nothing, now_);
  transmitter_.reap();
}

void Lcore::sleep() {
  empty_polls_ = 0;
  transmitter_.reap();
  if (!transmitter_.idle()) return;
  core::Nanoseconds wait = all_ports_wake_ ? kLongestSleep : kNap;
  for (const auto& lane : lanes_) {
    const core::Nanoseconds deadline = lane->next_deadline();
    if (deadline <= now_) return;
    wait = std::min(wait, deadline - now_);
  }
  std::array<pollfd, RTE_MAX_ETHPORTS + 1> fds;
  nfds_t count = 0;
  fds[count++] = {wake_fd_, POLLIN, 0};
  for (const Port* port : rx_ports_)
    if (port->wait_fd >= 0) fds[count++] = {port->wait_fd, POLLIN, 0};

  sleeping_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see hand_over()
  const bool packets = std::any_of(inbound_.begin(), inbound_.end(),
                                   [](const rte_ring* ring) { return ring != nullptr && rte_ring_empty(ring) == 0; });
  if (!packets && !fabric_.stopping.load(std::memory_order_relaxed)) {
    // The default slack of 50 us would make a nap of 50 us one of 100 (prctl(2)).
    static thread_local const int slack = ::prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    static_cast<void>(slack);
    const timespec timeout{0, static_cast<long>(wait)};
    ::ppoll(fds.data(), count, &timeout, nullptr);
    sleeps_.add();
  }
  sleeping_.store(false, std::memory_order_relaxed);
  uint64_t wakes = 0;
  if ((fds[0].revents & POLLIN) != 0) static_cast<void>(::read(wake_fd_, &wakes, sizeof wakes) == 0);
  const core::Nanoseconds time = clock_ns();
  idle_ns_.add(time - now_);
  now_ = time;
}

void Lcore::wake() {
  const uint64_t one = 1;
  // Full means that it is readable, which is all that is wanted.
  static_cast<void>(::write(wake_fd_, &one, sizeof one) == 0);
}

bool Lcore::push(const core::Event& event) {
  return rte_ring_sp_enqueue_elem(events_, const_cast<core::Event*>(&event), sizeof event) == 0;
}

bool Lcore::pop_event(core::Event& event) {
  return rte_ring_sc_dequeue_elem(events_, &event, sizeof event) == 0;
}

LcoreStatus Lcore::status() const {
  LcoreStatus out;
  out.lcore = worker_lcore(number_);
  out.busy_ns = busy_ns_.get();
  out.idle_ns = idle_ns_.get();
  out.polls = polls_.get();
  out.sleeps = sleeps_.get();
  out.heartbeat_ns = heartbeat_ns_.get();
  return out;
}

}  // namespace gradgate::dataplane
