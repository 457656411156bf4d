// SPDX-License-Identifier: Apache-2.0
// The whole data plane under a control made by hand: a port on a veth interface through AF_XDP, one on a tap interface
// where no kernel answers for it, two lcores and two lanes. EAL starts once a process, so one fixture for all.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "dataplane/preflight.h"
#include "dataplane/start.h"
#include "dataplane/xdp.h"
#include "tests/bpf/bpf_fixture.h"
#include "wire/checksum.h"

/// The AF_XDP PMD of DPDK 22.11 frees neither its UMEM nor the BPF object it loaded (facts 3.2, 7).
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libxdp.so\nleak:libbpf.so\n";
}

namespace gradgate {
namespace {

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr uint16_t kBasePort = GG_DEFAULT_UDP_PORT;
constexpr auto kDeadline = std::chrono::seconds(10);
constexpr uint32_t kPeerLink = 0x11110000;    // neighbour 0, on the veth
constexpr uint32_t kWorkerLink = 0x22220001;  // neighbour 1, behind the tap

bool eventually(const std::function<bool()>& condition) {
  for (const auto end = Clock::now() + kDeadline; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

Bytes link_packet(uint32_t link, uint8_t lane, uint32_t number, const gg_frame& frame, const Bytes& payload = {}) {
  Bytes packet(GG_LINK_BYTES + GG_FRAME_BYTES + payload.size() + GG_CRC_BYTES);
  const gg_link header{GG_HOPS_MASK, lane, gg_label(1, GG_CONTEXT_LINK), number, link};
  gg_link_put(packet.data(), &header);
  gg_frame sized = frame;
  sized.length = static_cast<uint16_t>(payload.size());
  gg_frame_put(packet.data() + GG_LINK_BYTES, &sized);
  std::copy(payload.begin(), payload.end(), packet.begin() + GG_LINK_BYTES + GG_FRAME_BYTES);
  const size_t covered = packet.size() - GG_CRC_BYTES;
  gg_put32(packet.data() + covered, wire::packet_crc32c(packet.data(), covered));
  return packet;
}

Bytes ping(uint32_t link, uint8_t lane, uint32_t number) {
  gg_frame frame{};
  frame.type = GG_PING;
  return link_packet(link, lane, number, frame);
}

Bytes ack_of(uint32_t link, uint8_t lane, uint32_t number, uint32_t acknowledged) {
  gg_frame frame{};
  frame.type = GG_ACK;
  frame.index = acknowledged;
  frame.count = 1;
  return link_packet(link, lane, number, frame, Bytes(4));
}

/// The wire that the veth interface is connected to: the other site's gateway.
class Wire {
 public:
  explicit Wire(const char* ifname, const std::array<uint8_t, 6>& gateway_mac)
      : fd_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL))) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(ifname));
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
    path_.modality = GG_MODALITY_UDP4;
    const uint8_t own_mac[6] = {0x02, 0, 0, 0, 0, 0x77};
    const uint8_t own_ip[4] = {10, 7, 0, 2}, gateway_ip[4] = {10, 7, 0, 1};
    std::copy_n(own_mac, 6, path_.source_mac);
    std::copy_n(gateway_mac.begin(), 6, path_.destination_mac);
    std::copy_n(own_ip, 4, path_.source_ip);
    std::copy_n(gateway_ip, 4, path_.destination_ip);
  }
  ~Wire() { ::close(fd_); }
  Wire(const Wire&) = delete;

  Bytes frame_of(const Bytes& packet, uint8_t lane) const {
    gg_path path = path_;
    path.source_port = path.destination_port = static_cast<uint16_t>(kBasePort + lane);
    Bytes frame(gg_header_bytes(GG_MODALITY_UDP4));
    gg_put_headers(frame.data(), &path, static_cast<uint16_t>(packet.size()),
                   wire::sum16(packet.data(), packet.size()));
    frame.insert(frame.end(), packet.begin(), packet.end());
    return frame;
  }
  void send_frame(const Bytes& frame) const {
    ASSERT_EQ(::send(fd_, frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
  }
  void send(const Bytes& packet, uint8_t lane) const { send_frame(frame_of(packet, lane)); }

  struct Received {
    gg_packet parsed;
    gg_frame frame;
    Bytes bytes;
  };
  /// The next packet of ours from the gateway that `wanted` accepts.
  std::optional<Received> receive(const std::function<bool(const Received&)>& wanted) const {
    for (const auto end = Clock::now() + kDeadline; Clock::now() < end;) {
      pollfd poll{fd_, POLLIN, 0};
      if (::poll(&poll, 1, 100) <= 0) continue;
      Received got;
      got.bytes.resize(4096);
      sockaddr_ll from{};
      socklen_t length = sizeof from;
      const ssize_t bytes =
          ::recvfrom(fd_, got.bytes.data(), got.bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (bytes <= 0 || from.sll_pkttype == PACKET_OUTGOING) continue;
      got.bytes.resize(static_cast<size_t>(bytes));
      const uint8_t* data = got.bytes.data();
      if (gg_parse(data, data + bytes, kBasePort, &got.parsed) != GG_PARSE_OURS) continue;
      gg_frame_get(data + got.parsed.link_offset + GG_LINK_BYTES, &got.frame);
      if (wanted(got)) return got;
    }
    return std::nullopt;
  }

 private:
  int fd_;
  gg_path path_{};
};

config::Site make_site() {
  config::Site site;
  site.name = "test";
  site.id = 1;
  site.ports.resize(2);
  site.ports[0].name = "lan";
  site.ports[0].device.text = "va";
  site.ports[0].mtu_bytes = 3498;
  site.ports[0].addresses = {*config::parse_cidr("10.7.0.1/24")};
  site.ports[1].name = "tap";
  site.ports[1].device = {config::PortDevice::Kind::kVdev, "net_tap0,iface=ggtap"};
  site.ports[1].addresses = {*config::parse_cidr("10.8.0.1/24"), *config::parse_cidr("fd00::1/64")};
  site.dataplane.lanes = 2;
  const std::vector<unsigned> cpus = dataplane::allowed_cpus();
  if (cpus.size() >= 2) site.dataplane.lcores = {cpus[0], cpus[1]};
  return site;
}

class DataplaneEal : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    skip_ = test::bpf_unavailable();
    if (skip_.empty() && access("/dev/net/tun", R_OK | W_OK) != 0) skip_ = "no /dev/net/tun";
    if (!skip_.empty()) return;
    network_ = std::make_unique<test::VethNamespace>();
    skip_ = network_->error();
    if (!skip_.empty()) return;
    // The peer behind vb answers no ARP: its address is the hello's only need.
    if (std::system("ip link set lo up && ip address add 10.7.0.1/24 dev va &&"
                    " ip neigh add 10.7.0.2 lladdr 02:00:00:00:00:77 dev va") != 0) {
      skip_ = "cannot set up va";
      return;
    }
    site_ = make_site();
    dataplane_ = dataplane::start(site_, {});
    if (std::system("ip address add 10.8.0.2/24 dev ggtap && ip address add 10.8.0.3/24 dev ggtap && ip address add "
                    "fd00::2/64 dev ggtap nodad &&"
                    " ip link set ggtap up") != 0)
      skip_ = "cannot set up ggtap";
  }

  static void TearDownTestSuite() {
    if (dataplane_ != nullptr) {
      dataplane_.reset();
      dataplane::AttachedXdp attached;
      EXPECT_EQ(dataplane::inspect("va", attached), "");
      EXPECT_EQ(attached.owner, dataplane::XdpOwner::kNone) << "a clean stop takes the program off";
    }
    network_.reset();
  }

  void SetUp() override {
    if (!skip_.empty()) GTEST_SKIP() << skip_;
  }

  /// A new generation with one peer on the veth, one worker behind the tap and perhaps a peer there too, in a fresh
  /// epoch.
  static std::shared_ptr<const core::Snapshot> publish(uint16_t worker_port, bool tap_peer = false) {
    auto core = std::make_shared<core::Snapshot>();
    core->generation = ++generation_;
    core->site = site_.id;
    auto snapshot = std::make_shared<dataplane::Snapshot>();

    core::LinkConfig link;
    link.neighbour = 0;
    link.remote_link = 0xAAAA0000;
    link.link_label = gg_label(2, GG_CONTEXT_LINK);
    link.trailer_crc = true;
    auto peer = std::make_shared<core::Neighbour>(link, 2);
    peer->peer = true;
    peer->local_link = kPeerLink;
    peer->source = dataplane::source_tag(std::array<uint8_t, 4>{10, 7, 0, 2}, 0);
    core->neighbours.push_back(peer);
    dataplane::Endpoint endpoint;
    endpoint.ip = {10, 7, 0, 2};
    endpoint.udp_port = kBasePort;
    snapshot->endpoints.push_back(endpoint);

    link.neighbour = 1;
    link.trailer_crc = false;
    auto worker = std::make_shared<core::Neighbour>(link, 2);
    worker->local_link = kWorkerLink;
    worker->source = dataplane::source_tag(std::array<uint8_t, 4>{10, 8, 0, 2}, worker_port);
    core->neighbours.push_back(worker);
    endpoint.port = 1;
    endpoint.ip = {10, 8, 0, 2};
    endpoint.udp_port = worker_port;
    endpoint.port_per_lane = false;
    snapshot->endpoints.push_back(endpoint);

    if (tap_peer) {
      link.neighbour = 2;
      core->neighbours.push_back(std::make_shared<core::Neighbour>(link, 2));
      core->neighbours.back()->peer = true;
      endpoint.ip = {10, 8, 0, 3};
      snapshot->endpoints.push_back(endpoint);
    }

    snapshot->core = core;
    dataplane_->publish(snapshot);
    EXPECT_TRUE(eventually([] { return dataplane_->adopted_generation() == generation_; }));
    return core;
  }

  static uint64_t lane_sum(core::Counter core::LaneCounters::*counter) {
    uint64_t sum = 0;
    for (const core::LaneCounters* lane : dataplane_->lane_counters()) sum += (lane->*counter).get();
    return sum;
  }

  static inline std::string skip_;
  static inline std::unique_ptr<test::VethNamespace> network_;
  static inline config::Site site_;
  static inline std::unique_ptr<dataplane::Dataplane> dataplane_;
  static inline uint64_t generation_ = 0;
};

