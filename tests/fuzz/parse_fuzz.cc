// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes through the parser and over the frames of what it takes for a packet of ours.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/unit/packet_table.h"
#include "wire/gg_parse.h"
#include "wire/gg_xdp.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

uint64_t touch(const uint8_t* data, uint32_t bytes) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < bytes; ++i) sum += data[i];
  return sum;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// From noise alone the fuzzer finds a valid packet only after millions of runs: start from good ones now and then.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<gradgate::test::PacketCase> good = gradgate::test::good_packets();
  const auto& packet = good[seed / 8 % good.size()].bytes;
  if (seed % 8 == 0 && packet.size() <= max_size) {
    std::memcpy(data, packet.data(), packet.size());
    size = packet.size();
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (data == nullptr) return 0;
  const uint8_t* end = data + size;
  gg_packet packet;
  const int result = gg_parse(data, end, GG_DEFAULT_UDP_PORT, &packet);
  require(result == GG_PARSE_OURS || result == GG_PARSE_NOT_OURS || (result >= 0 && result < GG_DROP_COUNT));

  const gg_xdp_config config{1, GG_DEFAULT_UDP_PORT, 8, 1, {{10, 1, 0, 1}}};
  gg_packet classified;
  const int verdict = gg_xdp_classify(data, end, &config, &classified);
  require(verdict != GG_PARSE_OURS || result == GG_PARSE_OURS);
  if (result != GG_PARSE_OURS) return 0;

  require(packet.modality < GG_MODALITY_COUNT && packet.link.lane < GG_MAX_LANES);
  require(packet.link_offset == packet.udp_offset + GG_UDP_BYTES);
  require(packet.length >= GG_LINK_BYTES && size_t{packet.link_offset} + packet.length <= size);
  const uint8_t* at = data + packet.link_offset + GG_LINK_BYTES;
  const uint8_t* packet_end = data + packet.link_offset + packet.length;
  volatile uint64_t sum = 0;
  gg_frame frame;
  while (gg_frame_parse(at, packet_end, &frame) == GG_PARSE_OURS) {
    require(gg_dtype_bytes(frame.dtype) > 0);
    sum = sum + touch(at + GG_FRAME_BYTES, frame.length);
    at += GG_FRAME_BYTES + frame.length;
    require(at <= packet_end);
  }
  return 0;
}
