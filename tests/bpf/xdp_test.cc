// SPDX-License-Identifier: Apache-2.0
// The XDP program by BPF_PROG_TEST_RUN on the packets of the C++ parser's test, and once with a real AF_XDP socket.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/xsk.h>

#include <array>
#include <chrono>
#include <numeric>
#include <tuple>

#include "tests/bpf/bpf_fixture.h"
#include "tests/bpf/parse_result.h"
#include "tests/unit/packet_table.h"
#include "wire/gg_xdp.h"

namespace gradgate {
namespace {

using test::BpfObject;
using test::Bytes;
using test::make_packet;
using test::PacketCase;

// The kernel refuses to run a program on less than an Ethernet header.
constexpr size_t kMinTestRunBytes = ETH_HLEN;

struct Counters {
  std::array<uint64_t, GG_DROP_COUNT> drops{};
  std::array<uint64_t, GG_XDP_VERDICT_COUNT> verdicts{};
};

template <size_t kCount>
void read_per_cpu(int map, std::array<uint64_t, kCount>& out) {
  std::vector<uint64_t> values(static_cast<size_t>(libbpf_num_possible_cpus()));
  for (uint32_t key = 0; key < kCount; ++key) {
    ASSERT_EQ(bpf_map_lookup_elem(map, &key, values.data()), 0);
    out[key] = std::accumulate(values.begin(), values.end(), uint64_t{0});
  }
}

class XdpProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = test::bpf_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
    object_ = std::make_unique<BpfObject>(GRADGATE_BPF_OBJECT);
    ASSERT_TRUE(object_->loaded()) << GRADGATE_BPF_OBJECT << " does not load; libbpf says why above";
    configure({test::kSite, test::kBasePort, GG_MAX_LANES, 0, {}});
  }

  void configure(const gg_xdp_config& config) {
    const uint32_t key = 0;
    ASSERT_EQ(bpf_map_update_elem(object_->map(GG_XDP_CONFIG_MAP), &key, &config, BPF_ANY), 0);
  }

  Counters counters() const {
    Counters out;
    read_per_cpu(object_->map(GG_XDP_DROP_MAP), out.drops);
    read_per_cpu(object_->map(GG_XDP_VERDICT_MAP), out.verdicts);
    return out;
  }

  // Runs the program on `packet` and expects what the C++ parser's result `expect` means for a queue without socket.
  void expect_outcome(const Bytes& packet, int expect) {
    Counters want = counters();
    int action = XDP_DROP;
    if (expect == GG_PARSE_NOT_OURS) {
      action = XDP_PASS;
      ++want.verdicts[GG_XDP_VERDICT_PASS];
    } else if (expect == GG_PARSE_OURS) {
      ++want.verdicts[GG_XDP_VERDICT_NO_SOCKET];
    } else {
      ++want.verdicts[GG_XDP_VERDICT_DROP];
      ++want.drops[static_cast<size_t>(expect)];
    }
    ASSERT_EQ(object_->run(packet), action);
    const Counters have = counters();
    ASSERT_EQ(have.drops, want.drops);
    ASSERT_EQ(have.verdicts, want.verdicts);
  }

  std::unique_ptr<BpfObject> object_;
};

TEST_F(XdpProgram, DoesWithEveryPacketOfTheTableWhatItSays) {
  for (const auto& table : {test::good_packets(), test::bad_packets()}) {
    for (const PacketCase& packet : table) {
      if (packet.bytes.size() < kMinTestRunBytes) continue;
      SCOPED_TRACE(packet.name);
      ASSERT_NO_FATAL_FAILURE(expect_outcome(packet.bytes, packet.expect));
    }
  }
}

TEST_F(XdpProgram, AgreesWithTheCxxBuildOnRandomPackets) {
  for (const Bytes& packet : test::random_packets(2, 3000, kMinTestRunBytes)) {
    gg_packet out{};
    const int expect = gg_parse(packet.data(), packet.data() + packet.size(), test::kBasePort, &out);
    const bool other_site = expect == GG_PARSE_OURS && gg_label_site(out.link.label) != test::kSite;
    ASSERT_NO_FATAL_FAILURE(expect_outcome(packet, other_site ? static_cast<int>(GG_DROP_BAD_LABEL) : expect));
  }
}

