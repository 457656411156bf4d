// SPDX-License-Identifier: Apache-2.0
// What the core's tests stand on: packet memory that counts references, an output that keeps what was sent, packets
// built by hand, and a gateway lane with one group whose workers and peers are the test itself.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "core/gateway_lane.h"
#include "core/group_lane.h"
#include "wire/checksum.h"
#include "wire/gg_parse.h"

namespace gradgate::test {

using core::kMicrosecond;
using core::kMillisecond;
using core::kSecond;
using core::Nanoseconds;

struct Frame {
  gg_frame header = {};
  std::vector<uint8_t> payload;
};

inline std::vector<uint8_t> bytes_of(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * 4);
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<float> floats_of(const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

inline std::vector<uint8_t> packet_bytes(const gg_link& link, const std::vector<Frame>& frames, bool trailer) {
  std::vector<uint8_t> bytes(GG_LINK_BYTES);
  gg_link_put(bytes.data(), &link);
  for (const Frame& frame : frames) {
    const size_t at = bytes.size();
    bytes.resize(at + GG_FRAME_BYTES);
    gg_frame_put(bytes.data() + at, &frame.header);
    bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  }
  if (trailer) {
    const uint32_t crc = wire::packet_crc32c(bytes.data(), bytes.size());
    bytes.resize(bytes.size() + GG_CRC_BYTES);
    gg_put32(bytes.data() + bytes.size() - GG_CRC_BYTES, crc);
  }
  return bytes;
}

/// An ACK of the numbers in `ranges`, {first, last} inclusive, from the largest downwards.
struct AckRange {
  uint64_t first, last;
};
inline Frame ack_frame(const std::vector<AckRange>& ranges, uint32_t delay_us = 0) {
  Frame ack;
  ack.header.type = GG_ACK;
  ack.header.index = static_cast<uint32_t>(ranges[0].last);
  ack.header.call = delay_us;
  ack.header.count = static_cast<uint16_t>(ranges.size());
  ack.payload.resize(4 + 8 * (ranges.size() - 1));
  gg_put32(ack.payload.data(), static_cast<uint32_t>(ranges[0].last - ranges[0].first));
  for (size_t i = 1; i < ranges.size(); ++i) {
    gg_put32(ack.payload.data() + 8 * i - 4, static_cast<uint32_t>(ranges[i - 1].first - ranges[i].last - 2));
    gg_put32(ack.payload.data() + 8 * i, static_cast<uint32_t>(ranges[i].last - ranges[i].first));
  }
  ack.header.length = static_cast<uint16_t>(ack.payload.size());
  return ack;
}

struct SentPacket {
  uint32_t neighbour = 0;
  gg_link link = {};
  std::vector<Frame> frames;
  uint32_t bytes = 0;
  Nanoseconds time = 0;

  const Frame* find(uint8_t type) const {
    for (const Frame& frame : frames)
      if (frame.header.type == type) return &frame;
    return nullptr;
  }
};

/// Takes packets while it has `room`; copies them, as what they point to is valid during the call only.
class TestOutput final : public core::Output {
 public:
  std::vector<SentPacket> sent;
  uint32_t room = ~0u;
  Nanoseconds now = 0;

  bool send(const core::Datagram& datagram) override {
    if (room == 0) return false;
    --room;
    EXPECT_EQ(datagram.header_bytes % 2, 0);
    std::vector<uint8_t> bytes(datagram.header, datagram.header + datagram.header_bytes);
    if (datagram.payload != nullptr)
      bytes.insert(bytes.end(), datagram.payload->data, datagram.payload->data + datagram.payload->length);
    SentPacket packet;
    packet.neighbour = datagram.neighbour;
    packet.time = now;
    packet.bytes = static_cast<uint32_t>(bytes.size()) + (datagram.trailer_crc ? GG_CRC_BYTES : 0);
    gg_link_get(bytes.data(), &packet.link);
    const uint8_t* p = bytes.data() + GG_LINK_BYTES;
    const uint8_t* end = bytes.data() + bytes.size();
    while (p < end) {
      Frame frame;
      if (gg_frame_parse(p, end, &frame.header) != GG_PARSE_OURS) {
        ADD_FAILURE() << "the core sent a frame that does not parse";
        break;
      }
      frame.payload.assign(p + GG_FRAME_BYTES, p + GG_FRAME_BYTES + frame.header.length);
      p += GG_FRAME_BYTES + frame.header.length;
      packet.frames.push_back(std::move(frame));
    }
    sent.push_back(std::move(packet));
    return true;
  }

  /// Frames of a type to a neighbour, in the order sent.
  std::vector<Frame> frames(uint32_t neighbour, uint8_t type) const {
    std::vector<Frame> found;
    for (const SentPacket& packet : sent)
      for (const Frame& frame : packet.frames)
        if (packet.neighbour == neighbour && frame.header.type == type) found.push_back(frame);
    return found;
  }
};

/// Each buffer is its own allocation, so that ASan sees a use after the last release.
class TestPool final : public core::BufferPool {
 public:
  struct Item {
    std::vector<uint8_t> bytes;
    int references = 1;
  };
  bool exhausted = false;

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
  bool below_reserve() const override { return exhausted; }
  int live() const { return live_; }

 private:
  int live_ = 0;
};

class TestEvents final : public core::EventSink {
 public:
  std::vector<core::Event> seen;
  bool full = false;
  bool push(const core::Event& event) override {
    if (full) return false;
    seen.push_back(event);
    return true;
  }
  std::vector<core::Event> of(core::Event::Type type) const {
    std::vector<core::Event> found;
    for (const core::Event& event : seen)
      if (event.type == type) found.push_back(event);
    return found;
  }
};

/// The call that most tests make.
inline core::CallParameters all_reduce(uint16_t length = 8, uint32_t call = 0) {
  core::CallParameters c;
  c.call = call;
  c.elements = length / 4;
  c.kind = GG_ALL_REDUCE;
  c.dtype = GG_FLOAT32;
  c.op = GG_SUM;
  c.length = length;
  return c;
}

inline Frame call_frame(uint8_t type, uint16_t source, uint32_t index, const core::CallParameters& call) {
  Frame frame;
  frame.header.type = type;
  frame.header.kind = call.kind;
  frame.header.dtype = call.dtype;
  frame.header.index = index;
  frame.header.call = call.call;
  frame.header.elements = call.elements;
  frame.header.source = source;
  frame.header.root = call.root;
  frame.header.count = 1;
  frame.header.op = call.op;
  return frame;
}

/// CONTRIBUTION, PARTIAL, RESULT: `values` fill the payload, which must be as long as the call says unless the test
/// wants it otherwise.
inline Frame data_frame(uint8_t type, uint16_t source, uint32_t index, const core::CallParameters& call,
                        const std::vector<float>& values) {
  Frame frame = call_frame(type, source, index, call);
  frame.payload = bytes_of(values);
  frame.header.length = static_cast<uint16_t>(frame.payload.size());
  return frame;
}

inline Frame ready_frame(uint16_t rank, uint32_t last, uint16_t count, const core::CallParameters& call) {
  Frame frame = call_frame(GG_READY, rank, last, call);
  frame.header.count = count;
  return frame;
}

inline Frame watermark_frame(uint16_t site, uint32_t watermark, uint32_t low) {
  Frame frame;
  frame.header.type = GG_WATERMARK;
  frame.header.source = site;
  frame.header.index = watermark;
  frame.header.call = low;
  return frame;
}

struct GatewaySetup {
  std::vector<unsigned> workers_of_site{2};
  unsigned own = 0;  ///< position of the gateway under test
  uint32_t window = 8;
  uint32_t chunk_bytes = 64;
  uint8_t lanes = 1;
  uint32_t exchange_limit_bytes = 64 * 1024;
  uint32_t start = 0xFFFFFFFEu;  ///< two short of the wrap, so that every test crosses it
};

/// Site positions 0, 1, … have ids 11, 12, …; ranks count through the sites.
class GatewayTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kContext = 5;
  static constexpr uint16_t site_id(unsigned position) { return static_cast<uint16_t>(11 + position); }

  struct Node {
    std::shared_ptr<core::Neighbour> neighbour;
    uint64_t next_number = 1;
    uint64_t source = 0;
    size_t acknowledged = 0;  ///< packets of output.sent that ack() has looked at
  };

  void form(const GatewaySetup& setup) {
    setup_ = setup;
    config_ = {};
    config_.name = "job/group";
    config_.context = kContext;
    config_.generation = 7;
    config_.chunk_bytes = setup.chunk_bytes;
    config_.lanes = setup.lanes;
    config_.window = setup.window;
    config_.exchange_limit_bytes = setup.exchange_limit_bytes;
    config_.start.assign(setup.lanes, setup.start);
    nodes_.clear();
    for (unsigned s = 0; s < setup.workers_of_site.size(); ++s) {
      config_.sites.push_back({site_id(s), s == setup.own ? core::kNoNeighbour : add_node(true, site_id(s)), 1});
      for (unsigned w = 0; w < setup.workers_of_site[s]; ++w) {
        const uint16_t rank = config_.size++;
        config_.site_of_rank.push_back(site_id(s));
        if (s != setup.own) continue;
        const uint32_t node = add_node(false, 0);
        config_.members.push_back({rank, node, gg_label(site_id(setup.own), 100u + rank)});
      }
    }
    group_ = std::make_shared<core::Group>(config_, site_id(setup.own), config_.start);
    site_labels_.clear();
    for (unsigned s = 0; s < setup.workers_of_site.size(); ++s) site_labels_.push_back(gg_label(site_id(s), 50));
    lane_ = std::make_unique<core::GatewayLane>(uint8_t{0}, site_id(setup.own), pool_, output_, events_);
    publish();
  }

  uint32_t add_node(bool peer, uint16_t site) {
    const uint32_t index = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({});
    nodes_[index].source = 0xA000 + index;
    new_epoch(index, peer, site);
    return index;
  }

  /// Another link object in the same place of the table, with other random bits in its id.
  void new_epoch(uint32_t index, bool peer, uint16_t site) {
    core::LinkConfig link;
    link.neighbour = index;
    link.remote_link = 0x70000000u + index;
    link.link_label = gg_label(site, GG_CONTEXT_LINK);
    link.chunk_bytes = setup_.chunk_bytes;
    link.initial_rtt_ns = kMillisecond;
    link.peer = peer;
    Node& node = nodes_[index];
    node.neighbour = std::make_shared<core::Neighbour>(link, setup_.lanes);
    node.neighbour->peer = peer;
    node.neighbour->site = site;
    node.neighbour->local_link = ++epoch_ << 16 | index;
    node.neighbour->source = node.source;
    node.next_number = 1;
    node.acknowledged = output_.sent.size();
  }

  void publish() {
    auto snapshot = std::make_shared<core::Snapshot>();
    snapshot->generation = ++generation_;
    snapshot->site = site_id(setup_.own);
    for (const Node& node : nodes_) snapshot->neighbours.push_back(node.neighbour);
    snapshot->groups.resize(kContext + 1);
    if (group_ != nullptr) {
      snapshot->groups[kContext].group = group_;
      snapshot->groups[kContext].site_labels = site_labels_;
      snapshot->groups[kContext].error = error_;
    }
    lane_->apply(snapshot, now_);
  }

  uint32_t node_of_rank(uint16_t rank) const {
    for (const core::GroupMember& member : config_.members)
      if (member.rank == rank) return member.neighbour;
    return core::kNoNeighbour;
  }
  uint32_t node_of_site(unsigned position) const { return config_.sites[position].neighbour; }
  uint32_t group_label() const { return gg_label(site_id(setup_.own), kContext); }
  gg_link link_to(uint32_t node) {
    gg_link link = {};
    link.flags = GG_HOPS_MASK;
    link.label = group_label();
    link.number = static_cast<uint32_t>(nodes_[node].next_number++);
    link.link = nodes_[node].neighbour->local_link;
    return link;
  }

  /// Hands in a packet and gives our reference back, as the data plane does.
  uint32_t deliver(const gg_link& link, std::vector<uint8_t> bytes, uint64_t source) {
    TestPool::Item* item = pool_.allocate(std::move(bytes));
    core::Arrival arrival;
    arrival.link = link;
    arrival.packet = item->bytes.data();
    arrival.length = static_cast<uint32_t>(item->bytes.size());
    arrival.source = source;
    arrival.buffer = item;
    const uint32_t from = lane_->receive(arrival, now_);
    pool_.release(item);
    return from;
  }
  uint32_t deliver(uint32_t node, const std::vector<Frame>& frames) {
    const gg_link link = link_to(node);
    return deliver(link, packet_bytes(link, frames, true), nodes_[node].source);
  }
  uint32_t contribute(uint16_t rank, uint32_t index, const core::CallParameters& call,
                      const std::vector<float>& values) {
    return deliver(node_of_rank(rank), {data_frame(GG_CONTRIBUTION, rank, index, call, values)});
  }
  uint32_t partial(unsigned site, uint32_t index, const core::CallParameters& call, const std::vector<float>& values) {
    return deliver(node_of_site(site), {data_frame(GG_PARTIAL, site_id(site), index, call, values)});
  }

  void poll() {
    output_.now = now_;
    lane_->poll(now_);
  }
  /// Time passes in steps of the lane's own deadlines.
  void run_until(Nanoseconds end) {
    while (now_ < end) {
      const Nanoseconds next = lane_->next_deadline();
      now_ = std::min(end, std::max(now_ + 1, next));
      poll();
    }
  }

  /// Everything sent to the node so far has arrived there.
  void ack(uint32_t node) {
    uint64_t largest = 0;
    for (const SentPacket& packet : output_.sent)
      if (packet.neighbour == node && packet.link.link == nodes_[node].neighbour->lanes[0]->config().remote_link)
        largest = std::max<uint64_t>(largest, packet.link.number);
    if (largest > 0) deliver(node, {ack_frame({{1, largest}})});
  }
  void ack_everybody() {
    for (uint32_t node = 0; node < nodes_.size(); ++node) ack(node);
  }

  std::vector<Frame> results_to(uint16_t rank) const { return output_.frames(node_of_rank(rank), GG_RESULT); }
  std::vector<Frame> partials_to(unsigned site) const { return output_.frames(node_of_site(site), GG_PARTIAL); }
  uint64_t packet_drops(gg_drop reason) const { return lane_->counters().packet_drops[reason].get(); }
  uint64_t frame_drops(gg_drop reason) const { return lane_->counters().frame_drops[reason].get(); }
  uint32_t low() const { return group_->lanes[0]->low(); }
  uint32_t index(uint32_t offset) const { return setup_.start + offset; }

  /// The books balance and every buffer comes back: after every test.
  void TearDown() override {
    if (lane_ == nullptr) return;
    const core::LaneCounters& c = lane_->counters();
    uint64_t packets = c.packets_parsed.get();
    uint64_t frames = c.frames_kept.get() + c.frames_duplicate.get() + c.frames_past.get();
    for (const core::Counter& drop : c.packet_drops) packets += drop.get();
    for (const core::Counter& drop : c.frame_drops) frames += drop.get();
    EXPECT_EQ(packets, c.packets_received.get());
    EXPECT_EQ(frames, c.frames_received.get());
    lane_->apply(std::make_shared<core::Snapshot>(), now_);
    EXPECT_EQ(pool_.live(), 0) << "buffers are not back";
    EXPECT_EQ(lane_->next_deadline(), core::kNever) << "a timer outlived its owner";
  }

  GatewaySetup setup_;
  core::GroupConfig config_;
  TestPool pool_;
  TestOutput output_;
  TestEvents events_;
  std::vector<Node> nodes_;
  std::shared_ptr<core::Group> group_;
  std::vector<uint32_t> site_labels_;
  std::shared_ptr<const std::string> error_;
  std::unique_ptr<core::GatewayLane> lane_;
  uint64_t generation_ = 0;
  uint32_t epoch_ = 0;
  Nanoseconds now_ = kSecond;
};

}  // namespace gradgate::test