TEST_F(DataplaneEal, PortsAreUp) {
  const auto ports = dataplane_->ports();
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].driver, "net_af_xdp (veth)");
  EXPECT_TRUE(ports[0].link_up);
  EXPECT_EQ(ports[0].buffers_free, ports[0].buffers - 2048) << "the fill ring's";
  EXPECT_EQ(dataplane_->lane_counters().size(), 2u);
  EXPECT_EQ(dataplane_->buffer_bytes(), 4096u);
  EXPECT_GT(dataplane_->admissible_buffers(), 8192u);
  EXPECT_LT(dataplane_->admissible_buffers(), 16384u - 4096u);
}

TEST_F(DataplaneEal, GreetsAPeerUntilItAnswersOnEveryLane) {
  const auto snapshot = publish(4000);
  const Wire wire("vb", dataplane_->ports()[0].mac);
  const auto hello = wire.receive([](const auto& got) { return got.parsed.link.number == 0; });
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->frame.type, GG_PING);
  EXPECT_EQ(hello->parsed.link.link, 0xAAAA0000u);
  EXPECT_EQ(hello->parsed.link.label, gg_label(2, GG_CONTEXT_LINK));

  // The peer's own hello: our data plane learns where it is and shows that it lives.
  wire.send(ping(kPeerLink, 0, 0), 0);
  const auto sign = wire.receive([](const auto& got) { return got.parsed.link.number != 0; });
  ASSERT_TRUE(sign);
  EXPECT_EQ(sign->frame.type, GG_PING);
  const uint8_t wire_mac[6] = {0x02, 0, 0, 0, 0, 0x77};
  EXPECT_EQ(std::memcmp(sign->bytes.data(), wire_mac, 6), 0);
  wire.send(ack_of(kPeerLink, 0, 1, sign->parsed.link.number), 0);
  EXPECT_TRUE(eventually([&] { return snapshot->neighbours[0]->lanes[0]->smoothed_rtt() != 0; }));

  // Lane 1 is another lcore's: by the ring there, by the shared transmit queue and the shared table back.
  wire.send(ping(kPeerLink, 1, 1), 1);
  const auto ack = wire.receive([](const auto& got) { return got.frame.type == GG_ACK && got.parsed.link.lane == 1; });
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->parsed.udp_port, kBasePort + 1);
  EXPECT_EQ(gg_get16(ack->bytes.data() + ack->parsed.udp_offset), kBasePort + 1) << "source port";
  EXPECT_EQ(std::memcmp(ack->bytes.data(), wire_mac, 6), 0);
  EXPECT_EQ(ack->frame.index, 1u);
  const uint8_t* at = ack->bytes.data() + ack->parsed.link_offset;
  const uint32_t covered = ack->parsed.length - GG_CRC_BYTES;
  EXPECT_EQ(gg_get32(at + covered), wire::packet_crc32c(at, covered));
}

