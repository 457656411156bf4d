// SPDX-License-Identifier: Apache-2.0
#include "pktgen/emulated_worker.h"

#include <algorithm>
#include <cstring>

namespace gradgate::pktgen {
namespace {

/// Calls between two decisions of rank 0 whether to go on: enough to cover the decision's own latency.
uint64_t batch_calls(const Options& o) {
  constexpr uint64_t kBatchBytes = 16 << 20;
  const uint64_t call_bytes = std::max<uint64_t>(1, uint64_t{o.elements} * gg_dtype_bytes(o.dtype));
  return std::clamp<uint64_t>(kBatchBytes / call_bytes, 1, 64);
}

std::string hex(const uint8_t* bytes, uint32_t count) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (uint32_t i = count; i-- > 0;) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

void EmulatedGroup::compute(uint64_t call, std::vector<uint8_t>& out) {
  const uint32_t elements = options_.elements;
  out.resize(size_t{elements} * gg_dtype_bytes(options_.dtype));
  if (options_.kind == GG_ALL_GATHER) {
    const uint32_t shard = elements / options_.size;
    scratch_.assign(elements, 0);
    for (uint32_t r = 0; r < options_.size; ++r)
      pattern_.add_value(number_, r, call, shard, scratch_.data() + size_t{r} * shard);
  } else {
    scratch_.assign(elements, 0);
    const uint32_t root = static_cast<uint32_t>(call % options_.size);
    for (uint32_t r = 0; r < options_.size; ++r)
      if (options_.kind != GG_BROADCAST || r == root) pattern_.add_value(number_, r, call, elements, scratch_.data());
  }
  pattern_.encode(scratch_.data(), elements, out.data());
}

std::vector<uint8_t> EmulatedGroup::take_expected(uint64_t call) {
  const auto [found, fresh] = expected_.try_emplace(call);
  Expected& expected = found->second;
  if (fresh) {
    expected.users_left = options_.workers;
    compute(call, expected.bytes);
  }
  if (--expected.users_left > 0) return expected.bytes;
  std::vector<uint8_t> bytes = std::move(expected.bytes);
  expected_.erase(found);
  return bytes;
}

void EmulatedGroup::fill_contribution(uint64_t call, uint32_t rank, std::vector<uint8_t>& out) {
  const uint32_t count = options_.kind == GG_ALL_GATHER ? options_.elements / options_.size : options_.elements;
  scratch_.resize(count);
  out.resize(size_t{count} * gg_dtype_bytes(options_.dtype));
  pattern_.contribution(number_, rank, call, count, scratch_.data());
  pattern_.encode(scratch_.data(), count, out.data());
}

EmulatedWorker::EmulatedWorker(const Options& options, EmulatedGroup& group, uint32_t rank, Totals& totals)
    : options_(options),
      group_(group),
      rank_(rank),
      totals_(totals),
      slots_(options.pipeline),
      batch_calls_(batch_calls(options)) {}

void EmulatedWorker::start(client::JoinRequest request, client::UdpSocket socket, client::Joined joined,
                           core::Nanoseconds now) {
  worker_ = std::make_unique<client::Worker>(std::move(request), std::move(socket), std::move(joined), *this, now);
}

void EmulatedWorker::pump(core::Nanoseconds now, core::Nanoseconds end) {
  while (!no_more_calls_) {
    if (options_.calls > 0 && next_call_ == options_.calls) {
      no_more_calls_ = true;
      return;
    }
    if (end == core::kNever) {
      if (!submit_call(now)) return;
      continue;
    }
    // Every rank makes the same sequence: flag 0, then flag n + 1 and the calls of batch n, if flag n said so.
    if (next_flag_ == 0) submit_flag(now, end);
    const uint64_t batch = next_call_ / batch_calls_;
    if (next_flag_ == batch + 1) {
      const Flag& flag = flags_[batch % 2];
      if (!flag.done) return;
      if (flag.go_on == 0) {
        no_more_calls_ = true;
        return;
      }
      submit_flag(now, end);
    }
    if (!submit_call(now)) return;
  }
}

void EmulatedWorker::submit_flag(core::Nanoseconds now, core::Nanoseconds end) {
  Flag& flag = flags_[next_flag_ % 2];
  flag.go_on = now < end;
  flag.done = false;
  core::Operation& operation = flag.operation = {};
  operation.kind = GG_BROADCAST;
  operation.dtype = GG_BYTES;
  operation.elements = 1;
  operation.input = operation.output = &flag.go_on;
  ++next_flag_;
  ++flags_outstanding_;
  worker_->submit(operation, now);
}

bool EmulatedWorker::submit_call(core::Nanoseconds now) {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.busy; });
  if (free == slots_.end()) return false;
  Slot& slot = *free;
  slot.call = next_call_++;
  slot.busy = true;
  const uint32_t bytes = gg_dtype_bytes(options_.dtype);
  const uint32_t root = static_cast<uint32_t>(slot.call % options_.size);
  group_.fill_contribution(slot.call, rank_, slot.input);
  // A result that never came must not look like the one of the call before.
  const uint32_t result = options_.kind == GG_REDUCE_SCATTER ? options_.elements / options_.size : options_.elements;
  slot.output.assign(size_t{result} * bytes, 0xA5);
  core::Operation& operation = slot.operation = {};
  operation.kind = options_.kind;
  operation.dtype = options_.dtype;
  operation.op = options_.op;
  operation.root = options_.kind == GG_BROADCAST || options_.kind == GG_REDUCE ? static_cast<uint16_t>(root) : 0;
  operation.elements = options_.elements;
  operation.input = slot.input.data();
  operation.output = slot.output.data();
  if (options_.kind == GG_BROADCAST) {
    if (rank_ == root) slot.output = slot.input;
    operation.input = operation.output = slot.output.data();
  }
  operation.user = &slot;
  ++outstanding_;
  slot.started = client::monotonic_ns();
  worker_->submit(operation, now);
  return true;
}

