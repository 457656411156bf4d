// SPDX-License-Identifier: Apache-2.0
// The core's view of packet memory: buffers are mbufs of any port's pool. One object a lcore.
#pragma once

#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <vector>

#include "core/io.h"

namespace gradgate::dataplane {

class MbufPool final : public core::BufferPool {
 public:
  void watch(const rte_mempool* pool, uint32_t reserve) { watched_.push_back({pool, reserve}); }

  void retain(core::Buffer buffer) override { rte_mbuf_refcnt_update(static_cast<rte_mbuf*>(buffer), 1); }
  void release(core::Buffer buffer) override { rte_pktmbuf_free(static_cast<rte_mbuf*>(buffer)); }
  bool below_reserve() const override { return below_reserve_; }

  /// Once a burst: counting walks the caches of all lcores, so only every kEvery-th call counts.
  void refresh() {
    if (++calls_ % kEvery != 0) return;
    below_reserve_ = false;
    for (const Watched& one : watched_) below_reserve_ |= rte_mempool_avail_count(one.pool) < one.reserve;
  }

 private:
  /// Within so many bursts of 32 a reserve cannot be used up: it is larger than their packets.
  static constexpr uint32_t kEvery = 16;
  struct Watched {
    const rte_mempool* pool;
    uint32_t reserve;
  };
  std::vector<Watched> watched_;
  uint32_t calls_ = 0;
  bool below_reserve_ = false;
};

}  // namespace gradgate::dataplane