TEST_F(XdpProgram, PassesEverythingUntilConfigured) {
  configure({0, test::kBasePort, GG_MAX_LANES, 0, {}});
  expect_outcome(make_packet(), GG_PARSE_NOT_OURS);
  for (const PacketCase& packet : test::bad_packets()) {
    if (packet.bytes.size() >= kMinTestRunBytes) {
      ASSERT_NO_FATAL_FAILURE(expect_outcome(packet.bytes, GG_PARSE_NOT_OURS)) << packet.name;
    }
  }
}

TEST_F(XdpProgram, DropsLanesAndSitesThatAreNotConfigured) {
  configure({test::kSite, test::kBasePort, 4, 0, {}});
  expect_outcome(make_packet({.lane = 3}), GG_PARSE_OURS);
  expect_outcome(make_packet({.lane = 4}), GG_DROP_BAD_LANE);
  expect_outcome(make_packet({.label = gg_label(2, 7)}), GG_DROP_BAD_LABEL);
  expect_outcome(make_packet({.label = gg_label(test::kSite, GG_CONTEXT_MASK)}), GG_PARSE_OURS);
}

TEST_F(XdpProgram, LeavesPacketsToOtherHostsToTheKernel) {
  Bytes malformed = make_packet();
  malformed[42] = 0;
  gg_xdp_config config{test::kSite, test::kBasePort, 8, 1, {{10, 1, 0, 2}}};
  configure(config);
  expect_outcome(make_packet(), GG_PARSE_NOT_OURS);
  expect_outcome(malformed, GG_PARSE_NOT_OURS);
  expect_outcome(make_packet({.modality = GG_MODALITY_ETHERNET}), GG_PARSE_OURS);
  config.address_count = GG_XDP_MAX_ADDRESSES;
  std::memcpy(config.addresses[GG_XDP_MAX_ADDRESSES - 1], test::kOwnAddress, 4);
  configure(config);
  expect_outcome(make_packet(), GG_PARSE_OURS);
  expect_outcome(malformed, GG_DROP_BAD_MAGIC);
}

TEST(BpfParser, FindsTheSameOffsetsAsTheCxxBuild) {
  if (const std::string reason = test::bpf_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const BpfObject object(PARSE_BPF_OBJECT);
  ASSERT_TRUE(object.loaded());
  std::vector<Bytes> packets = test::random_packets(3, 20000, kMinTestRunBytes);
  for (const PacketCase& packet : test::good_packets()) packets.push_back(packet.bytes);
  size_t ours = 0;
  for (const Bytes& packet : packets) {
    gg_packet want{};
    const int expect = gg_parse(packet.data(), packet.data() + packet.size(), test::kBasePort, &want);
    ASSERT_EQ(object.run(packet), XDP_PASS);
    parse_result have{};
    const uint32_t key = 0;
    ASSERT_EQ(bpf_map_lookup_elem(object.map("parse_results"), &key, &have), 0);
    ASSERT_EQ(have.result, expect);
    if (expect != GG_PARSE_OURS) continue;
    ++ours;
    const auto fields = [](const gg_packet& p) {
      return std::tuple(p.modality, p.ce, p.l3_offset, p.udp_offset, p.link_offset, p.length, p.udp_port, p.link.flags,
                        p.link.lane, p.link.label, p.link.number, p.link.link);
    };
    ASSERT_EQ(fields(have.packet), fields(want));
  }
  EXPECT_GT(ours, 1000u);
}

// An AF_XDP socket in copy mode on queue 0 of an interface, receiving only.
class XskReceiver {
 public:
  explicit XskReceiver(const char* ifname) {
    buffer_ = mmap(nullptr, kFrames * kFrameBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const xsk_umem_config umem{kFrames, kFrames, kFrameBytes, 0, 0};
    error_ = xsk_umem__create(&umem_, buffer_, kFrames * kFrameBytes, &fill_, &completion_, &umem);
    if (error_ != 0) return;
    xsk_socket_config config{};
    config.rx_size = kFrames;
    config.tx_size = kFrames;
    config.libbpf_flags = XSK_LIBBPF_FLAGS__INHIBIT_PROG_LOAD;
    config.bind_flags = XDP_COPY;
    error_ = xsk_socket__create(&socket_, ifname, 0, umem_, &rx_, &tx_, &config);
    if (error_ != 0) return;
    uint32_t at = 0;
    xsk_ring_prod__reserve(&fill_, kFrames, &at);
    for (uint64_t i = 0; i < kFrames; ++i) *xsk_ring_prod__fill_addr(&fill_, at + i) = i * kFrameBytes;
    xsk_ring_prod__submit(&fill_, kFrames);
  }
  ~XskReceiver() {
    xsk_socket__delete(socket_);
    xsk_umem__delete(umem_);
    munmap(buffer_, kFrames * kFrameBytes);
  }
  XskReceiver(const XskReceiver&) = delete;
  XskReceiver& operator=(const XskReceiver&) = delete;

  int error() const { return error_; }
  int fd() const { return xsk_socket__fd(socket_); }

  // The next packet; empty when none came within two seconds.
  Bytes receive() {
    pollfd waiting{fd(), POLLIN, 0};
    uint32_t at = 0;
    if (poll(&waiting, 1, 2000) != 1 || xsk_ring_cons__peek(&rx_, 1, &at) != 1) return {};
    const xdp_desc* descriptor = xsk_ring_cons__rx_desc(&rx_, at);
    const auto* data = static_cast<const uint8_t*>(xsk_umem__get_data(buffer_, descriptor->addr));
    Bytes packet(data, data + descriptor->len);
    xsk_ring_cons__release(&rx_, 1);
    return packet;
  }

 private:
  static constexpr uint32_t kFrames = 64;
  static constexpr uint32_t kFrameBytes = 4096;
  void* buffer_ = nullptr;
  xsk_umem* umem_ = nullptr;
  xsk_socket* socket_ = nullptr;
  xsk_ring_prod fill_{};
  xsk_ring_prod tx_{};
  xsk_ring_cons completion_{};
  xsk_ring_cons rx_{};
  int error_ = 0;
};

int packet_socket(const char* ifname) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(ifname));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  return fd;
}

