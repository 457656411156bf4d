// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/packet_table.h"
#include "wire/checksum.h"
#include "wire/gg_build.h"
#include "wire/gg_parse.h"
#include "wire/gg_wire.h"
#include "wire/gg_xdp.h"

namespace gradgate {
namespace {

using test::Bytes;
using test::make_packet;
using test::PacketCase;

// RFC 1071's definition, a word at a time.
uint16_t naive_sum16(const uint8_t* data, size_t length) {
  uint32_t sum = 0;
  for (size_t i = 0; i < length; i += 2) {
    sum += static_cast<uint32_t>(data[i]) << 8 | (i + 1 < length ? data[i + 1] : 0);
    if (sum > 0xFFFF) sum -= 0xFFFF;
  }
  return static_cast<uint16_t>(sum);
}

uint32_t bitwise_crc32c(const uint8_t* data, size_t length) {
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < length; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

Bytes random_bytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size) + 1);
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// In a block of exactly its size, so that the address sanitizer sees a read beyond the end.
int parse(const Bytes& packet, gg_packet& out) {
  const Bytes exact(packet);
  return gg_parse(exact.data(), exact.data() + exact.size(), test::kBasePort, &out);
}

TEST(LinkHeader, HasTheLayoutOfDesignSection4) {
  const gg_link link{GG_FLAG_ENCRYPTED | GG_FLAG_CE | 5, 0x2A, 0x11223344, 0x55667788, 0x99AABBCC};
  uint8_t bytes[GG_LINK_BYTES];
  gg_link_put(bytes, &link);
  const uint8_t expected[] = {0x47, 0x47, 0x2D, 0x2A, 0x11, 0x22, 0x33, 0x44,
                              0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC};
  static_assert(sizeof expected == 16 && GG_LINK_BYTES == 16);
  EXPECT_EQ(Bytes(bytes, bytes + sizeof bytes), Bytes(expected, expected + sizeof expected));

  gg_link back{};
  gg_link_get(bytes, &back);
  EXPECT_EQ(back.flags, link.flags);
  EXPECT_EQ(back.lane, link.lane);
  EXPECT_EQ(back.label, link.label);
  EXPECT_EQ(back.number, link.number);
  EXPECT_EQ(back.link, link.link);
}

TEST(LinkHeader, FlagsAreVersionEncryptedKeyPhaseCeHops) {
  EXPECT_EQ(GG_FLAG_ENCRYPTED, 0b00100000u);
  EXPECT_EQ(GG_FLAG_KEY_PHASE, 0b00010000u);
  EXPECT_EQ(GG_FLAG_CE, 0b00001000u);
  EXPECT_EQ(GG_HOPS_MASK, 0b00000111u);
  EXPECT_EQ(GG_FLAGS_MUTABLE, 0b00001111u);
}

TEST(FrameHeader, HasTheLayoutOfDesignSection4) {
  const gg_frame frame{GG_RESULT,  GG_BARRIER, GG_INT32, 0x0405, 0x06070809, 0x0A0B0C0D,
                       0x0E0F1011, 0x1213,     0x1415,   0x1617, 0x0002};
  uint8_t bytes[GG_FRAME_BYTES];
  gg_frame_put(bytes, &frame);
  const uint8_t expected[] = {0x03, 0x64, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D,
                              0x0E, 0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x00, 0x02};
  static_assert(sizeof expected == 24 && GG_FRAME_BYTES == 24);
  EXPECT_EQ(Bytes(bytes, bytes + sizeof bytes), Bytes(expected, expected + sizeof expected));

  gg_frame back{};
  gg_frame_get(bytes, &back);
  EXPECT_EQ(back.type, frame.type);
  EXPECT_EQ(back.kind, frame.kind);
  EXPECT_EQ(back.dtype, frame.dtype);
  EXPECT_EQ(back.length, frame.length);
  EXPECT_EQ(back.index, frame.index);
  EXPECT_EQ(back.call, frame.call);
  EXPECT_EQ(back.elements, frame.elements);
  EXPECT_EQ(back.source, frame.source);
  EXPECT_EQ(back.root, frame.root);
  EXPECT_EQ(back.count, frame.count);
  EXPECT_EQ(back.op, frame.op);
}

TEST(Label, IsTwelveBitsOfSiteAndTwentyOfContext) {
  EXPECT_EQ(gg_label(0xABC, 0x12345), 0xABC12345u);
  EXPECT_EQ(gg_label_site(0xABC12345), 0xABCu);
  EXPECT_EQ(gg_label_context(0xABC12345), 0x12345u);
  EXPECT_EQ(gg_label(1, 0x100000), 0x00100000u) << "a context too large must not change the site";
}

TEST(DropReasons, HaveDistinctNames) {
  std::set<std::string> names;
#define GG_NAME(symbol, name, text) names.insert(name);
  GG_DROP_REASONS(GG_NAME)
  EXPECT_EQ(names.size(), static_cast<size_t>(GG_DROP_COUNT));
  names.clear();
  GG_XDP_VERDICTS(GG_NAME)
#undef GG_NAME
  EXPECT_EQ(names.size(), static_cast<size_t>(GG_XDP_VERDICT_COUNT));
}

TEST(Parse, DoesWithEveryPacketOfTheTableWhatItSays) {
  for (const auto& table : {test::good_packets(), test::bad_packets()}) {
    for (const PacketCase& packet : table) {
      SCOPED_TRACE(packet.name);
      gg_packet out{};
      ASSERT_EQ(parse(packet.bytes, out), packet.expect);
      if (packet.expect != GG_PARSE_OURS) continue;
      EXPECT_EQ(out.modality, packet.udp_offset == GG_ETH_BYTES ? GG_MODALITY_ETHERNET : GG_MODALITY_UDP4);
      EXPECT_EQ(out.l3_offset, GG_ETH_BYTES);
      EXPECT_EQ(out.udp_offset, packet.udp_offset);
      EXPECT_EQ(out.link_offset, packet.udp_offset + GG_UDP_BYTES);
      EXPECT_EQ(out.length, packet.link_length);
      EXPECT_EQ(out.ce, packet.ce);
      EXPECT_EQ(out.udp_port, test::kBasePort + out.link.lane);
      EXPECT_EQ(out.link.number, 0x01020304u);
      EXPECT_EQ(out.link.link, 0xA0B0C0D0u);
    }
  }
}

TEST(Parse, KeepsWithinRandomPackets) {
  size_t seen[3] = {};
  for (const Bytes& packet : test::random_packets(1, 100000)) {
    gg_packet out{};
    const int result = parse(packet, out);
    ++seen[result == GG_PARSE_OURS ? 0 : result == GG_PARSE_NOT_OURS ? 1 : 2];
    ASSERT_LT(result, GG_DROP_COUNT);
    if (result == GG_PARSE_OURS) {
      ASSERT_LE(out.link_offset + out.length, packet.size());
    }
  }
  for (const size_t count : seen) EXPECT_GT(count, 1000u) << "the random packets do not reach every kind of result";
}

TEST(FrameParse, ChecksWhatNeedsNoState) {
  const auto parse_frame = [](auto&& spoil, size_t bytes) {
    gg_frame frame{};
    frame.type = GG_CONTRIBUTION;
    frame.kind = GG_ALL_REDUCE;
    frame.dtype = GG_FLOAT32;
    frame.length = 16;
    frame.op = GG_SUM;
    spoil(frame);
    Bytes buffer(GG_FRAME_BYTES + 16);
    gg_frame_put(buffer.data(), &frame);
    buffer.resize(bytes);
    buffer.shrink_to_fit();
    gg_frame out{};
    return gg_frame_parse(buffer.data(), buffer.data() + buffer.size(), &out);
  };
  const auto nothing = [](gg_frame&) {};
  EXPECT_EQ(parse_frame(nothing, 40), GG_PARSE_OURS);
  for (size_t bytes = 0; bytes < 40; ++bytes) EXPECT_EQ(parse_frame(nothing, bytes), GG_DROP_BAD_FRAME) << bytes;
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.length = 0; }, 40), GG_PARSE_OURS);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.length = 17; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.length = 65535; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.type = 0; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.type = GG_DATA; }, 40), GG_PARSE_OURS);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.type = GG_FRAME_TYPE_COUNT; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.kind = GG_KIND_COUNT; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.dtype = GG_DTYPE_COUNT; }, 40), GG_DROP_BAD_FRAME);
  EXPECT_EQ(parse_frame([](gg_frame& f) { f.op = GG_OP_COUNT; }, 40), GG_DROP_BAD_FRAME);
}

