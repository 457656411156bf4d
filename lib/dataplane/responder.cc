// SPDX-License-Identifier: Apache-2.0
#include "dataplane/responder.h"

#include <algorithm>
#include <cstring>

#include "wire/checksum.h"
#include "wire/gg_build.h"

namespace gradgate::dataplane {

namespace {

constexpr uint16_t kEthertypeArp = 0x0806;
constexpr uint16_t kEthertypeIpv6 = 0x86DD;
constexpr uint32_t kIpv6Bytes = 40;
constexpr uint8_t kIcmp = 1, kIcmpv6 = 58;

// RFC 826 for Ethernet and IPv4, offsets in the ARP body.
constexpr uint32_t kArpBytes = 28;
constexpr uint8_t kArpHead[6] = {0, 1, 8, 0, 6, 4};
constexpr uint16_t kArpRequest = 1, kArpReply = 2;

template <typename Address>
bool is_own(const std::vector<Address>& own, const uint8_t* address) {
  return std::any_of(own.begin(), own.end(),
                     [&](const Address& one) { return std::memcmp(one.data(), address, one.size()) == 0; });
}

void answer_sender(const OwnAddresses& own, uint8_t* frame) {
  std::memcpy(frame, frame + 6, 6);
  std::memcpy(frame + 6, own.mac.data(), 6);
}

SlowPath respond_arp(const OwnAddresses& own, uint8_t* frame, uint32_t bytes, Learnt& learnt) {
  uint8_t* arp = frame + GG_ETH_BYTES;
  if (bytes < GG_ETH_BYTES + kArpBytes || std::memcmp(arp, kArpHead, sizeof kArpHead) != 0) return SlowPath::kNotForUs;
  const uint16_t operation = gg_get16(arp + 6);
  if (!is_own(own.ip4, arp + 24) || (operation != kArpRequest && operation != kArpReply)) return SlowPath::kNotForUs;
  const bool multicast = (arp[8] & 1) != 0;
  if (multicast) return SlowPath::kNotForUs;
  learnt.valid = true;
  std::copy_n(arp + 8, 6, learnt.mac.begin());
  std::copy_n(arp + 14, 4, learnt.ip.begin());
  if (operation == kArpReply) return SlowPath::kTaken;
  Ip4 asked;
  std::copy_n(arp + 24, 4, asked.begin());
  answer_sender(own, frame);
  gg_put16(arp + 6, kArpReply);
  std::memmove(arp + 18, arp + 8, 10);  // the asker's addresses become the target's
  std::memcpy(arp + 8, own.mac.data(), 6);
  std::memcpy(arp + 14, asked.data(), 4);
  return SlowPath::kReply;
}

SlowPath respond_icmp(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes) {
  uint8_t* ip = frame + GG_ETH_BYTES;
  if (bytes < GG_ETH_BYTES + GG_IPV4_BYTES || ip[0] >> 4 != 4 || ip[9] != kIcmp || !is_own(own.ip4, ip + 16))
    return SlowPath::kNotForUs;
  const uint32_t header = (ip[0] & 0x0Fu) * 4;
  const uint32_t total = gg_get16(ip + 2);
  const bool fragment = (gg_get16(ip + 6) & 0x3FFF) != 0;
  if (header != GG_IPV4_BYTES || fragment || total < header + 8 || GG_ETH_BYTES + total > bytes)
    return SlowPath::kNotForUs;
  uint8_t* icmp = ip + header;
  const uint32_t icmp_bytes = total - header;
  if (icmp[0] != 8 || icmp[1] != 0 || wire::sum16(icmp, icmp_bytes) != 0xFFFF) return SlowPath::kNotForUs;
  answer_sender(own, frame);
  std::swap_ranges(ip + 12, ip + 16, ip + 16);
  ip[8] = 64;
  gg_put16(ip + 10, 0);
  gg_put16(ip + 10, static_cast<uint16_t>(~wire::sum16(ip, header)));
  icmp[0] = 0;
  gg_put16(icmp + 2, 0);
  gg_put16(icmp + 2, static_cast<uint16_t>(~wire::sum16(icmp, icmp_bytes)));
  bytes = GG_ETH_BYTES + total;
  return SlowPath::kReply;
}

uint16_t icmpv6_checksum(const uint8_t* ip, uint32_t icmp_bytes) {
  const uint64_t sum = uint64_t{wire::sum16(ip + 8, 32)} + icmp_bytes + kIcmpv6 +
                       wire::sum16(ip + kIpv6Bytes, icmp_bytes);  // RFC 8200 section 8.1
  return static_cast<uint16_t>(~gg_sum_fold(sum));
}

void finish_icmpv6(uint8_t* ip, uint32_t icmp_bytes) {
  gg_put16(ip + 4, static_cast<uint16_t>(icmp_bytes));
  gg_put16(ip + kIpv6Bytes + 2, 0);
  gg_put16(ip + kIpv6Bytes + 2, icmpv6_checksum(ip, icmp_bytes));
}

SlowPath respond_echo6(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes, uint32_t icmp_bytes) {
  uint8_t* ip = frame + GG_ETH_BYTES;
  if (!is_own(own.ip6, ip + 24)) return SlowPath::kNotForUs;
  answer_sender(own, frame);
  std::swap_ranges(ip + 8, ip + 24, ip + 24);
  ip[7] = 64;
  ip[kIpv6Bytes] = 129;
  finish_icmpv6(ip, icmp_bytes);
  bytes = GG_ETH_BYTES + kIpv6Bytes + icmp_bytes;
  return SlowPath::kReply;
}

/// RFC 4861 section 7.2.3 and 7.2.4.
SlowPath respond_solicitation(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes, uint32_t room,
                              uint32_t icmp_bytes) {
  uint8_t* ip = frame + GG_ETH_BYTES;
  uint8_t* icmp = ip + kIpv6Bytes;
  constexpr uint32_t kAdvertisementBytes = 32;  // with the target link-layer address option
  const bool hop_limit_ok = ip[7] == 255;
  if (!hop_limit_ok || icmp_bytes < 24 || !is_own(own.ip6, icmp + 8)) return SlowPath::kNotForUs;
  if (room < GG_ETH_BYTES + kIpv6Bytes + kAdvertisementBytes) return SlowPath::kNotForUs;
  static constexpr Ip6 kUnspecified{};
  const bool duplicate_detection = std::memcmp(ip + 8, kUnspecified.data(), 16) == 0;
  answer_sender(own, frame);
  if (duplicate_detection) {
    static constexpr Ip6 kAllNodes{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    static constexpr Mac kAllNodesMac{0x33, 0x33, 0, 0, 0, 1};
    std::memcpy(frame, kAllNodesMac.data(), 6);
    std::memcpy(ip + 24, kAllNodes.data(), 16);
  } else {
    std::memcpy(ip + 24, ip + 8, 16);
  }
  std::memcpy(ip + 8, icmp + 8, 16);
  icmp[0] = 136;
  icmp[1] = 0;
  // Solicited (unless to all nodes) and Override; not a router.
  gg_put32(icmp + 4, duplicate_detection ? 0x20000000u : 0x60000000u);
  icmp[24] = 2;
  icmp[25] = 1;
  std::memcpy(icmp + 26, own.mac.data(), 6);
  finish_icmpv6(ip, kAdvertisementBytes);
  bytes = GG_ETH_BYTES + kIpv6Bytes + kAdvertisementBytes;
  return SlowPath::kReply;
}

SlowPath respond_icmpv6(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes, uint32_t room) {
  const uint8_t* ip = frame + GG_ETH_BYTES;
  if (bytes < GG_ETH_BYTES + kIpv6Bytes + 8 || ip[0] >> 4 != 6 || ip[6] != kIcmpv6) return SlowPath::kNotForUs;
  const uint32_t icmp_bytes = gg_get16(ip + 4);
  if (icmp_bytes < 8 || GG_ETH_BYTES + kIpv6Bytes + icmp_bytes > bytes) return SlowPath::kNotForUs;
  const bool checksum_ok = icmpv6_checksum(ip, icmp_bytes) == 0;
  if (!checksum_ok) return SlowPath::kNotForUs;
  if (ip[kIpv6Bytes] == 128) return respond_echo6(own, frame, bytes, icmp_bytes);
  if (ip[kIpv6Bytes] == 135) return respond_solicitation(own, frame, bytes, room, icmp_bytes);
  return SlowPath::kNotForUs;
}

}  // namespace

SlowPath respond(const OwnAddresses& own, uint8_t* frame, uint32_t& bytes, uint32_t room, Learnt& learnt) {
  if (bytes < GG_ETH_BYTES) return SlowPath::kNotForUs;
  switch (gg_get16(frame + 12)) {
    case kEthertypeArp:
      return respond_arp(own, frame, bytes, learnt);
    case GG_ETHERTYPE_IPV4:
      return respond_icmp(own, frame, bytes);
    case kEthertypeIpv6:
      return respond_icmpv6(own, frame, bytes, room);
    default:
      return SlowPath::kNotForUs;
  }
}

void write_arp_request(uint8_t* frame, const uint8_t* own_mac, const uint8_t* own_ip, const Ip4& target) {
  std::memset(frame, 0, kArpFrameBytes);
  std::memset(frame, 0xFF, 6);
  std::memcpy(frame + 6, own_mac, 6);
  gg_put16(frame + 12, kEthertypeArp);
  uint8_t* arp = frame + GG_ETH_BYTES;
  std::memcpy(arp, kArpHead, sizeof kArpHead);
  gg_put16(arp + 6, kArpRequest);
  std::memcpy(arp + 8, own_mac, 6);
  std::memcpy(arp + 14, own_ip, 4);
  std::memcpy(arp + 24, target.data(), 4);
}

}  // namespace gradgate::dataplane
