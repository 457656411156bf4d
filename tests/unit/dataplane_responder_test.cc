// SPDX-License-Identifier: Apache-2.0
// What a port without a kernel answers: ARP, neighbour discovery, ping.
#include "dataplane/responder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "wire/checksum.h"
#include "wire/gg_build.h"

namespace gradgate::dataplane {
namespace {

using Bytes = std::vector<uint8_t>;

const Mac kOwnMac{0x02, 0, 0, 0, 0, 1};
const Mac kOtherMac{0x02, 0, 0, 0, 0, 2};
const Ip4 kOwnIp{10, 1, 0, 1};
const Ip4 kOtherIp{10, 1, 0, 9};
const Ip6 kOwnIp6{0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
const Ip6 kOtherIp6{0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};

OwnAddresses own_addresses() {
  return {kOwnMac, {kOwnIp}, {kOwnIp6}};
}

SlowPath answer(Bytes& frame, Learnt& learnt, uint32_t room = 2048) {
  uint32_t bytes = static_cast<uint32_t>(frame.size());
  frame.resize(std::max<size_t>(frame.size(), room));
  const SlowPath what = respond(own_addresses(), frame.data(), bytes, room, learnt);
  frame.resize(bytes);
  return what;
}

SlowPath answer(Bytes& frame) {
  Learnt learnt;
  return answer(frame, learnt);
}

TEST(Responder, AnswersArpForItsOwnAddressOnly) {
  Bytes frame(kArpFrameBytes);
  write_arp_request(frame.data(), kOtherMac.data(), kOtherIp.data(), kOwnIp);
  const Bytes request = frame;
  Learnt learnt;
  ASSERT_EQ(answer(frame, learnt), SlowPath::kReply);
  EXPECT_TRUE(learnt.valid);
  EXPECT_EQ(learnt.ip, kOtherIp);
  EXPECT_EQ(learnt.mac, kOtherMac);
  ASSERT_EQ(frame.size(), kArpFrameBytes);
  // 02:…:02 <- 02:…:01, reply, 10.1.0.1 is at 02:…:01, told to 10.1.0.9
  const Bytes expected{2, 0, 0, 0, 0, 2, 2, 0,  0, 0, 0, 1, 8, 6, 0, 1, 8, 0,  6, 4, 0,
                       2, 2, 0, 0, 0, 0, 1, 10, 1, 0, 1, 2, 0, 0, 0, 0, 2, 10, 1, 0, 9};
  EXPECT_EQ(Bytes(frame.begin(), frame.begin() + 42), expected);

  Learnt from_reply;
  Bytes reply(frame);  // now somebody's reply, but to another host
  EXPECT_EQ(answer(reply, from_reply), SlowPath::kNotForUs);
  EXPECT_FALSE(from_reply.valid);
  std::copy(kOwnIp.begin(), kOwnIp.end(), frame.begin() + 38);
  EXPECT_EQ(answer(frame, from_reply), SlowPath::kTaken);
  EXPECT_TRUE(from_reply.valid);

  Bytes other = request;
  other[41] ^= 0xFF;
  EXPECT_EQ(answer(other), SlowPath::kNotForUs);
  Bytes truncated(request.begin(), request.begin() + 41);
  EXPECT_EQ(answer(truncated), SlowPath::kNotForUs);
  Bytes multicast = request;
  multicast[GG_ETH_BYTES + 8] |= 1;
  EXPECT_EQ(answer(multicast), SlowPath::kNotForUs) << "no multicast address in the table";
}

gg_path path_to_us() {
  gg_path path{};
  std::copy(kOtherMac.begin(), kOtherMac.end(), path.source_mac);
  std::copy(kOwnMac.begin(), kOwnMac.end(), path.destination_mac);
  std::copy(kOtherIp.begin(), kOtherIp.end(), path.source_ip);
  std::copy(kOwnIp.begin(), kOwnIp.end(), path.destination_ip);
  return path;
}

Bytes ping4(uint32_t data_bytes) {
  Bytes frame(GG_ETH_BYTES + GG_IPV4_BYTES + 8 + data_bytes, 0x5A);
  const gg_path path = path_to_us();
  gg_put_ethernet(frame.data(), &path, GG_ETHERTYPE_IPV4);
  uint8_t* ip = frame.data() + GG_ETH_BYTES;
  gg_put_ipv4(ip, &path, static_cast<uint16_t>(frame.size() - GG_ETH_BYTES));
  ip[9] = 1;
  gg_put16(ip + 10, 0);
  gg_put16(ip + 10, static_cast<uint16_t>(~wire::sum16(ip, GG_IPV4_BYTES)));
  uint8_t* icmp = ip + GG_IPV4_BYTES;
  icmp[0] = 8;
  icmp[1] = 0;
  gg_put16(icmp + 2, 0);
  gg_put16(icmp + 2, static_cast<uint16_t>(~wire::sum16(icmp, 8 + data_bytes)));
  return frame;
}

TEST(Responder, AnswersPing) {
  for (const uint32_t data_bytes : {0u, 1u, 56u, 1401u}) {
    Bytes frame = ping4(data_bytes);
    const Bytes request = frame;
    ASSERT_EQ(answer(frame), SlowPath::kReply);
    const uint8_t* ip = frame.data() + GG_ETH_BYTES;
    EXPECT_EQ(wire::sum16(ip, GG_IPV4_BYTES), 0xFFFFu);
    EXPECT_EQ(wire::sum16(ip + GG_IPV4_BYTES, 8 + data_bytes), 0xFFFFu);
    EXPECT_EQ(ip[GG_IPV4_BYTES], 0);
    EXPECT_EQ(std::memcmp(frame.data(), kOtherMac.data(), 6), 0);
    EXPECT_EQ(std::memcmp(ip + 12, kOwnIp.data(), 4), 0);
    EXPECT_EQ(std::memcmp(ip + 16, kOtherIp.data(), 4), 0);
    EXPECT_TRUE(std::equal(frame.begin() + 38, frame.end(), request.begin() + 38)) << "identifier, sequence, data";
  }
  Bytes wrong = ping4(56);
  wrong.back() ^= 1;
  EXPECT_EQ(answer(wrong), SlowPath::kNotForUs);
  Bytes to_another = ping4(56);
  to_another[GG_ETH_BYTES + 19] ^= 1;
  EXPECT_EQ(answer(to_another), SlowPath::kNotForUs);
  Bytes fragment = ping4(56);
  fragment[GG_ETH_BYTES + 6] = 0x20;
  EXPECT_EQ(answer(fragment), SlowPath::kNotForUs);
  for (size_t bytes = 0; bytes < ping4(8).size(); ++bytes) {
    Bytes truncated = ping4(8);
    truncated.resize(bytes);
    EXPECT_EQ(answer(truncated), SlowPath::kNotForUs) << bytes;
  }
}

void finish6(Bytes& frame) {
  uint8_t* ip = frame.data() + GG_ETH_BYTES;
  const uint32_t icmp_bytes = static_cast<uint32_t>(frame.size()) - GG_ETH_BYTES - 40;
  gg_put16(ip + 4, static_cast<uint16_t>(icmp_bytes));
  gg_put16(ip + 42, 0);
  gg_put16(ip + 42, static_cast<uint16_t>(~gg_sum_fold(uint64_t{wire::sum16(ip + 8, 32)} + icmp_bytes + 58 +
                                                       wire::sum16(ip + 40, icmp_bytes))));
}

bool checksum6_valid(const Bytes& frame) {
  const uint8_t* ip = frame.data() + GG_ETH_BYTES;
  const uint32_t icmp_bytes = gg_get16(ip + 4);
  return GG_ETH_BYTES + 40 + icmp_bytes == frame.size() &&
         gg_sum_fold(uint64_t{wire::sum16(ip + 8, 32)} + icmp_bytes + 58 + wire::sum16(ip + 40, icmp_bytes)) == 0xFFFF;
}

Bytes icmpv6(uint8_t type, const Ip6& source, const Ip6& destination, const Bytes& body) {
  Bytes frame(GG_ETH_BYTES + 40 + 4 + body.size());
  const gg_path path = path_to_us();
  gg_put_ethernet(frame.data(), &path, 0x86DD);
  uint8_t* ip = frame.data() + GG_ETH_BYTES;
  ip[0] = 0x60;
  ip[6] = 58;
  ip[7] = 255;
  std::copy(source.begin(), source.end(), ip + 8);
  std::copy(destination.begin(), destination.end(), ip + 24);
  ip[40] = type;
  std::copy(body.begin(), body.end(), ip + 44);
  finish6(frame);
  return frame;
}

Bytes solicitation(const Ip6& source, const Ip6& target, bool with_option) {
  Ip6 group{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, 0, 0, 1};
  Bytes body(4);
  body.insert(body.end(), target.begin(), target.end());
  if (with_option) {
    body.insert(body.end(), {1, 1});
    body.insert(body.end(), kOtherMac.begin(), kOtherMac.end());
  }
  return icmpv6(135, source, group, body);
}

TEST(Responder, AnswersNeighbourSolicitations) {
  for (const bool with_option : {true, false}) {
    Bytes frame = solicitation(kOtherIp6, kOwnIp6, with_option);
    ASSERT_EQ(answer(frame), SlowPath::kReply);
    EXPECT_TRUE(checksum6_valid(frame));
    const uint8_t* ip = frame.data() + GG_ETH_BYTES;
    EXPECT_EQ(std::memcmp(frame.data(), kOtherMac.data(), 6), 0);
    EXPECT_EQ(std::memcmp(ip + 8, kOwnIp6.data(), 16), 0);
    EXPECT_EQ(std::memcmp(ip + 24, kOtherIp6.data(), 16), 0);
    EXPECT_EQ(ip[7], 255);
    EXPECT_EQ(ip[40], 136);
    EXPECT_EQ(gg_get32(ip + 44), 0x60000000u);
    EXPECT_EQ(std::memcmp(ip + 48, kOwnIp6.data(), 16), 0);
    EXPECT_EQ(gg_get16(ip + 64), 0x0201);
    EXPECT_EQ(std::memcmp(ip + 66, kOwnMac.data(), 6), 0);
  }
  Bytes duplicate_detection = solicitation(Ip6{}, kOwnIp6, false);
  ASSERT_EQ(answer(duplicate_detection), SlowPath::kReply);
  EXPECT_TRUE(checksum6_valid(duplicate_detection));
  EXPECT_EQ(duplicate_detection[0], 0x33) << "to all nodes (RFC 4861 section 7.2.4)";

  Bytes another = solicitation(kOtherIp6, kOtherIp6, true);
  EXPECT_EQ(answer(another), SlowPath::kNotForUs);
  Bytes routed = solicitation(kOtherIp6, kOwnIp6, true);
  routed[GG_ETH_BYTES + 7] = 254;
  EXPECT_EQ(answer(routed), SlowPath::kNotForUs) << "came through a router";
  Bytes no_room = solicitation(kOtherIp6, kOwnIp6, false);
  Learnt learnt;
  EXPECT_EQ(answer(no_room, learnt, static_cast<uint32_t>(no_room.size())), SlowPath::kNotForUs);
}

TEST(Responder, AnswersPing6) {
  Bytes frame = icmpv6(128, kOtherIp6, kOwnIp6, {1, 2, 0, 1, 'x', 'y', 'z'});
  const Bytes request = frame;
  ASSERT_EQ(answer(frame), SlowPath::kReply);
  EXPECT_TRUE(checksum6_valid(frame));
  EXPECT_EQ(frame[GG_ETH_BYTES + 40], 129);
  EXPECT_EQ(std::memcmp(frame.data() + GG_ETH_BYTES + 24, kOtherIp6.data(), 16), 0);
  EXPECT_TRUE(std::equal(frame.begin() + 58, frame.end(), request.begin() + 58));
  Bytes wrong = request;
  wrong.back() ^= 1;
  EXPECT_EQ(answer(wrong), SlowPath::kNotForUs);
}

}  // namespace
}  // namespace gradgate::dataplane
