// SPDX-License-Identifier: Apache-2.0
// What a lane tells control. Fixed size, so that a bounded ring carries it.
#pragma once

#include <array>
#include <cstdint>

#include "core/call.h"
#include "core/types.h"

namespace gradgate::core {

struct Event {
  enum class Type : uint8_t {
    kMismatch,  ///< two members called different collectives: `call` by `rank`, `other_call` by `other_rank`
    kStall,     ///< an index has waited for longer than stall_report_ns; repeated every stall_report_ns
    kTimeout,   ///< an index has waited for longer than call_timeout_ns
  };
  Type type = Type::kStall;
  uint8_t lane = 0;
  uint32_t context = 0;
  uint32_t generation = 0;
  uint32_t index = 0;
  CallParameters call;
  CallParameters other_call;
  uint16_t rank = 0;
  uint16_t other_rank = 0;
  Nanoseconds waited_ns = 0;
  /// kStall, kTimeout: local ranks whose contribution, READY or acknowledgement is missing (the first ones).
  std::array<uint16_t, 16> missing_ranks{};
  uint16_t missing_rank_count = 0;  ///< all of them, may exceed the array
  /// Site ids whose partial or result is missing.
  std::array<uint16_t, 16> missing_sites{};
  uint16_t missing_site_count = 0;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  /// False: the ring is full, the event is lost and counted.
  virtual bool push(const Event& event) = 0;
};

}  // namespace gradgate::core