void EmulatedWorker::operation_done(core::Operation& operation) {
  if (operation.user == nullptr) {
    Flag& flag = &operation == &flags_[0].operation ? flags_[0] : flags_[1];
    flag.done = true;
    --flags_outstanding_;
    return;
  }
  Slot& slot = *static_cast<Slot*>(operation.user);
  totals_.latencies_ns.push_back(client::monotonic_ns() - slot.started);
  ++totals_.calls;
  totals_.chunks += worker_->chunks(operation);
  check(slot);
  slot.busy = false;
  --outstanding_;
}

void EmulatedWorker::check(Slot& slot) {
  const std::vector<uint8_t> expected = group_.take_expected(slot.call);
  if (options_.kind == GG_REDUCE && rank_ != slot.call % options_.size) return;
  const uint32_t bytes = gg_dtype_bytes(options_.dtype);
  const size_t first = options_.kind == GG_REDUCE_SCATTER ? slot.output.size() * rank_ : 0;
  const uint8_t* right = expected.data() + first;
  totals_.elements_checked += slot.output.size() / bytes;
  if (slot.output.empty() || memcmp(slot.output.data(), right, slot.output.size()) == 0) return;
  for (size_t i = 0; i < slot.output.size(); i += bytes) {
    if (memcmp(&slot.output[i], right + i, bytes) == 0) continue;
    if (totals_.elements_wrong++ == 0) {
      totals_.first_wrong = "group " + std::to_string(group_.number()) + " rank " + std::to_string(rank_) + " call " +
                            std::to_string(slot.call) + " element " + std::to_string(i / bytes) + ": 0x" +
                            hex(&slot.output[i], bytes) + " instead of 0x" + hex(right + i, bytes);
    }
  }
}

void EmulatedWorker::worker_failed(gg_result_t, const std::string& text) {
  if (totals_.failure.empty())
    totals_.failure = "group " + std::to_string(group_.number()) + " rank " + std::to_string(rank_) + ": " + text;
}

}  // namespace gradgate::pktgen
