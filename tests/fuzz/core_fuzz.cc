// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: a gateway lane with a group of two workers here and one at a peer. The input chooses who speaks,
// which frames with which fields, what is acknowledged, how time passes; packets have right trailers, numbers and link
// ids, so that everything reaches the core. Nothing may crash, and at the end the books balance.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/gateway_lane.h"
#include "core/group_lane.h"
#include "wire/checksum.h"

namespace {

using namespace gradgate;

void require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint8_t byte() { return empty() ? uint8_t{0} : *data_++; }
  uint32_t word() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

struct Item {
  std::vector<uint8_t> bytes;
  unsigned references;
};

class Pool final : public core::BufferPool {
 public:
  bool exhausted = false;
  int live = 0;
  void retain(core::Buffer buffer) override { ++static_cast<Item*>(buffer)->references; }
  void release(core::Buffer buffer) override {
    Item* item = static_cast<Item*>(buffer);
    require(item->references > 0);
    if (--item->references > 0) return;
    delete item;
    --live;
  }
  bool below_reserve() const override { return exhausted; }
};

class Output final : public core::Output {
 public:
  bool full = false;
  uint32_t last_number[3] = {};
  bool send(const core::Datagram& datagram) override {
    if (full) return false;
    require(datagram.neighbour < 3 && datagram.header_bytes >= GG_LINK_BYTES + GG_FRAME_BYTES);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < datagram.header_bytes; ++i) sum += datagram.header[i];
    if (datagram.payload != nullptr)
      for (uint32_t i = 0; i < datagram.payload->length; ++i) sum += datagram.payload->data[i];
    volatile uint64_t touched = sum;
    (void)touched;
    last_number[datagram.neighbour] = gg_get32(datagram.header + 8);
    return true;
  }
};

class Events final : public core::EventSink {
 public:
  bool full = false;
  bool push(const core::Event&) override { return !full; }
};

constexpr uint32_t kStart = 0xFFFFFFF8u;
constexpr uint32_t kLabel = 1u << GG_CONTEXT_BITS | 3;

