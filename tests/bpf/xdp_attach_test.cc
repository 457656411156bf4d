// SPDX-License-Identifier: Apache-2.0
// lib/dataplane/xdp.h on a veth pair in a network namespace of its own.
#include "dataplane/xdp.h"
#include "tests/bpf/bpf_fixture.h"
#include "tests/unit/packet_table.h"

namespace gradgate {
namespace {

using dataplane::AttachedXdp;
using dataplane::XdpMaps;
using dataplane::XdpMode;
using dataplane::XdpOwner;
using test::BpfObject;
using testing::Test;

class XdpAttach : public Test {
 protected:
  void SetUp() override {
    if (const std::string reason = test::bpf_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
    network_ = std::make_unique<test::VethNamespace>();
    if (!network_->error().empty()) GTEST_SKIP() << network_->error();
    ours_ = std::make_unique<BpfObject>(GRADGATE_BPF_OBJECT);
    foreign_ = std::make_unique<BpfObject>(PASS_BPF_OBJECT);
    ASSERT_TRUE(ours_->loaded());
    ASSERT_TRUE(foreign_->loaded());
  }

  static AttachedXdp inspected(const char* ifname) {
    AttachedXdp out;
    EXPECT_EQ(dataplane::inspect(ifname, out), "");
    return out;
  }

  std::unique_ptr<test::VethNamespace> network_;
  std::unique_ptr<BpfObject> ours_;
  std::unique_ptr<BpfObject> foreign_;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST_F(XdpAttach, InspectTellsNoneOursAndForeign) {
  EXPECT_EQ(inspected("va").owner, XdpOwner::kNone);

  ASSERT_TRUE(test::attach("va", ours_->program()));
  const AttachedXdp ours = inspected("va");
  EXPECT_EQ(ours.owner, XdpOwner::kOurs);
  EXPECT_EQ(ours.program_name, "gradgate_xdp");
  EXPECT_EQ(ours.mode, XdpMode::kNative);
  EXPECT_NE(ours.program_id, 0u);

  ASSERT_TRUE(test::attach("vb", foreign_->program(), XDP_FLAGS_SKB_MODE));
  const AttachedXdp foreign = inspected("vb");
  EXPECT_EQ(foreign.owner, XdpOwner::kForeign);
  EXPECT_EQ(foreign.program_name, "xdp_pass");
  EXPECT_EQ(foreign.mode, XdpMode::kGeneric);
  EXPECT_NE(foreign.program_id, ours.program_id);
}

TEST_F(XdpAttach, RemovesOursInEitherModeAndIsContentWithNone) {
  EXPECT_EQ(dataplane::remove_stale("va"), "");
  for (const uint32_t mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    ASSERT_TRUE(test::attach("va", ours_->program(), mode));
    EXPECT_EQ(dataplane::remove_stale("va"), "");
    EXPECT_EQ(inspected("va").owner, XdpOwner::kNone);
  }
}

TEST_F(XdpAttach, NeverRemovesAForeignProgram) {
  ASSERT_TRUE(test::attach("va", foreign_->program()));
  const std::string error = dataplane::remove_stale("va");
  EXPECT_TRUE(contains(error, "va: ")) << error;
  EXPECT_TRUE(contains(error, "xdp_pass")) << error;
  EXPECT_TRUE(contains(error, "ip link set dev va xdpdrv off")) << error;
  EXPECT_EQ(inspected("va").owner, XdpOwner::kForeign);

  XdpMaps maps;
  EXPECT_TRUE(contains(maps.open("va"), "is not ours"));
}

TEST_F(XdpAttach, SaysSoWhenALinkHoldsOurProgram) {
  const int link = bpf_link_create(ours_->program(), static_cast<int>(if_nametoindex("va")), BPF_XDP, nullptr);
  ASSERT_GE(link, 0) << std::strerror(errno);
  EXPECT_TRUE(contains(dataplane::remove_stale("va"), "bpf_link"));
  EXPECT_EQ(inspected("va").owner, XdpOwner::kOurs);
  close(link);
}

TEST_F(XdpAttach, FindsTheMapsOfTheAttachedProgramConfiguresAndReads) {
  XdpMaps none;
  EXPECT_TRUE(contains(none.open("va"), "no XDP program"));

  ASSERT_TRUE(test::attach("va", ours_->program()));
  XdpMaps found;
  ASSERT_EQ(found.open("va"), "");
  XdpMaps maps = std::move(found);
  XdpMaps::Verdicts verdicts{};
  XdpMaps::Drops drops{};
  const std::vector<uint8_t> good = test::make_packet();
  std::vector<uint8_t> malformed = good;
  malformed[42] = 0;

  ASSERT_EQ(ours_->run(good), XDP_PASS) << "not configured yet";
  ASSERT_EQ(maps.configure({test::kSite, test::kBasePort, 8, 1, {{10, 1, 0, 1}}}), "");
  ASSERT_EQ(ours_->run(good), XDP_DROP);
  ASSERT_EQ(ours_->run(malformed), XDP_DROP);
  ASSERT_EQ(maps.read_drops(drops), "");
  ASSERT_EQ(maps.read_verdicts(verdicts), "");
  EXPECT_EQ(drops[GG_DROP_BAD_MAGIC], 1u);
  EXPECT_EQ(verdicts[GG_XDP_VERDICT_NO_SOCKET], 1u);
  EXPECT_EQ(verdicts[GG_XDP_VERDICT_DROP], 1u);
  EXPECT_GE(verdicts[GG_XDP_VERDICT_PASS], 1u);
}

TEST_F(XdpAttach, RefusesAConfigurationThatCannotWork) {
  ASSERT_TRUE(test::attach("va", ours_->program()));
  XdpMaps maps;
  ASSERT_EQ(maps.open("va"), "");
  EXPECT_TRUE(contains(maps.configure({0, 9472, 8, 0, {}}), "site 0"));
  EXPECT_TRUE(contains(maps.configure({4096, 9472, 8, 0, {}}), "site 4096"));
  EXPECT_TRUE(contains(maps.configure({1, 0, 8, 0, {}}), "base UDP port 0"));
  EXPECT_TRUE(contains(maps.configure({1, 65473, 8, 0, {}}), "base UDP port 65473"));
  EXPECT_EQ(maps.configure({1, 65472, 8, 0, {}}), "");
  EXPECT_TRUE(contains(maps.configure({1, 9472, 0, 0, {}}), "lanes 0"));
  EXPECT_TRUE(contains(maps.configure({1, 9472, 65, 0, {}}), "lanes 65"));
  EXPECT_TRUE(contains(maps.configure({1, 9472, 8, 9, {}}), "addresses 9"));
}

TEST_F(XdpAttach, TellsAMissingInterface) {
  AttachedXdp attached;
  EXPECT_TRUE(contains(dataplane::inspect("nosuch0", attached), "no such network interface"));
  EXPECT_TRUE(contains(dataplane::remove_stale("nosuch0"), "no such network interface"));
  dataplane::InterfaceState state;
  EXPECT_EQ(dataplane::interface_state("nosuch0", state), "");
  EXPECT_FALSE(state.exists);
  EXPECT_EQ(dataplane::interface_state("a name longer than the kernel takes", state), "");
  EXPECT_FALSE(state.exists);
}

TEST_F(XdpAttach, ReadsTheStateOfAnInterface) {
  ASSERT_EQ(std::system("ip link set va address 02:00:00:00:00:2a && ip link set va mtu 1400 &&"
                        " ip link add many numrxqueues 3 numtxqueues 3 type veth peer name other"),
            0);
  dataplane::InterfaceState state;
  ASSERT_EQ(dataplane::interface_state("va", state), "");
  EXPECT_TRUE(state.exists);
  EXPECT_TRUE(state.up);
  EXPECT_TRUE(state.carrier);
  EXPECT_EQ(state.ifindex, if_nametoindex("va"));
  EXPECT_EQ(state.mtu, 1400u);
  EXPECT_EQ(state.rx_queues, 1u);
  EXPECT_EQ(state.mac, (std::array<uint8_t, 6>{2, 0, 0, 0, 0, 0x2A}));

  ASSERT_EQ(dataplane::interface_state("many", state), "");
  EXPECT_EQ(state.rx_queues, 3u);
  EXPECT_FALSE(state.up);
  EXPECT_FALSE(state.carrier);

  ASSERT_EQ(std::system("ip link set vb down"), 0);
  ASSERT_EQ(dataplane::interface_state("va", state), "");
  EXPECT_TRUE(state.up);
  EXPECT_FALSE(state.carrier) << "the peer is down";
}

}  // namespace
}  // namespace gradgate
