// SPDX-License-Identifier: Apache-2.0
// Checks of a received packet that need no state of a group: trailer and frames. All of them are done before any
// frame changes anything.
#pragma once

#include <array>
#include <cstdint>

#include "core/io.h"
#include "wire/gg_wire.h"

namespace gradgate::core {

struct ReceivedFrame {
  gg_frame header;
  uint8_t* payload;  ///< header.length bytes
};

struct ReceivedPacket {
  std::array<ReceivedFrame, GG_MAX_FRAMES> frames;
  uint32_t count = 0;
  bool ack_eliciting = false;
};

/// Verifies the trailer and splits the packet into frames. Returns GG_DROP_COUNT if all is well, else the reason.
gg_drop parse_packet(const Arrival& arrival, bool trailer_crc, ReceivedPacket& out);

}  // namespace gradgate::core