struct Gateway {
  Pool pool;
  Output output;
  Events events;
  core::GatewayLane lane{0, 1, pool, output, events};
  core::Snapshot snapshot;
  core::FixedRate rate{1'000'000'000};
  core::Nanoseconds now = core::kSecond;
  uint64_t numbers[3] = {};

  Gateway() {
    core::GroupConfig config;
    config.context = 3;
    config.size = 3;
    config.chunk_bytes = 64;
    config.window = 8;
    config.members = {{0, 0, 0x100007}, {1, 1, 0x100008}};
    config.sites = {{1, core::kNoNeighbour, 1}, {2, 2, 1}};
    config.site_of_rank = {1, 1, 2};
    config.start = {kStart};
    config.stall_report_ns = 300 * core::kMillisecond;
    config.call_timeout_ns = core::kSecond;
    snapshot.site = 1;
    snapshot.neighbours.resize(3);
    for (uint32_t i = 0; i < 3; ++i) new_link(i);
    snapshot.groups.resize(4);
    snapshot.groups[3].group = std::make_shared<core::Group>(config, uint16_t{1}, config.start);
    snapshot.groups[3].site_labels = {kLabel, 2u << GG_CONTEXT_BITS | 9};
    publish();
  }
  void new_link(uint32_t i) {
    core::LinkConfig link;
    link.neighbour = i;
    link.peer = i == 2;
    link.chunk_bytes = 64;
    link.max_in_flight = 8;
    const uint32_t epoch = snapshot.neighbours[i] == nullptr ? 0 : (snapshot.neighbours[i]->local_link >> 16) + 1;
    auto neighbour = std::make_shared<core::Neighbour>(link, 1);
    neighbour->peer = i == 2;
    neighbour->site = 2;
    neighbour->local_link = epoch << 16 | i;
    if (i == 2) neighbour->budget = std::make_shared<core::PeerBudget>(rate, 1, core::kMillisecond);
    snapshot.neighbours[i] = neighbour;
    numbers[i] = 0;
    output.last_number[i] = 0;
  }
  void publish() { lane.apply(std::make_shared<core::Snapshot>(snapshot), now); }

  void deliver(uint32_t node, std::vector<uint8_t> frames, Input& in, uint8_t oddity) {
    gg_link link = {};
    link.flags = GG_HOPS_MASK;
    link.label = oddity == 1 ? in.word() : oddity == 2 ? 1u << GG_CONTEXT_BITS : kLabel;
    link.number = oddity == 3 ? in.word() : static_cast<uint32_t>(++numbers[node]);
    link.link = snapshot.neighbours[node]->local_link ^ (oddity == 4 ? in.word() : 0);
    std::vector<uint8_t> bytes(GG_LINK_BYTES);
    gg_link_put(bytes.data(), &link);
    bytes.insert(bytes.end(), frames.begin(), frames.end());
    const uint32_t crc = wire::packet_crc32c(bytes.data(), bytes.size());
    bytes.resize(bytes.size() + GG_CRC_BYTES);
    gg_put32(bytes.data() + bytes.size() - GG_CRC_BYTES, crc);
    ++pool.live;
    Item* item = new Item{std::move(bytes), 1};
    core::Arrival arrival;
    arrival.link = link;
    arrival.packet = item->bytes.data();
    arrival.length = static_cast<uint32_t>(item->bytes.size());
    arrival.buffer = item;
    lane.receive(arrival, now);
    pool.release(item);
  }
};

/// Fields mostly as an honest node would set them; a set bit of `change` takes one from the input instead.
void put_frame(Input& in, Gateway& gateway, uint32_t node, std::vector<uint8_t>& out) {
  const uint8_t choice = in.byte(), change = in.byte();
  gg_frame f = {};
  static constexpr uint8_t kWorkerTypes[] = {GG_CONTRIBUTION, GG_CONTRIBUTION, GG_READY, GG_ACK};
  static constexpr uint8_t kPeerTypes[] = {GG_PARTIAL, GG_WATERMARK, GG_READY, GG_ACK};
  f.type = node == 2 ? kPeerTypes[choice & 3] : kWorkerTypes[choice & 3];
  if (change & 1) f.type = in.byte();
  const uint32_t low = gateway.snapshot.groups[3].group->lanes[0]->low();
  f.index = low + (choice >> 2 & 7);
  f.kind = GG_ALL_REDUCE;
  f.op = GG_SUM;
  if (f.type == GG_READY && node != 2)
    f.kind = GG_BROADCAST, f.op = GG_OP_NONE, f.root = static_cast<uint16_t>(1 - node);
  f.dtype = GG_FLOAT32;
  f.elements = 4;
  f.count = 1;
  f.source = static_cast<uint16_t>(node);
  uint32_t length = f.type == GG_CONTRIBUTION || f.type == GG_PARTIAL || f.type == GG_RESULT ? 16 : 0;
  if (f.type == GG_WATERMARK) f.call = low;
  if (f.type == GG_ACK) {
    f.index = gateway.output.last_number[node];
    f.call = 0;
    length = 4;
  }
  if (change & 2) f.index = in.byte() < 128 ? kStart + in.byte() : in.word();
  if (change & 4) f.kind = in.byte() & 15, f.op = in.byte() & 3, f.root = in.byte() & 3;
  if (change & 8) f.count = static_cast<uint16_t>(in.byte() < 200 ? in.byte() & 15 : in.word());
  if (change & 16) f.call = in.byte() < 128 ? low + in.byte() : in.word();
  if (change & 32) f.dtype = in.byte() & 15, f.elements = in.byte();
  if (change & 64) length = in.byte();
  if (change & 128) f.source = in.byte() & 3;
  f.length = static_cast<uint16_t>(length);
  const size_t at = out.size();
  out.resize(at + GG_FRAME_BYTES + length);
  gg_frame_put(out.data() + at, &f);
  uint8_t* payload = out.data() + at + GG_FRAME_BYTES;
  for (uint32_t i = 0; i < length; ++i) payload[i] = f.type == GG_ACK && (change & 64) == 0 ? uint8_t{0} : in.byte();
  if (f.type == GG_ACK && length == 4 && (change & 64) == 0 && f.index > 0) gg_put32(payload, f.index - 1);
}

void act(Input& in, Gateway& gateway) {
  const uint8_t action = in.byte();
  const uint32_t node = action >> 4 & 3;
  switch (action & 15) {
    case 0:
      gateway.now += core::Nanoseconds{in.byte()} * in.byte() * 64 * core::kMicrosecond;
      break;
    case 1:
      gateway.output.full = (in.byte() & 1) != 0;
      break;
    case 2:
      gateway.pool.exhausted = (in.byte() & 1) != 0;
      gateway.events.full = (in.byte() & 1) != 0;
      break;
    case 3:
      if (node < 3) gateway.new_link(node);
      if (node == 3) gateway.snapshot.groups[3].site_labels[1] = in.byte() & 3;
      gateway.publish();
      break;
    case 4:
      if (in.byte() < 32) gateway.snapshot.groups[3].error = std::make_shared<const std::string>("failed");
      gateway.publish();
      break;
    case 5:
    case 6:
      gateway.lane.poll(gateway.now, in.byte());
      break;
    default: {
      std::vector<uint8_t> frames;
      const uint8_t shape = in.byte();
      const uint32_t count = 1 + (shape & 3);
      for (uint32_t i = 0; i < count; ++i) put_frame(in, gateway, node % 3, frames);
      gateway.deliver(node % 3, std::move(frames), in, shape >= 240 ? shape & 7 : 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Gateway gateway;
  Input in(data, size);
  while (!in.empty()) act(in, gateway);
  gateway.output.full = false;
  for (int i = 0; i < 20; ++i) {
    gateway.lane.poll(gateway.now);
    gateway.now += 100 * core::kMillisecond;
  }
  const core::LaneCounters& c = gateway.lane.counters();
  uint64_t packets = c.packets_parsed.get();
  uint64_t frames = c.frames_kept.get() + c.frames_duplicate.get() + c.frames_past.get();
  for (const core::Counter& drop : c.packet_drops) packets += drop.get();
  for (const core::Counter& drop : c.frame_drops) frames += drop.get();
  require(packets == c.packets_received.get());
  require(frames == c.frames_received.get());
  gateway.lane.apply(std::make_shared<core::Snapshot>(), gateway.now);
  require(gateway.pool.live == 0);
  require(gateway.lane.next_deadline() == core::kNever);
  return 0;
}
