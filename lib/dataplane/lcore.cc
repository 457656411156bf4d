// SPDX-License-Identifier: Apache-2.0
#include "dataplane/lcore.h"

#include <rte_ethdev.h>
#include <rte_prefetch.h>

#include <ctime>

#include "wire/gg_parse.h"

namespace gradgate::dataplane {

namespace {

/// Before a lcore goes to sleep: an answer is often on its way.
constexpr uint32_t kEmptyPollsBeforeSleep = 64;
constexpr core::Nanoseconds kResolveInterval = core::kSecond;
constexpr uint16_t kPrefetch = 4;

const uint8_t* frame(const rte_mbuf* packet) {
  return rte_pktmbuf_mtod(packet, const uint8_t*);
}

}  // namespace

core::Nanoseconds clock_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<core::Nanoseconds>(time.tv_sec) * core::kSecond + static_cast<core::Nanoseconds>(time.tv_nsec);
}

void Lcore::run() {
  now_ = clock_ns();
  while (!fabric_.stopping.load(std::memory_order_relaxed)) {
    adopt();
    uint32_t work = drain_rings();
    for (Port* port : rx_ports_) work += receive(*port);
    for (const auto& lane : lanes_) lane->poll(now_);
    resolve();
    work += transmitter_.flush();
    pool_.refresh();
    account(work > 0);
    if (empty_polls_ >= kEmptyPollsBeforeSleep && fabric_.site.dataplane.idle == config::Idle::kSleep) sleep();
  }
  release_all();
}

void Lcore::account(bool busy) {
  const core::Nanoseconds time = clock_ns();
  (busy ? busy_ns_ : idle_ns_).add(time - now_);
  now_ = time;
  heartbeat_ns_.set(now_);
  polls_.add();
  empty_polls_ = busy ? 0 : empty_polls_ + 1;
}

void Lcore::adopt() {
  const Published* newest = fabric_.newest.load(std::memory_order_acquire);
  if (newest == current_) return;
  current_ = newest;
  transmitter_.use(*newest);
  for (const auto& lane : lanes_) lane->apply(newest->snapshot->core, now_);
  adopted_.store(newest->snapshot->core->generation, std::memory_order_release);
}

uint32_t Lcore::receive(Port& port) {
  rte_mbuf* burst[kBurst];
  const uint16_t count = rte_eth_rx_burst(port.id, 0, burst, kBurst);
  for (uint16_t i = 0; i < count && i < kPrefetch; ++i) rte_prefetch0(frame(burst[i]));
  for (uint16_t i = 0; i < count; ++i) {
    if (i + kPrefetch < count) rte_prefetch0(frame(burst[i + kPrefetch]));
    burst[i]->port = port.index;  // from here on a position in Site::ports
    dispatch(port, burst[i]);
  }
  return count;
}

void Lcore::dispatch(Port& port, rte_mbuf* packet) {
  if (unlikely(packet->nb_segs > 1) && rte_pktmbuf_linearize(packet) != 0) return drop(port, packet, GG_DROP_TOO_LARGE);
  gg_packet parsed;
  const int verdict = gg_parse(frame(packet), frame(packet) + packet->data_len, base_port_, &parsed);
  if (unlikely(verdict == GG_PARSE_NOT_OURS)) return slow_path(port, packet);
  if (unlikely(verdict != GG_PARSE_OURS)) return drop(port, packet, verdict);
  if (unlikely(parsed.link.lane >= lane_count_)) return drop(port, packet, GG_DROP_BAD_LANE);
  const unsigned owner = parsed.link.lane % lcore_count_;
  if (owner == number_) return deliver(port, packet, parsed);
  if (unlikely(!fabric_.lcores[owner]->hand_over(number_, packet))) drop(port, packet, GG_DROP_RING_FULL);
}

uint32_t Lcore::drain_rings() {
  uint32_t total = 0;
  for (rte_ring* ring : inbound_) {
    if (ring == nullptr) continue;
    void* burst[kBurst];
    const uint32_t count = rte_ring_sc_dequeue_burst(ring, burst, kBurst, nullptr);
    for (uint32_t i = 0; i < count; ++i) {
      auto* packet = static_cast<rte_mbuf*>(burst[i]);
      gg_packet parsed;
      gg_parse(frame(packet), frame(packet) + packet->data_len, base_port_, &parsed);  // once more: 10 ns, no metadata
      deliver(*fabric_.ports[packet->port], packet, parsed);
    }
    total += count;
  }
  return total;
}