TEST_F(DataplaneEal, AnswersWhereNoKernelDoes) {
  EXPECT_EQ(std::system("ping -c 1 -W 5 -q 10.8.0.1 >/dev/null"), 0) << "ARP and ICMP";
  EXPECT_EQ(std::system("ping -6 -c 1 -W 5 -q fd00::1 >/dev/null"), 0) << "neighbour discovery and ICMPv6";
  EXPECT_GE(dataplane_->ports()[1].answered, 4u);
}

TEST_F(DataplaneEal, AsksForAPeersAddressWhereNoKernelDoes) {
  const int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ARP));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ARP);
  address.sll_ifindex = static_cast<int>(if_nametoindex("ggtap"));
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const uint64_t answered = dataplane_->ports()[1].answered;
  publish(4000, true);
  const uint8_t request[] = {0, 1, 8, 0, 6, 4, 0, 1}, own_ip[] = {10, 8, 0, 1}, peer_ip[] = {10, 8, 0, 3};
  EXPECT_TRUE(eventually([&] {
    uint8_t frame[128];
    return ::recv(fd, frame, sizeof frame, MSG_DONTWAIT) == 60 && std::memcmp(frame + 14, request, 8) == 0 &&
           std::memcmp(frame + 28, own_ip, 4) == 0 && std::memcmp(frame + 38, peer_ip, 4) == 0 &&
           std::memcmp(frame + 22, dataplane_->ports()[1].mac.data(), 6) == 0;
  }));
  EXPECT_TRUE(eventually([&] { return dataplane_->ports()[1].answered > answered; })) << "the kernel's reply is taken";
  ::close(fd);
}