TEST(Classify, AddsWhatTheConfigurationOfThePortSays) {
  const auto classify = [](const gg_xdp_config& config, const Bytes& packet) {
    gg_packet out{};
    return gg_xdp_classify(packet.data(), packet.data() + packet.size(), &config, &out);
  };
  const Bytes good = make_packet({.lane = 3});
  Bytes malformed = good;
  malformed[42] = 0;
  const gg_xdp_config ours{test::kSite, test::kBasePort, 4, 0, {}};
  EXPECT_EQ(classify(ours, good), GG_PARSE_OURS);
  EXPECT_EQ(classify({0, test::kBasePort, 4, 0, {}}, good), GG_PARSE_NOT_OURS) << "not configured yet";
  EXPECT_EQ(classify({0, test::kBasePort, 4, 0, {}}, malformed), GG_PARSE_NOT_OURS);
  EXPECT_EQ(classify({test::kSite, test::kBasePort, 3, 0, {}}, good), GG_DROP_BAD_LANE);
  EXPECT_EQ(classify({2, test::kBasePort, 4, 0, {}}, good), GG_DROP_BAD_LABEL);

  gg_xdp_config addressed{test::kSite, test::kBasePort, 4, 1, {{10, 1, 0, 2}, {10, 1, 0, 1}}};
  EXPECT_EQ(classify(addressed, good), GG_PARSE_NOT_OURS) << "to another host: the kernel may route it";
  EXPECT_EQ(classify(addressed, malformed), GG_PARSE_NOT_OURS);
  addressed.address_count = 2;
  EXPECT_EQ(classify(addressed, good), GG_PARSE_OURS);
  EXPECT_EQ(classify(addressed, malformed), GG_DROP_BAD_MAGIC);
  EXPECT_EQ(classify(addressed, make_packet({.modality = GG_MODALITY_ETHERNET})), GG_PARSE_OURS)
      << "IPv4 addresses say nothing about other modalities";
}

