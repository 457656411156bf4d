// SPDX-License-Identifier: Apache-2.0
#include "dataplane/tx.h"

#include <rte_ethdev.h>

#include <algorithm>

#include "dataplane/tx_packet.h"

namespace gradgate::dataplane {

bool PortQueue::push(rte_mbuf* packet) {
  if (count_ == waiting_.size()) flush();
  if (count_ == waiting_.size()) return false;
  waiting_[count_++] = packet;
  if (count_ % kBurst == 0) flush();
  return true;
}

uint32_t PortQueue::flush() {
  // Another lcore is at it: ours waits for the next burst rather than for a thread that may have lost its CPU.
  if (rte_spinlock_trylock(&port_.tx_lock) == 0) return 0;
  uint32_t sent = 0;
  do {
    const uint16_t taken = rte_eth_tx_burst(port_.id, 0, waiting_.data() + sent, static_cast<uint16_t>(count_ - sent));
    if (taken == 0) break;
    sent += taken;
  } while (sent < count_);
  rte_spinlock_unlock(&port_.tx_lock);
  std::copy(waiting_.begin() + sent, waiting_.begin() + count_, waiting_.begin());
  count_ -= sent;
  return sent;
}

Transmitter::Transmitter(const std::vector<std::unique_ptr<Port>>& ports, const MacTable& macs,
                         std::vector<PortDrops>& drops)
    : macs_(macs), drops_(drops) {
  for (const auto& port : ports) queues_.push_back(std::make_unique<PortQueue>(*port));
}

bool Transmitter::send(const core::Datagram& datagram) {
  const Route& route = published_->routes[datagram.neighbour];
  if (unlikely(!route.in_use)) return true;  // a port that is not there: as lost as a packet on a cut cable
  gg_path path = route.path;
  if (route.mac_tag != 0 && unlikely(!macs_.find(datagram.neighbour, route.mac_tag, path.destination_mac))) {
    // Lost; the link sends the frames again, by when the neighbour has spoken.
    drops_[route.port][GG_DROP_NO_ADDRESS].add();
    return true;
  }
  path.source_port = static_cast<uint16_t>(path.source_port + datagram.lane);
  if (route.port_per_lane) path.destination_port = static_cast<uint16_t>(path.destination_port + datagram.lane);

  PortQueue& queue = *queues_[route.port];
  // From the egress port's pool: the AF_XDP PMD copies packets of other pools once more. A copy for each destination,
  // because it sends single segments only (DESIGN section 7).
  rte_mbuf* const packet = rte_pktmbuf_alloc(queue.port().pool);
  if (unlikely(packet == nullptr)) return false;
  const uint32_t bytes = packet_bytes(path.modality, datagram);
  auto* const data = reinterpret_cast<uint8_t*>(rte_pktmbuf_append(packet, static_cast<uint16_t>(bytes)));
  if (unlikely(data == nullptr)) {
    rte_pktmbuf_free(packet);
    drops_[route.port][GG_DROP_TOO_LARGE].add();
    return true;
  }
  write_packet(data, path, datagram);
  if (likely(queue.push(packet))) return true;
  rte_pktmbuf_free(packet);
  return false;
}

uint32_t Transmitter::flush() {
  uint32_t sent = 0;
  for (const auto& queue : queues_)
    if (!queue->empty()) sent += queue->flush();
  return sent;
}

bool Transmitter::idle() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) { return queue->empty(); });
}

void Transmitter::reap() {
  for (const auto& queue : queues_) queue->flush();
}

}  // namespace gradgate::dataplane