TEST_F(XdpProgram, RedirectsToTheSocketAndLeavesTheRestToTheKernel) {
  const test::VethNamespace network;
  if (!network.error().empty()) GTEST_SKIP() << network.error();
  ASSERT_TRUE(test::attach("va", object_->program())) << std::strerror(errno);
  XskReceiver receiver("va");
  ASSERT_EQ(receiver.error(), 0) << std::strerror(-receiver.error());
  const uint32_t queue = 0;
  const int socket = receiver.fd();
  ASSERT_EQ(bpf_map_update_elem(object_->map(GG_XDP_SOCKET_MAP), &queue, &socket, BPF_ANY), 0);

  const int sender = packet_socket("vb");
  const int kernel = packet_socket("va");
  ASSERT_GE(sender, 0);
  ASSERT_GE(kernel, 0);
  const auto transmit = [&](const Bytes& packet) {
    ASSERT_EQ(send(sender, packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
  };

  const std::vector<PacketCase> good = test::good_packets();
  for (const PacketCase& packet : good) {
    transmit(packet.bytes);
    ASSERT_EQ(receiver.receive(), packet.bytes) << packet.name;
  }
  Bytes malformed = make_packet();
  malformed[42] = 0;
  transmit(malformed);
  Bytes other = make_packet();
  gg_put16(other.data() + 36, 53);
  transmit(other);

  // The kernel's side of va sees what was passed, in order: the malformed packet would have come before this one.
  bool passed = false;
  while (!passed) {
    pollfd waiting{kernel, POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 2000), 1) << "the packet to another port did not reach the kernel";
    Bytes packet(4096);
    sockaddr_ll from{};
    socklen_t from_bytes = sizeof from;
    const ssize_t size =
        recvfrom(kernel, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
    ASSERT_GT(size, 0);
    if (from.sll_pkttype == PACKET_OUTGOING) continue;
    packet.resize(static_cast<size_t>(size));
    ASSERT_NE(packet, malformed);
    passed = packet == other;
  }
  close(sender);
  close(kernel);

  const Counters have = counters();
  EXPECT_EQ(have.verdicts[GG_XDP_VERDICT_REDIRECT], good.size());
  EXPECT_EQ(have.verdicts[GG_XDP_VERDICT_DROP], 1u);
  EXPECT_EQ(have.verdicts[GG_XDP_VERDICT_NO_SOCKET], 0u);
  EXPECT_EQ(have.drops[GG_DROP_BAD_MAGIC], 1u);
}

}  // namespace
}  // namespace gradgate
