// SPDX-License-Identifier: Apache-2.0
// One emulated rank: makes the calls, checks the results.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/worker.h"
#include "pktgen/options.h"
#include "pktgen/pattern.h"
#include "pktgen/report.h"

namespace gradgate::pktgen {

/// What the emulated ranks of one group share.
class EmulatedGroup {
 public:
  EmulatedGroup(const Options& options, const Pattern& pattern, uint32_t number)
      : options_(options), pattern_(pattern), number_(number) {}

  uint32_t number() const { return number_; }
  /// Result of a call, as `elements` elements in memory; kept until every rank here has asked for it once.
  std::vector<uint8_t> take_expected(uint64_t call);
  void fill_contribution(uint64_t call, uint32_t rank, std::vector<uint8_t>& out);

 private:
  struct Expected {
    std::vector<uint8_t> bytes;
    uint32_t users_left = 0;
  };
  void compute(uint64_t call, std::vector<uint8_t>& out);

  const Options& options_;
  const Pattern& pattern_;
  const uint32_t number_;
  std::map<uint64_t, Expected> expected_;
  std::vector<int32_t> scratch_;
};

class EmulatedWorker final : public client::Worker::Owner {
 public:
  EmulatedWorker(const Options& options, EmulatedGroup& group, uint32_t rank, Totals& totals);

  /// After the join.
  void start(client::JoinRequest request, client::UdpSocket socket, client::Joined joined, core::Nanoseconds now);
  client::Worker& worker() { return *worker_; }
  /// Makes the calls that may be made now. Calls begin at `now`; none begins after `end` (kNever: no limit).
  void pump(core::Nanoseconds now, core::Nanoseconds end);
  /// Has made and completed its calls.
  bool finished() const { return no_more_calls_ && outstanding_ == 0 && flags_outstanding_ == 0; }
  uint32_t rank() const { return rank_; }

 private:
  struct Slot {
    core::Operation operation;
    std::vector<uint8_t> input, output;
    uint64_t call = 0;
    core::Nanoseconds started = 0;
    bool busy = false;
  };
  /// A broadcast of one byte from rank 0 ahead of every batch of calls: go on, or stop.
  struct Flag {
    core::Operation operation;
    uint8_t go_on = 0;
    bool done = false;
  };

  void operation_done(core::Operation& operation) override;
  void worker_failed(gg_result_t code, const std::string& text) override;
  bool submit_call(core::Nanoseconds now);
  void submit_flag(core::Nanoseconds now, core::Nanoseconds end);
  void check(Slot& slot);

  const Options& options_;
  EmulatedGroup& group_;
  const uint32_t rank_;
  Totals& totals_;
  std::unique_ptr<client::Worker> worker_;
  std::vector<Slot> slots_;
  Flag flags_[2];  ///< of this batch and of the next one
  const uint64_t batch_calls_;
  uint64_t next_call_ = 0;
  uint64_t next_flag_ = 0;
  uint32_t outstanding_ = 0;
  uint32_t flags_outstanding_ = 0;
  bool no_more_calls_ = false;
};

}  // namespace gradgate::pktgen
