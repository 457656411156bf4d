// SPDX-License-Identifier: Apache-2.0
// Good and bad packets with what a parser must make of them: one table for the C++ parser, the XDP program and the
// check by scapy and tshark.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "wire/checksum.h"
#include "wire/gg_build.h"
#include "wire/gg_parse.h"

namespace gradgate::test {

using Bytes = std::vector<uint8_t>;

inline constexpr uint16_t kBasePort = GG_DEFAULT_UDP_PORT;
inline constexpr uint32_t kSite = 1;
inline constexpr uint8_t kOwnAddress[4] = {10, 1, 0, 1};

struct PacketCase {
  std::string name;
  Bytes bytes;
  int expect;                ///< as gg_parse returns it
  uint16_t udp_offset = 0;   ///< where GG_PARSE_OURS is expected
  uint16_t link_length = 0;  ///< bytes from the link header to the end of the datagram
  uint8_t ce = 0;
};

/// What a good packet is made from; the table's bad ones are good ones with something broken.
struct PacketSpec {
  uint8_t modality = GG_MODALITY_UDP4;
  uint8_t lane = 3;
  uint32_t label = gg_label(kSite, 7);
  uint8_t flags = 7;  ///< byte 2 of the link header: hops 7
  uint32_t ip_option_bytes = 0;
  uint32_t frames = 1;
  uint16_t payload_bytes = 256;  ///< of each frame
  uint32_t trailer_bytes = 0;
  uint32_t padding_bytes = 0;  ///< after the datagram, as Ethernet pads short frames
};

inline uint32_t udp_offset(const PacketSpec& spec) {
  return GG_ETH_BYTES + (spec.modality == GG_MODALITY_UDP4 ? GG_IPV4_BYTES + spec.ip_option_bytes : 0);
}

inline uint16_t link_length(const PacketSpec& spec) {
  return static_cast<uint16_t>(GG_LINK_BYTES + spec.frames * (GG_FRAME_BYTES + spec.payload_bytes) +
                               spec.trailer_bytes);
}

/// Writes the IPv4 header checksum for a header of `bytes` bytes.
inline void fix_ip_checksum(uint8_t* ip, uint32_t bytes) {
  gg_put16(ip + 10, 0);
  gg_put16(ip + 10, static_cast<uint16_t>(~wire::sum16(ip, bytes)));
}

inline Bytes make_packet(const PacketSpec& spec = {}) {
  Bytes link(link_length(spec));
  const gg_link header{spec.flags, spec.lane, spec.label, 0x01020304, 0xA0B0C0D0};
  gg_link_put(link.data(), &header);
  uint8_t* at = link.data() + GG_LINK_BYTES;
  for (uint32_t i = 0; i < spec.frames; ++i) {
    gg_frame frame{};
    frame.type = GG_CONTRIBUTION;
    frame.kind = GG_ALL_REDUCE;
    frame.dtype = GG_FLOAT32;
    frame.length = spec.payload_bytes;
    frame.index = 1000 + i;
    frame.call = 9;
    frame.elements = 4096;
    frame.source = 2;
    frame.count = 1;
    frame.op = GG_SUM;
    gg_frame_put(at, &frame);
    at += GG_FRAME_BYTES;
    for (uint32_t b = 0; b < spec.payload_bytes; ++b) *at++ = static_cast<uint8_t>(b * 37 + i);
  }
  if (spec.trailer_bytes == GG_CRC_BYTES) {
    gg_put32(at, wire::packet_crc32c(link.data(), link.size() - GG_CRC_BYTES));
  }

  gg_path path{};
  path.modality = spec.modality;
  const uint8_t source_mac[6] = {0x02, 0, 0, 0, 0, 0x11};
  const uint8_t destination_mac[6] = {0x02, 0, 0, 0, 0, 0x01};
  const uint8_t source_ip[4] = {10, 1, 0, 11};
  std::memcpy(path.source_mac, source_mac, 6);
  std::memcpy(path.destination_mac, destination_mac, 6);
  std::memcpy(path.source_ip, source_ip, 4);
  std::memcpy(path.destination_ip, kOwnAddress, 4);
  path.source_port = 40000;
  path.destination_port = static_cast<uint16_t>(kBasePort + spec.lane);

  Bytes packet(gg_header_bytes(spec.modality));
  gg_put_headers(packet.data(), &path, static_cast<uint16_t>(link.size()), wire::sum16(link.data(), link.size()));
  if (spec.ip_option_bytes > 0) {
    // No-operation options; the UDP checksum does not cover them.
    packet.insert(packet.begin() + GG_ETH_BYTES + GG_IPV4_BYTES, spec.ip_option_bytes, 0x01);
    uint8_t* ip = packet.data() + GG_ETH_BYTES;
    ip[0] = static_cast<uint8_t>(0x40 | (GG_IPV4_BYTES + spec.ip_option_bytes) / 4);
    gg_put16(ip + 2, static_cast<uint16_t>(gg_get16(ip + 2) + spec.ip_option_bytes));
    fix_ip_checksum(ip, GG_IPV4_BYTES + spec.ip_option_bytes);
  }
  packet.insert(packet.end(), link.begin(), link.end());
  packet.insert(packet.end(), spec.padding_bytes, 0);
  return packet;
}

/// Packets that every receiver must take.
inline std::vector<PacketCase> good_packets() {
  std::vector<PacketCase> table;
  const auto add = [&](const char* name, const PacketSpec& spec) {
    table.push_back({name, make_packet(spec), GG_PARSE_OURS, static_cast<uint16_t>(udp_offset(spec)), link_length(spec),
                     static_cast<uint8_t>((spec.flags & GG_FLAG_CE) != 0)});
  };
  add("udp4", {});
  add("udp4 lane 0", {.lane = 0});
  add("udp4 last lane", {.lane = 63});
  add("udp4 one chunk of 1 KiB with CRC", {.payload_bytes = 1024, .trailer_bytes = GG_CRC_BYTES});
  add("udp4 largest chunk of AF_XDP", {.payload_bytes = 2816, .trailer_bytes = GG_CRC_BYTES});
  add("udp4 four frames", {.frames = 4});
  add("udp4 odd payload", {.payload_bytes = 255});
  add("udp4 link header only", {.frames = 0});
  add("udp4 link header only, padded", {.frames = 0, .padding_bytes = 2});
  add("udp4 4 bytes of IP options", {.ip_option_bytes = 4});
  add("udp4 40 bytes of IP options", {.ip_option_bytes = 40});
  add("udp4 encrypted, second key phase", {.flags = GG_FLAG_ENCRYPTED | GG_FLAG_KEY_PHASE, .trailer_bytes = 16});
  add("udp4 ce in the link header", {.flags = GG_FLAG_CE});
  add("ethernet", {.modality = GG_MODALITY_ETHERNET, .trailer_bytes = GG_CRC_BYTES});
  add("ethernet short, padded", {.modality = GG_MODALITY_ETHERNET, .frames = 0, .padding_bytes = 22});
  add("ethernet ce in the link header", {.modality = GG_MODALITY_ETHERNET, .flags = GG_FLAG_CE});

  PacketCase marked{"udp4 ce in the IP header", make_packet(), GG_PARSE_OURS, 34, link_length({}), 1};
  marked.bytes[15] |= 3;
  fix_ip_checksum(marked.bytes.data() + 14, 20);
  table.push_back(marked);
  PacketCase slack{"udp4 IP total length beyond the UDP length",
                   make_packet({.padding_bytes = 5}),
                   GG_PARSE_OURS,
                   34,
                   link_length({}),
                   0};
  gg_put16(slack.bytes.data() + 16, static_cast<uint16_t>(gg_get16(slack.bytes.data() + 16) + 5));
  fix_ip_checksum(slack.bytes.data() + 14, 20);
  table.push_back(slack);
  return table;
}

/// Packets that a parser must drop under a reason or leave to the kernel.
inline std::vector<PacketCase> bad_packets() {
  std::vector<PacketCase> table;
  const auto add = [&](const std::string& name, int expect, Bytes bytes) {
    table.push_back({name, std::move(bytes), expect});
  };
  // Offsets of a udp4 packet without options: IP 14, UDP 34, link header 42; of an ethernet one: UDP 14, link 22.
  const auto udp4 = [&](const char* name, int expect, auto&& spoil) {
    Bytes bytes = make_packet();
    spoil(bytes.data());
    add(std::string("udp4 ") + name, expect, std::move(bytes));
  };
  const auto ethernet = [&](const char* name, int expect, auto&& spoil) {
    Bytes bytes = make_packet({.modality = GG_MODALITY_ETHERNET});
    spoil(bytes.data());
    add(std::string("ethernet ") + name, expect, std::move(bytes));
  };
  const uint16_t total = static_cast<uint16_t>(make_packet().size() - 14);
  const uint16_t udp_bytes = static_cast<uint16_t>(total - 20);

  udp4("wrong magic", GG_DROP_BAD_MAGIC, [](uint8_t* p) { p[42] = 0x46; });
  udp4("wrong second byte of magic", GG_DROP_BAD_MAGIC, [](uint8_t* p) { p[43] ^= 1; });
  for (uint8_t version = 1; version < 4; ++version) {
    udp4("other version", GG_DROP_BAD_VERSION, [&](uint8_t* p) { p[44] = static_cast<uint8_t>(version << 6 | 7); });
  }
  udp4("lane is not the port's", GG_DROP_BAD_LANE, [](uint8_t* p) { p[45] = 4; });
  udp4("lane 64", GG_DROP_BAD_LANE, [](uint8_t* p) { p[45] = 64; });
  udp4("lane 255", GG_DROP_BAD_LANE, [](uint8_t* p) { p[45] = 255; });
  udp4("port of another lane", GG_DROP_BAD_LANE, [](uint8_t* p) { gg_put16(p + 36, kBasePort + 5); });
  udp4("port below ours", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 36, kBasePort - 1); });
  udp4("port beyond our lanes", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 36, kBasePort + 64); });
  udp4("DNS", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 36, 53); });
  udp4("first fragment", GG_DROP_FRAGMENT, [](uint8_t* p) { gg_put16(p + 20, 0x2000); });
  udp4("middle fragment", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 20, 0x2000 | 185); });
  udp4("last fragment", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 20, 185); });
  udp4("fragment in the upper half", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 20, 0x1000); });
  udp4("first fragment to another port", GG_PARSE_NOT_OURS, [](uint8_t* p) {
    gg_put16(p + 20, 0x2000);
    gg_put16(p + 36, 53);
  });
  // Our port stands where such a header length would put the UDP header.
  for (uint8_t words = 0; words < 5; ++words) {
    udp4("IHL below five", GG_PARSE_NOT_OURS, [&](uint8_t* p) {
      p[14] = static_cast<uint8_t>(0x40 | words);
      gg_put16(p + 14 + words * 4 + 2, kBasePort);
    });
  }
  udp4("IP version 6 under EtherType 0800", GG_PARSE_NOT_OURS, [](uint8_t* p) { p[14] = 0x65; });
  udp4("total length beyond the frame", GG_DROP_BAD_IP_HEADER,
       [&](uint8_t* p) { gg_put16(p + 16, static_cast<uint16_t>(total + 1)); });
  udp4("total length 65535", GG_DROP_BAD_IP_HEADER, [](uint8_t* p) { gg_put16(p + 16, 65535); });
  udp4("total length below its headers", GG_DROP_BAD_IP_HEADER, [](uint8_t* p) { gg_put16(p + 16, 27); });
  udp4("total length 0", GG_DROP_BAD_IP_HEADER, [](uint8_t* p) { gg_put16(p + 16, 0); });
  udp4("UDP length beyond the IP length", GG_DROP_BAD_UDP_LENGTH,
       [&](uint8_t* p) { gg_put16(p + 38, static_cast<uint16_t>(udp_bytes + 1)); });
  udp4("UDP length 65535", GG_DROP_BAD_UDP_LENGTH, [](uint8_t* p) { gg_put16(p + 38, 65535); });
  udp4("UDP length 7", GG_DROP_BAD_UDP_LENGTH, [](uint8_t* p) { gg_put16(p + 38, 7); });
  udp4("UDP length 0", GG_DROP_BAD_UDP_LENGTH, [](uint8_t* p) { gg_put16(p + 38, 0); });
  udp4("UDP length without a link header", GG_DROP_TRUNCATED, [](uint8_t* p) { gg_put16(p + 38, 8); });
  udp4("UDP length one short of a link header", GG_DROP_TRUNCATED, [](uint8_t* p) { gg_put16(p + 38, 23); });
  udp4("TCP", GG_PARSE_NOT_OURS, [](uint8_t* p) { p[23] = 6; });
  udp4("ICMP", GG_PARSE_NOT_OURS, [](uint8_t* p) { p[23] = 1; });
  udp4("ARP", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 12, 0x0806); });
  udp4("IPv6", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 12, 0x86DD); });
  udp4("VLAN", GG_PARSE_NOT_OURS, [](uint8_t* p) { gg_put16(p + 12, 0x8100); });

  ethernet("wrong magic", GG_DROP_BAD_MAGIC, [](uint8_t* p) { p[22] = 0; });
  ethernet("other version", GG_DROP_BAD_VERSION, [](uint8_t* p) { p[24] |= 0x80; });
  ethernet("lane is not the port's", GG_DROP_BAD_LANE, [](uint8_t* p) { p[25] = 2; });
  ethernet("somebody else's experiment", GG_PARSE_NOT_OURS, [](uint8_t* p) { std::memset(p + 14, 0xFF, 60); });
  ethernet("UDP length beyond the frame", GG_DROP_BAD_UDP_LENGTH,
           [&](uint8_t* p) { gg_put16(p + 18, static_cast<uint16_t>(udp_bytes + 1)); });
  ethernet("UDP length 65535", GG_DROP_BAD_UDP_LENGTH, [](uint8_t* p) { gg_put16(p + 18, 65535); });
  ethernet("UDP length 7", GG_DROP_BAD_UDP_LENGTH, [](uint8_t* p) { gg_put16(p + 18, 7); });
  ethernet("UDP length 23", GG_DROP_TRUNCATED, [](uint8_t* p) { gg_put16(p + 18, 23); });

  // Every truncation, byte by byte: nobody's while the port is not there, a named reason afterwards.
  const PacketSpec short_udp4{.payload_bytes = 8};
  const PacketSpec with_options{.ip_option_bytes = 12, .payload_bytes = 8};
  for (const PacketSpec& spec : {short_udp4, with_options}) {
    const Bytes whole = make_packet(spec);
    for (size_t size = 0; size < whole.size(); ++size) {
      add("udp4 with " + std::to_string(spec.ip_option_bytes) + " option bytes cut at " + std::to_string(size),
          size < udp_offset(spec) + GG_UDP_BYTES ? GG_PARSE_NOT_OURS : GG_DROP_BAD_IP_HEADER,
          Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)));
    }
  }
  const Bytes whole = make_packet({.modality = GG_MODALITY_ETHERNET, .payload_bytes = 8});
  for (size_t size = 0; size < whole.size(); ++size) {
    add("ethernet cut at " + std::to_string(size),
        size < 14   ? static_cast<int>(GG_PARSE_NOT_OURS)
        : size < 22 ? static_cast<int>(GG_DROP_TRUNCATED)
                    : static_cast<int>(GG_DROP_BAD_UDP_LENGTH),
        Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)));
  }
  return table;
}

/// `count` packets without an expectation: random bytes, and good packets with random bytes changed or cut off, so
/// that they get past the first checks. At least `min_bytes` each; the same for the same seed.
inline std::vector<Bytes> random_packets(uint32_t seed, size_t count, size_t min_bytes = 0) {
  std::mt19937 random(seed);
  const std::vector<PacketCase> good = good_packets();
  std::vector<Bytes> packets;
  while (packets.size() < count) {
    Bytes bytes;
    if (random() % 4 == 0) {
      bytes.resize(min_bytes + random() % 200);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      if (bytes.size() >= GG_ETH_BYTES && random() % 2) gg_put16(bytes.data() + 12, GG_ETHERTYPE_IPV4);
    } else {
      bytes = good[random() % good.size()].bytes;
      // Mostly among the headers: changes to the payload are no business of the parser.
      for (uint32_t changes = random() % 4; changes > 0; --changes) {
        bytes[12 + random() % (random() % 8 ? 46 : bytes.size() - 12)] = static_cast<uint8_t>(random());
      }
      if (random() % 4 == 0) bytes.resize(min_bytes + random() % (bytes.size() - min_bytes));
    }
    packets.push_back(std::move(bytes));
  }
  return packets;
}

}  // namespace gradgate::test
