// SPDX-License-Identifier: Apache-2.0
// The parts of lib/dataplane that need neither EAL nor root.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/gateway_lane.h"
#include "core/snapshot.h"
#include "dataplane/eal.h"
#include "dataplane/kernel_hello.h"
#include "dataplane/memory.h"
#include "dataplane/preflight.h"
#include "dataplane/routes.h"
#include "dataplane/tx_packet.h"
#include "wire/checksum.h"
#include "wire/gg_parse.h"

namespace gradgate::dataplane {
namespace {

using Bytes = std::vector<uint8_t>;

const Mac kOwnMac{0x02, 0, 0, 0, 0, 1};
const Mac kOtherMac{0x02, 0, 0, 0, 0, 2};
const Ip4 kOwnIp{10, 1, 0, 1};
const Ip4 kOtherIp{10, 1, 0, 9};

// ---- packets to neighbours

gg_path test_path(uint8_t modality) {
  gg_path path{};
  path.modality = modality;
  std::copy(kOwnMac.begin(), kOwnMac.end(), path.source_mac);
  std::copy(kOtherMac.begin(), kOtherMac.end(), path.destination_mac);
  std::copy(kOwnIp.begin(), kOwnIp.end(), path.source_ip);
  std::copy(kOtherIp.begin(), kOtherIp.end(), path.destination_ip);
  path.source_port = GG_DEFAULT_UDP_PORT + 3;
  path.destination_port = GG_DEFAULT_UDP_PORT + 3;
  return path;
}

bool udp_checksum_valid(const Bytes& frame) {
  const uint8_t* ip = frame.data() + GG_ETH_BYTES;
  const uint8_t* udp = ip + GG_IPV4_BYTES;
  const uint16_t length = gg_get16(udp + 4);
  return gg_get16(udp + 6) != 0 &&
         gg_sum_fold(uint64_t{gg_sum_pseudo4(ip + 12, ip + 16, length)} + wire::sum16(udp, length)) == 0xFFFF;
}

struct TxCase {
  uint8_t modality;
  uint32_t payload_bytes;
  bool trailer;
};

class TxPacket : public testing::TestWithParam<TxCase> {};

TEST_P(TxPacket, ParsesBackWithValidChecksums) {
  const TxCase& spec = GetParam();
  Bytes content(spec.payload_bytes);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<uint8_t>(i * 37 + 5);
  core::Payload payload;
  payload.data = content.data();
  payload.length = spec.payload_bytes;

  uint8_t header[GG_LINK_BYTES + GG_FRAME_BYTES];
  const gg_link link{GG_HOPS_MASK, 3, gg_label(2, 7), 0x01020304, 0xA0B0C0D0};
  gg_link_put(header, &link);
  gg_frame frame{};
  frame.type = GG_RESULT;
  frame.length = static_cast<uint16_t>(spec.payload_bytes);
  gg_frame_put(header + GG_LINK_BYTES, &frame);
  core::Datagram datagram;
  datagram.lane = 3;
  datagram.trailer_crc = spec.trailer;
  datagram.header = header;
  datagram.header_bytes = sizeof header;
  datagram.payload = spec.payload_bytes == 0 ? nullptr : &payload;

  const gg_path path = test_path(spec.modality);
  // The second packet takes the payload's sum from the first.
  for (int copy = 0; copy < 2; ++copy) {
    Bytes packet(packet_bytes(spec.modality, datagram) + 8, 0xEE);
    write_packet(packet.data(), path, datagram);
    EXPECT_EQ(Bytes(packet.end() - 8, packet.end()), Bytes(8, 0xEE)) << "wrote beyond its end";
    packet.resize(packet.size() - 8);

    gg_packet parsed{};
    ASSERT_EQ(gg_parse(packet.data(), packet.data() + packet.size(), GG_DEFAULT_UDP_PORT, &parsed), GG_PARSE_OURS);
    EXPECT_EQ(parsed.modality, spec.modality);
    EXPECT_EQ(parsed.link.label, link.label);
    EXPECT_EQ(parsed.link.number, link.number);
    EXPECT_EQ(parsed.length, sizeof header + spec.payload_bytes + (spec.trailer ? GG_CRC_BYTES : 0));
    const uint8_t* at = packet.data() + parsed.link_offset;
    EXPECT_EQ(std::memcmp(at, header, sizeof header), 0);
    if (spec.payload_bytes > 0) {
      EXPECT_EQ(std::memcmp(at + sizeof header, content.data(), content.size()), 0);
    }
    if (spec.trailer) {
      const uint32_t covered = parsed.length - GG_CRC_BYTES;
      EXPECT_EQ(gg_get32(at + covered), wire::packet_crc32c(at, covered));
    }
    if (spec.modality == GG_MODALITY_UDP4) {
      EXPECT_TRUE(udp_checksum_valid(packet));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TxPacket,
                         testing::Values(TxCase{GG_MODALITY_UDP4, 0, false}, TxCase{GG_MODALITY_UDP4, 0, true},
                                         TxCase{GG_MODALITY_UDP4, 1024, false}, TxCase{GG_MODALITY_UDP4, 1024, true},
                                         TxCase{GG_MODALITY_UDP4, 255, false}, TxCase{GG_MODALITY_UDP4, 255, true},
                                         TxCase{GG_MODALITY_UDP4, 1, true}, TxCase{GG_MODALITY_ETHERNET, 1024, true},
                                         TxCase{GG_MODALITY_ETHERNET, 3, true}));

// ---- hello

TEST(Hello, IsAValidPingThatTheCoreLearnsFromAndDrops) {
  core::LinkConfig config;
  config.remote_link = 0xABCD0000;
  config.link_label = gg_label(1, GG_CONTEXT_LINK);
  config.trailer_crc = true;
  Bytes packet = hello_packet(config);

  struct NoPool final : core::BufferPool {
    void retain(core::Buffer) override {}
    void release(core::Buffer) override {}
    bool below_reserve() const override { return false; }
  } pool;
  struct NoOutput final : core::Output {
    bool send(const core::Datagram& datagram) override {
      ++sent;
      neighbour = datagram.neighbour;
      return true;
    }
    unsigned sent = 0;
    uint32_t neighbour = core::kNoNeighbour;
  } output;
  struct NoEvents final : core::EventSink {
    bool push(const core::Event&) override { return true; }
  } events;
  core::GatewayLane lane(0, 1, pool, output, events);
  auto snapshot = std::make_shared<core::Snapshot>();
  snapshot->generation = 1;
  snapshot->site = 1;
  core::LinkConfig ours;
  ours.neighbour = 0;
  snapshot->neighbours.push_back(std::make_shared<core::Neighbour>(ours, 1));
  snapshot->neighbours[0]->peer = true;
  snapshot->neighbours[0]->local_link = config.remote_link;
  lane.apply(snapshot, core::kSecond);

  core::Arrival arrival;
  gg_link_get(packet.data(), &arrival.link);
  EXPECT_EQ(gg_get16(packet.data()), GG_MAGIC);
  EXPECT_EQ(arrival.link.number, 0u);
  arrival.packet = packet.data();
  arrival.length = static_cast<uint32_t>(packet.size());
  EXPECT_EQ(lane.receive(arrival, core::kSecond), 0u) << "the neighbour must be known to be genuine";
  EXPECT_EQ(lane.counters().packet_drops[GG_DROP_DUPLICATE_NUMBER].get(), 1u);
  EXPECT_EQ(lane.counters().frames_received.get(), 0u);

  packet.back() ^= 1;
  EXPECT_EQ(lane.receive(arrival, core::kSecond), core::kNoNeighbour) << "nothing is learnt from a forged one";
}

// ---- routes and learnt addresses

config::Site test_site() {
  config::Site site;
  site.name = "a";
  site.id = 1;
  site.ports.resize(2);
  site.ports[0].name = "lan";
  site.ports[0].device.text = "eth1";
  site.ports[0].mtu_bytes = 3498;
  site.ports[0].addresses = {*config::parse_cidr("10.1.0.1/24"), *config::parse_cidr("10.2.0.1/24")};
  site.ports[1].name = "wan";
  site.ports[1].device = {config::PortDevice::Kind::kPci, "0000:3b:00.0"};
  site.ports[1].addresses = {*config::parse_cidr("2001:db8::1/64"), *config::parse_cidr("198.51.100.1/30")};
  site.ports[1].next_hop = config::parse_ip4("198.51.100.2");
  return site;
}

std::shared_ptr<const Snapshot> snapshot_of(const std::vector<Endpoint>& endpoints, bool peer = false) {
  auto core = std::make_shared<core::Snapshot>();
  core->generation = 1;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    core->neighbours.push_back(std::make_shared<core::Neighbour>(core::LinkConfig{}, 1));
    core->neighbours.back()->peer = peer;
  }
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->core = core;
  snapshot->endpoints = endpoints;
  return snapshot;
}

Endpoint udp4_endpoint(uint16_t port, Ip4 ip) {
  Endpoint endpoint;
  endpoint.port = port;
  endpoint.ip = ip;
  endpoint.udp_port = 4000;
  return endpoint;
}

TEST(Routes, SourceAddressAndNextHop) {
  const config::Site site = test_site();
  const auto published =
      publish_routes(site, {kOwnMac, kOtherMac},
                     snapshot_of({udp4_endpoint(0, {10, 2, 0, 7}), udp4_endpoint(0, {172, 16, 0, 1}),
                                  udp4_endpoint(1, {203, 0, 113, 1}), udp4_endpoint(1, {198, 51, 100, 2}),
                                  udp4_endpoint(9, {1, 1, 1, 1})}));
  const auto source = [&](size_t i) {
    const uint8_t* ip = published->routes[i].path.source_ip;
    return Ip4{ip[0], ip[1], ip[2], ip[3]};
  };
  EXPECT_EQ(source(0), (Ip4{10, 2, 0, 1})) << "the address in the neighbour's subnet";
  EXPECT_EQ(source(1), (Ip4{10, 1, 0, 1})) << "the first one for a neighbour elsewhere";
  EXPECT_EQ(source(2), (Ip4{198, 51, 100, 1})) << "an IPv6 address in front does not count";
  EXPECT_EQ(published->routes[1].next_hop, (Ip4{172, 16, 0, 1})) << "no router: the neighbour itself";
  EXPECT_EQ(published->routes[2].next_hop, (Ip4{198, 51, 100, 2}));
  EXPECT_EQ(published->routes[3].next_hop, (Ip4{198, 51, 100, 2}));
  EXPECT_FALSE(published->routes[4].in_use) << "no such port";
  EXPECT_EQ(published->routes[2].path.source_port, GG_DEFAULT_UDP_PORT);
  EXPECT_EQ(published->routes[2].path.destination_port, 4000);
  EXPECT_EQ(std::memcmp(published->routes[2].path.source_mac, kOtherMac.data(), 6), 0);
}

TEST(Routes, EthernetNeedsNothingLearnt) {
  Endpoint endpoint;
  endpoint.port = 1;
  endpoint.modality = GG_MODALITY_ETHERNET;
  endpoint.mac = kOtherMac;
  const auto published = publish_routes(test_site(), {kOwnMac, kOwnMac}, snapshot_of({endpoint}));
  EXPECT_EQ(published->routes[0].mac_tag, 0);
  EXPECT_EQ(std::memcmp(published->routes[0].path.destination_mac, kOtherMac.data(), 6), 0);
}

TEST(MacTable, AnEntryBelongsToOneAddress) {
  MacTable table;
  const uint16_t first = MacTable::tag(0, kOwnIp);
  const uint16_t second = MacTable::tag(0, kOtherIp);
  ASSERT_NE(first, second);
  ASSERT_NE(first, MacTable::tag(1, kOwnIp));
  Mac out{};
  EXPECT_FALSE(table.find(5, first, out.data()));
  table.learn(5, first, kOtherMac.data());
  ASSERT_TRUE(table.find(5, first, out.data()));
  EXPECT_EQ(out, kOtherMac);
  EXPECT_FALSE(table.find(5, second, out.data())) << "the index now is another neighbour's";
  EXPECT_FALSE(table.find(6, first, out.data()));
  table.learn(5, first, kOwnMac.data());
  ASSERT_TRUE(table.find(5, first, out.data()));
  EXPECT_EQ(out, kOwnMac) << "an address may change";
}

TEST(SourceTag, TellsWorkersGatewaysAndEthernetApart) {
  EXPECT_NE(source_tag(kOwnIp, 1), source_tag(kOwnIp, 0));
  EXPECT_NE(source_tag(Ip4{0, 0, 0, 0}, 0), 0u) << "0 means: not compared";
  EXPECT_NE(source_tag(Mac{10, 1, 0, 1, 0, 0}), source_tag(kOwnIp, 0));
}

// ---- memory and EAL

TEST(Memory, AfXdpElementsFillPages) {
  const config::Site site = test_site();
  const auto element = [&](unsigned mtu) {
    config::Port port = site.ports[0];
    port.mtu_bytes = mtu;
    return pool_shape(port, site.dataplane).element_bytes;
  };
  EXPECT_EQ(element(1458), 2048u) << "1472 bytes of frame fit (facts, prototypes 1)";
  EXPECT_EQ(element(1459), 4096u);
  EXPECT_EQ(element(kMaxXdpMtu), 4096u);
  EXPECT_TRUE(pool_shape(site.ports[0], site.dataplane).exact);
  config::Port jumbo = site.ports[1];
  jumbo.mtu_bytes = 9000;
  EXPECT_FALSE(pool_shape(jumbo, site.dataplane).exact);
  EXPECT_GE(pool_shape(jumbo, site.dataplane).element_bytes, 9000u + 14 + 320) << "one segment";
}

TEST(Memory, HugepagesWhereTheySuffice) {
  config::Site site = test_site();
  site.ports.resize(1);
  const uint64_t needed = plan_memory(site, 0).needed_bytes;
  EXPECT_GE(needed, uint64_t{16384} * 4096);
  EXPECT_TRUE(plan_memory(site, needed).hugepages);
  EXPECT_FALSE(plan_memory(site, needed - 1).hugepages);
  EXPECT_EQ(plan_memory(site, 0).lacking_device, "") << "AF_XDP does without";
  site.dataplane.hugepages = config::Hugepages::kNever;
  EXPECT_FALSE(plan_memory(site, needed).hugepages);
  site = test_site();
  EXPECT_EQ(plan_memory(site, 0).lacking_device, "0000:3b:00.0");
}

bool has(const std::vector<std::string>& arguments, const std::string& wanted) {
  return std::find(arguments.begin(), arguments.end(), wanted) != arguments.end();
}

TEST(Eal, Arguments) {
  config::Site site = test_site();
  site.ports.resize(1);
  site.dataplane.eal = {"--from-file"};
  StartOptions options;
  options.eal = {"--from-command-line"};
  MemoryPlan memory;
  memory.needed_bytes = (100 << 20) + 1;
  auto arguments = eal_arguments(site, memory, {0, 1, 5}, options);
  EXPECT_TRUE(has(arguments, "--no-huge"));
  EXPECT_TRUE(has(arguments, "--no-shconf"));
  EXPECT_FALSE(has(arguments, "--in-memory")) << "22.11 refuses both";
  EXPECT_TRUE(has(arguments, "101"));
  EXPECT_TRUE(has(arguments, "--no-pci"));
  EXPECT_TRUE(has(arguments, "--lcores=0@(0,1,5),1@(0,1,5)")) << "one that floats";
  EXPECT_EQ(arguments.back(), "--from-command-line");
  EXPECT_EQ(arguments[arguments.size() - 2], "--from-file");

  site = test_site();
  site.dataplane.lcores = {5, 1};
  memory.hugepages = true;
  arguments = eal_arguments(site, memory, {0, 1, 5}, options);
  EXPECT_TRUE(has(arguments, "--in-memory"));
  EXPECT_FALSE(has(arguments, "--no-huge"));
  EXPECT_FALSE(has(arguments, "--no-pci"));
  EXPECT_TRUE(has(arguments, "0000:3b:00.0"));
  EXPECT_TRUE(has(arguments, "--lcores=0@(0),1@5,2@1")) << "control keeps off the lcores' CPUs";
  site.dataplane.lcores = {0, 1};
  EXPECT_TRUE(has(eal_arguments(site, memory, {0, 1}, options), "--lcores=0@(0,1),1@0,2@1")) << "unless none is left";
}

TEST(InterfaceLock, HoldsAnInterfaceOnce) {
  const std::string name = "t" + std::to_string(::getpid());
  InterfaceLock first;
  EXPECT_EQ(first.acquire(name), "");
  InterfaceLock second;
  EXPECT_NE(second.acquire(name).find("another gradgate"), std::string::npos);
  InterfaceLock other;
  EXPECT_EQ(other.acquire(name + "x"), "") << "a longer name is another one";
  { const InterfaceLock released(std::move(first)); }
  InterfaceLock third;
  EXPECT_EQ(third.acquire(name), "");
}

}  // namespace
}  // namespace gradgate::dataplane