TEST(Crc32c, AgreesWithRfc3720AppendixB4) {
  Bytes data(32, 0x00);
  EXPECT_EQ(wire::crc32c(data.data(), data.size()), 0x8A9136AAu);
  data.assign(32, 0xFF);
  EXPECT_EQ(wire::crc32c(data.data(), data.size()), 0x62A8AB43u);
  std::iota(data.begin(), data.end(), uint8_t{0});
  EXPECT_EQ(wire::crc32c(data.data(), data.size()), 0x46DD794Eu);
  std::reverse(data.begin(), data.end());
  EXPECT_EQ(wire::crc32c(data.data(), data.size()), 0x113FDB5Cu);
  const uint8_t read_command[48] = {0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                    0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                    0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(wire::crc32c(read_command, sizeof read_command), 0xD9963A56u);
}

TEST(Crc32c, AgreesWithTheBitwiseDefinitionAndContinues) {
  for (const size_t size : {0, 1, 7, 8, 63, 64, 65, 255, 1024, 1500, 3498}) {
    for (size_t offset = 0; offset < 8; ++offset) {
      const Bytes data = random_bytes(size + offset);
      const uint8_t* p = data.data() + offset;
      const uint32_t whole = wire::crc32c(p, size);
      ASSERT_EQ(whole, bitwise_crc32c(p, size)) << size << " bytes at " << offset;
      const size_t cut = size / 3;
      ASSERT_EQ(wire::crc32c(p + cut, size - cut, wire::crc32c(p, cut)), whole);
    }
  }
}

TEST(PacketCrc32c, IgnoresTheMutableBitsAndNothingElse) {
  const Bytes packet = random_bytes(300);
  const uint32_t crc = wire::packet_crc32c(packet.data(), packet.size());
  Bytes cleared = packet;
  cleared[2] &= 0xF0;
  EXPECT_EQ(crc, bitwise_crc32c(cleared.data(), cleared.size()));
  for (size_t bit = 0; bit < packet.size() * 8; ++bit) {
    Bytes changed = packet;
    changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ 1 << bit % 8);
    const bool is_mutable = bit / 8 == 2 && (GG_FLAGS_MUTABLE >> bit % 8 & 1) != 0;
    ASSERT_EQ(wire::packet_crc32c(changed.data(), changed.size()) == crc, is_mutable) << "bit " << bit;
  }
}

