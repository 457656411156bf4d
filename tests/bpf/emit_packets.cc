// SPDX-License-Identifier: Apache-2.0
// Writes the good packets of the table as a pcap file for tests/net/test_wire_scapy.py, one name a line to stdout.
#include <cstdio>

#include "tests/unit/packet_table.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: emit_packets FILE.pcap\n");
    return 2;
  }
  std::FILE* file = std::fopen(argv[1], "wb");
  if (file == nullptr) {
    std::perror(argv[1]);
    return 1;
  }
  // https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap: magic, version 2.4, zone, accuracy, snap length, Ethernet.
  const uint32_t head[] = {0xA1B2C3D4, 4u << 16 | 2, 0, 0, 65535, 1};
  bool written = std::fwrite(head, sizeof head, 1, file) == 1;
  uint32_t second = 0;
  for (const auto& packet : gradgate::test::good_packets()) {
    const auto size = static_cast<uint32_t>(packet.bytes.size());
    const uint32_t record[] = {second++, 0, size, size};
    written = written && std::fwrite(record, sizeof record, 1, file) == 1 &&
              std::fwrite(packet.bytes.data(), size, 1, file) == 1;
    std::printf("%s\n", packet.name.c_str());
  }
  if (std::fclose(file) != 0 || !written) {
    std::perror(argv[1]);
    return 1;
  }
  return 0;
}