TEST_F(DataplaneEal, AWorkersKernelSocketIsAnsweredOnBothLanes) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  ::inet_pton(AF_INET, "10.8.0.2", &own.sin_addr);
  socklen_t length = sizeof own;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length), 0);
  publish(ntohs(own.sin_port));
  for (uint8_t lane = 0; lane < 2; ++lane) {
    sockaddr_in gateway = own;
    ::inet_pton(AF_INET, "10.8.0.1", &gateway.sin_addr);
    gateway.sin_port = htons(static_cast<uint16_t>(kBasePort + lane));
    const Bytes packet = ping(kWorkerLink, lane, 1);
    ASSERT_EQ(::sendto(fd, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&gateway), sizeof gateway),
              static_cast<ssize_t>(packet.size()));
    // The kernel drops what has a wrong UDP checksum.
    pollfd poll{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&poll, 1, 10'000), 1) << "lane " << int{lane};
    Bytes answer(2048);
    const ssize_t bytes = ::recv(fd, answer.data(), answer.size(), 0);
    ASSERT_GT(bytes, ssize_t{GG_LINK_BYTES + GG_FRAME_BYTES});
    EXPECT_EQ(answer[GG_LINK_BYTES], GG_ACK);
    EXPECT_EQ(answer[3], lane);
  }
  ::close(fd);
}

TEST_F(DataplaneEal, BooksBalanceAfterGarbage) {
  publish(4000);
  const Wire wire("vb", dataplane_->ports()[0].mac);
  std::mt19937 random(7);
  const auto redirected = [] { return dataplane_->ports()[0].xdp_redirected; };
  constexpr uint32_t kPackets = 2000;
  for (uint32_t i = 0; i < kPackets; ++i) {
    const auto lane = static_cast<uint8_t>(random() % 2);
    Bytes frame = wire.frame_of(ping(kPeerLink, lane, i + 1), lane);
    for (uint32_t flips = random() % 4; flips > 0; --flips)
      frame[42 + random() % (frame.size() - 42)] ^= static_cast<uint8_t>(1 + random() % 255);
    if (random() % 8 == 0) frame.resize(42 + random() % (frame.size() - 42));
    wire.send_frame(frame);
  }
  EXPECT_TRUE(eventually([&] {
    const dataplane::PortStatus port = dataplane_->ports()[0];
    return port.rx_packets + port.rx_missed == redirected() && redirected() > kPackets / 4;
  }));
  EXPECT_TRUE(eventually([] {
    const auto ports = dataplane_->ports();
    uint64_t received = 0, accounted = lane_sum(&core::LaneCounters::packets_received);
    for (const dataplane::PortStatus& port : ports) {
      received += port.rx_packets;
      accounted += port.answered;
      for (unsigned reason = 0; reason < GG_DROP_COUNT; ++reason)
        if (reason != GG_DROP_NO_ADDRESS && reason != GG_DROP_TX_FULL) accounted += port.drops[reason];
    }
    return received == accounted;
  })) << "packets received = answered + to lanes + dropped";
  uint64_t dropped = 0;
  for (const core::LaneCounters* lane : dataplane_->lane_counters())
    for (const core::Counter& reason : lane->packet_drops) dropped += reason.get();
  EXPECT_EQ(lane_sum(&core::LaneCounters::packets_received), lane_sum(&core::LaneCounters::packets_parsed) + dropped);
  EXPECT_GT(dropped, 0u);
  EXPECT_TRUE(eventually([] {
    const dataplane::PortStatus port = dataplane_->ports()[0];
    return port.buffers_free == port.buffers - 2048;
  })) << "buffers back in their pool: "
      << dataplane_->ports()[0].buffers_free;
}

TEST_F(DataplaneEal, SleepsWhenThereIsNothingToDo) {
  const auto sleeps = [] {
    uint64_t sum = 0;
    for (const dataplane::LcoreStatus& lcore : dataplane_->lcores()) sum += lcore.sleeps;
    return sum;
  };
  const uint64_t before = sleeps();
  EXPECT_TRUE(eventually([&] { return sleeps() > before + 4; }));
}

}  // namespace
}  // namespace gradgate