TEST(Sum16, AgreesWithRfc1071AtAnyLengthAndAlignment) {
  for (size_t length = 0; length <= 100; ++length) {
    for (size_t offset = 0; offset <= 8; ++offset) {
      const Bytes data = random_bytes(length + offset);
      // 0 and 0xFFFF are the same number in one's complement.
      ASSERT_EQ(wire::sum16(data.data() + offset, length) % 0xFFFF, naive_sum16(data.data() + offset, length) % 0xFFFF)
          << length << " bytes at " << offset;
    }
  }
}

TEST(Sum16, CarriesInLongBuffersAndAddsUp) {
  const Bytes ones(65536, 0xFF);
  EXPECT_EQ(wire::sum16(ones.data(), ones.size()) % 0xFFFF, 0u);
  const Bytes data = random_bytes(9000);
  const uint32_t pieces = wire::sum16(data.data(), 1024) + wire::sum16(data.data() + 1024, data.size() - 1024);
  EXPECT_EQ(gg_sum_fold(pieces), wire::sum16(data.data(), data.size()));
  EXPECT_EQ(wire::sum16(data.data(), data.size()) % 0xFFFF, naive_sum16(data.data(), data.size()) % 0xFFFF);
}

TEST(SumFold, FoldsEverySixteenBitsIntoOne) {
  EXPECT_EQ(gg_sum_fold(0), 0u);
  EXPECT_EQ(gg_sum_fold(0xFFFF), 0xFFFFu);
  EXPECT_EQ(gg_sum_fold(0x10000), 1u);
  EXPECT_EQ(gg_sum_fold(0xFFFFFFFFFFFFFFFF), 0xFFFFu);
  EXPECT_EQ(gg_sum_fold(0x0001000200030004), 10u);
}

TEST(PutHeaders, MakesValidIpAndUdpChecksums) {
  for (const uint16_t payload : {0, 16, 295, 296, 1064, 2876}) {
    gg_path path{
        GG_MODALITY_UDP4, {2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {10, 1, 2, 3}, {198, 51, 100, 7}, 40001, 9475};
    const Bytes data = random_bytes(payload);
    Bytes packet(gg_header_bytes(path.modality));
    ASSERT_EQ(packet.size(), 42u);
    gg_put_headers(packet.data(), &path, payload, wire::sum16(data.data(), data.size()));
    packet.insert(packet.end(), data.begin(), data.end());

    const uint8_t* ip = packet.data() + 14;
    EXPECT_EQ(gg_get16(ip + 2), packet.size() - 14);
    EXPECT_EQ(naive_sum16(ip, 20), 0xFFFF) << "IP header checksum";
    EXPECT_EQ(gg_get16(ip + 24), 8 + payload) << "UDP length";
    Bytes pseudo(ip + 12, ip + 20);
    pseudo.insert(pseudo.end(), {0, 17, ip[24], ip[25]});
    pseudo.insert(pseudo.end(), packet.begin() + 34, packet.end());
    EXPECT_NE(gg_get16(ip + 26), 0) << "a zero UDP checksum means none";
    EXPECT_EQ(naive_sum16(pseudo.data(), pseudo.size()), 0xFFFF) << "UDP checksum, payload " << payload;
  }
}

TEST(PutHeaders, SendsAChecksumOfZeroAsAllOnes) {
  gg_path path{GG_MODALITY_UDP4, {}, {}, {10, 0, 0, 1}, {10, 0, 0, 2}, 1, 2};
  uint8_t packet[42];
  gg_put_headers(packet, &path, 2, 0);
  // A payload that is the checksum of the rest brings the sum to 0xFFFF, whose complement is zero.
  gg_put_headers(packet, &path, 2, gg_get16(packet + 40));
  EXPECT_EQ(gg_get16(packet + 40), 0xFFFF);
}

TEST(PutHeaders, EthernetIsEtherTypeThenUdpWithoutChecksum) {
  gg_path path{GG_MODALITY_ETHERNET, {2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {}, {}, 40001, 9475};
  Bytes packet(gg_header_bytes(path.modality));
  gg_put_headers(packet.data(), &path, 100, 0x1234);
  const Bytes expected = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, 0x9C, 0x41, 0x25, 0x03, 0x00, 108, 0, 0};
  EXPECT_EQ(packet, expected);
}

}  // namespace
}  // namespace gradgate