void Lcore::deliver(Port& port, rte_mbuf* packet, const gg_packet& parsed) {
  uint8_t* const data = rte_pktmbuf_mtod(packet, uint8_t*);
  core::Arrival arrival;
  arrival.link = parsed.link;
  arrival.packet = data + parsed.link_offset;
  arrival.length = parsed.length;
  arrival.ce = parsed.ce != 0;
  arrival.buffer = packet;
  const uint32_t index = core::Snapshot::neighbour_of_link(parsed.link.link);
  const Route* const route =
      current_ != nullptr && index < current_->routes.size() ? &current_->routes[index] : nullptr;
  if (route != nullptr && route->path.modality == parsed.modality) {
    if (parsed.modality == GG_MODALITY_UDP4) {
      const uint8_t* const ip = data + parsed.l3_offset + 12;
      // Gateways send from a port for each lane: their address alone counts (dataplane.h).
      arrival.source =
          source_tag({ip[0], ip[1], ip[2], ip[3]}, route->peer ? uint16_t{0} : gg_get16(data + parsed.udp_offset));
    } else {
      arrival.source = source_tag(Mac{data[6], data[7], data[8], data[9], data[10], data[11]});
    }
  }
  core::GatewayLane& lane = *lanes_[parsed.link.lane / lcore_count_];
  const uint32_t neighbour = lane.receive(arrival, now_);
  if (likely(neighbour != core::kNoNeighbour)) {
    if (route->mac_tag != 0 && route->port == port.index) fabric_.macs.learn(neighbour, route->mac_tag, data + 6);
    if (route->peer) show_life(*current_->snapshot->core->neighbours[neighbour]->lanes[parsed.link.lane], parsed);
  }
  rte_pktmbuf_free(packet);
}

void Lcore::show_life(core::Link& link, const gg_packet& parsed) const {
  // The peer's kernel asks whether our data plane knows it, or we do not know yet whether the peer's knows us: an
  // answered PING ends the greeting of either side (kernel_hello.h). What is in flight asks the same.
  if (unlikely(parsed.link.number == 0 || link.smoothed_rtt() == 0) && link.in_flight() == 0) link.ping();
}

void Lcore::slow_path(Port& port, rte_mbuf* packet) {
  if (port.has_kernel) return drop(port, packet, GG_DROP_NOT_OURS);
  uint32_t bytes = packet->data_len;
  Learnt learnt;
  const SlowPath what = respond(port.own, rte_pktmbuf_mtod(packet, uint8_t*), bytes,
                                uint32_t{packet->data_len} + rte_pktmbuf_tailroom(packet), learnt);
  if (what == SlowPath::kNotForUs) return drop(port, packet, GG_DROP_NOT_OURS);
  if (learnt.valid) learn(port, learnt);
  answered_[port.index].add();
  if (what == SlowPath::kReply) {
    packet->data_len = static_cast<uint16_t>(bytes);
    packet->pkt_len = bytes;
    packet->ol_flags = 0;
    if (transmitter_.queue(port.index).push(packet)) return;
    drops_[port.index][GG_DROP_TX_FULL].add();
  }
  rte_pktmbuf_free(packet);
}

void Lcore::learn(const Port& port, const Learnt& learnt) {
  if (current_ == nullptr) return;
  for (uint32_t i = 0; i < current_->routes.size(); ++i) {
    const Route& route = current_->routes[i];
    if (route.in_use && route.peer && route.port == port.index && route.mac_tag != 0 && route.next_hop == learnt.ip)
      fabric_.macs.learn(i, route.mac_tag, learnt.mac.data());
  }
}

void Lcore::resolve() {
  if (now_ < next_resolve_ || current_ == nullptr) return;
  next_resolve_ = now_ + kResolveInterval;
  for (uint32_t i = 0; i < current_->routes.size(); ++i) {
    const Route& route = current_->routes[i];
    if (!route.in_use || !route.peer || route.mac_tag == 0 || route.port % lcore_count_ != number_) continue;
    Port& port = *fabric_.ports[route.port];
    uint8_t known[6];
    if (port.has_kernel || fabric_.macs.find(i, route.mac_tag, known)) continue;
    rte_mbuf* const packet = rte_pktmbuf_alloc(port.pool);
    if (packet == nullptr) return;
    write_arp_request(reinterpret_cast<uint8_t*>(rte_pktmbuf_append(packet, kArpFrameBytes)), route.path.source_mac,
                      route.path.source_ip, route.next_hop);
    if (!transmitter_.queue(route.port).push(packet)) rte_pktmbuf_free(packet);
  }
}

void Lcore::drop(const Port& port, rte_mbuf* packet, int reason) {
  drops_[port.index][static_cast<size_t>(reason)].add();
  rte_pktmbuf_free(packet);
}

bool Lcore::hand_over(unsigned from, rte_mbuf* packet) {
  if (rte_ring_sp_enqueue(inbound_[from], packet) != 0) return false;
  // The other half is in sleep(): either we see that it sleeps, or it sees our packet.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_relaxed)) wake();
  return true;
}

}  // namespace gradgate::dataplane
