// SPDX-License-Identifier: Apache-2.0
// A worker: credit, private copies, results, a gateway that returns, failure.
#include <functional>

#include "tests/unit/core_member_fixture.h"

namespace gradgate::test {
namespace {

using Floats = std::vector<float>;

class WorkerTest : public MemberTest {
 protected:
  uint32_t index(uint32_t offset) const { return setup_.start + offset; }
};

TEST_F(WorkerTest, NeverSendsBeyondItsCredit) {
  join({});
  Floats data(16 * 40, 1);
  core::Operation op = operation(GG_ALL_REDUCE, 16 * 40, data.data(), data.data());
  member_->submit(op, now_);
  poll();
  EXPECT_EQ(contributions().size(), 8u);
  for (uint32_t low = 1; low <= 32; ++low) {
    tell_low(0, index(low));
    poll();
    const auto sent = contributions();
    ASSERT_EQ(sent.size(), 8u + low);
    EXPECT_EQ(sent.back().header.index, index(low + 7));
  }
  EXPECT_EQ(op.contributions, 0u);
}

TEST_F(WorkerTest, WatermarkBeyondWhatWasSentIsRefused) {
  join({});
  tell_low(0, index(1));
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 1u);
  Floats data(16 * 2, 1);
  core::Operation op = operation(GG_ALL_REDUCE, 32, data.data(), data.data());
  member_->submit(op, now_);
  tell_low(0, index(3));
  EXPECT_EQ(frame_drops(GG_DROP_BAD_WATERMARK), 2u);
  tell_low(0, index(1));
  tell_low(0, index(0));  // older: no harm
  EXPECT_EQ(member_->low(), (std::vector<uint32_t>{index(1)}));
  EXPECT_FALSE(member_->drained());
  tell_low(0, index(2));
  EXPECT_TRUE(member_->drained());
}

TEST_F(WorkerTest, WhatIsSentAgainIsThePrivateCopy) {
  join({});
  Floats data(16, 5);
  core::Operation op = operation(GG_ALL_REDUCE, 16, data.data(), data.data());
  member_->submit(op, now_);
  poll();
  deliver(0, {answer(contributions()[0], bytes_of(Floats(16, 9)))});
  EXPECT_EQ(data, Floats(16, 9)) << "in place";
  EXPECT_TRUE(op.done);
  EXPECT_EQ(done_.size(), 1u);
  std::fill(data.begin(), data.end(), -1.0f);  // and the caller goes on
  run_until(now_ + 50 * kMillisecond);         // the contribution was not acknowledged
  ASSERT_GT(contributions().size(), 1u);
  for (const Frame& frame : contributions()) EXPECT_EQ(floats_of(frame.payload), Floats(16, 5));
}

TEST_F(WorkerTest, ReturningGatewayGetsEverythingFromLowOn) {
  join({.rank = 1});
  Floats data(16 * 6);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i / 16);
  core::Operation sum = operation(GG_ALL_REDUCE, 16 * 4, data.data(), data.data());
  core::Operation broadcast = operation(GG_BROADCAST, 32, nullptr, data.data() + 64, 0);
  member_->submit(sum, now_);
  member_->submit(broadcast, now_);
  poll();
  const auto first = contributions();
  ASSERT_EQ(first.size(), 4u);
  for (uint32_t i = 0; i < 3; ++i) deliver(0, {answer(first[i], bytes_of(Floats(16, 100)))});
  ack_all(0);
  tell_low(0, index(1));
  const size_t before = output_.sent.size();

  member_->gateway_restarted(0x43, 0x778, gg_label(11, 6), gg_label(11, 101), now_);
  numbers_[0] = 1;
  poll();
  std::vector<std::pair<uint32_t, float>> again;
  unsigned ready = 0;
  for (size_t i = before; i < output_.sent.size(); ++i) {
    EXPECT_EQ(output_.sent[i].link.link, 0x43u);
    EXPECT_EQ(output_.sent[i].link.label, gg_label(11, 6));
    EXPECT_EQ(output_.sent[i].link.number, i - before + 1) << "numbers start anew";
    for (const Frame& frame : output_.sent[i].frames) {
      if (frame.header.type == GG_CONTRIBUTION) again.emplace_back(frame.header.index, floats_of(frame.payload)[0]);
      if (frame.header.type == GG_READY) ready += frame.header.count;
    }
  }
  EXPECT_EQ(again, (std::vector<std::pair<uint32_t, float>>{{index(1), 1}, {index(2), 2}, {index(3), 3}}))
      << "acknowledged or not, result known or not, and with the original bytes";
  EXPECT_EQ(ready, 2u);

  deliver(0, {watermark_frame(11, index(1), index(1))});
  EXPECT_EQ(packet_drops(GG_DROP_UNKNOWN_LINK), 1u) << "the old epoch is a stranger";
  local_link_ = 0x778;
  deliver(0, {answer(first[3], bytes_of(Floats(16, 100)))});
  EXPECT_EQ(packet_drops(GG_DROP_BAD_LABEL), 1u);
  own_label_ = gg_label(11, 101);
  deliver(0, {answer(first[1], bytes_of(Floats(16, -7)))});
  EXPECT_EQ(member_->counters().frames_duplicate.get(), 1u) << "this result was here before the crash";
  EXPECT_EQ(data[16], 100);
  deliver(0, {answer(first[3], bytes_of(Floats(16, 100)))});
  EXPECT_TRUE(sum.done);
}

TEST_F(WorkerTest, ResultsThatCannotBe) {
  join({});
  Floats data(32, 5);
  core::Operation op = operation(GG_ALL_REDUCE, 32, data.data(), data.data());
  member_->submit(op, now_);
  poll();
  const auto sent = contributions();
  const Frame good = answer(sent[0], bytes_of(Floats(16, 9)));
  Frame bad = good;
  bad.header.index = index(2);
  deliver(0, {bad});
  EXPECT_EQ(frame_drops(GG_DROP_FUTURE), 1u);
  const std::vector<std::function<void(gg_frame&)>> changes{
      [](gg_frame& f) { f.call = 1; },         [](gg_frame& f) { f.kind = GG_BROADCAST; },
      [](gg_frame& f) { f.dtype = GG_INT32; }, [](gg_frame& f) { f.op = GG_AVERAGE; },
      [](gg_frame& f) { f.root = 1; },         [](gg_frame& f) { f.elements = 31; }};
  for (const auto& change : changes) {
    bad = good;
    change(bad.header);
    deliver(0, {bad});
  }
  deliver(0, {answer(sent[0], bytes_of(Floats(15, 9)))});  // another length
  deliver(0, {answer(sent[0], bytes_of(Floats(17, 9)))});
  EXPECT_EQ(frame_drops(GG_DROP_MISMATCH), changes.size() + 2);
  EXPECT_EQ(data, Floats(32, 5));
  for (const uint8_t type : {GG_CONTRIBUTION, GG_PARTIAL, GG_READY, GG_CLOSE, GG_DATA}) {
    bad = good;
    bad.header.type = type;
    deliver(0, {bad});
  }
  EXPECT_EQ(frame_drops(GG_DROP_UNEXPECTED_FRAME), 5u);
  deliver(0, {good});
  deliver(0, {good});
  EXPECT_EQ(member_->counters().frames_duplicate.get(), 1u);
  tell_low(0, index(1));
  deliver(0, {good});
  EXPECT_EQ(member_->counters().frames_past.get(), 1u);
  EXPECT_EQ(op.results, 1u);
}

TEST_F(WorkerTest, PacketsThatCannotBe) {
  join({.lanes = 2});
  gg_link link = {};
  link.label = kOwnLabel;
  link.number = 1;
  link.link = local_link_;
  const Frame ping = call_frame(GG_PING, 0, 0, {});
  auto packet = [&](gg_link l) { return packet_bytes(l, {ping}, true); };
  gg_link other = link;
  other.lane = 2;
  EXPECT_FALSE(deliver(other, packet(other)));
  EXPECT_EQ(packet_drops(GG_DROP_BAD_LANE), 1u);
  std::vector<uint8_t> broken = packet(link);
  broken[GG_LINK_BYTES] ^= 2;
  EXPECT_FALSE(deliver(link, broken));
  EXPECT_EQ(packet_drops(GG_DROP_BAD_TRAILER), 1u);
  EXPECT_TRUE(deliver(link, packet(link)));
  EXPECT_FALSE(deliver(link, packet(link)));
  EXPECT_EQ(packet_drops(GG_DROP_DUPLICATE_NUMBER), 1u);
  gg_link marked = link;
  marked.number = 2;
  std::vector<uint8_t> bytes = packet(marked);
  bytes[2] |= GG_FLAG_CE | 3;  // what nodes on the way may change
  EXPECT_TRUE(deliver(marked, bytes));
}

TEST_F(WorkerTest, RootsResultOfAReduceNobodyElseGets) {
  join({.rank = 1});
  Floats data(16, 5);
  core::Operation op = operation(GG_REDUCE, 16, data.data(), nullptr, 0);
  member_->submit(op, now_);
  EXPECT_TRUE(op.done) << "the input is copied: the caller may write it again";
  poll();
  deliver(0, {answer(contributions()[0], bytes_of(Floats(16, 9)))});
  EXPECT_EQ(frame_drops(GG_DROP_MISMATCH), 1u);
  EXPECT_FALSE(member_->drained());
  tell_low(0, index(1));
  EXPECT_TRUE(member_->drained());
}

TEST_F(WorkerTest, ErrorEndsTheGroup) {
  join({});
  Floats data(16 * 20, 5);
  core::Operation op = operation(GG_ALL_REDUCE, 16 * 20, data.data(), data.data());
  member_->submit(op, now_);
  poll();
  const auto sent = contributions();
  Frame error;
  error.header.type = GG_ERROR;
  const std::string text = "rank 1 called broadcast ";
  error.payload.assign(text.begin(), text.end());
  error.header.length = static_cast<uint16_t>(text.size());
  deliver(0, {error});
  deliver(0, {error});
  EXPECT_EQ(failures_, (std::vector<std::string>{"rank 1 called broadcast"}));
  EXPECT_TRUE(member_->failed());
  deliver(0, {answer(sent[0], bytes_of(Floats(16, 9)))});
  EXPECT_EQ(frame_drops(GG_DROP_GROUP_FAILED), 1u);
  EXPECT_EQ(data[0], 5);
  core::Operation late = operation(GG_ALL_REDUCE, 16, data.data(), data.data());
  member_->submit(late, now_);
  tell_low(0, index(4));
  const size_t before = contributions().size();
  run_until(now_ + kSecond);
  EXPECT_EQ(contributions().size(), before) << "nothing is sent for a group that has failed";
  member_->gateway_restarted(0x43, 0x778, gg_label(11, 6), gg_label(11, 101), now_);
  run_until(now_ + kSecond);
  EXPECT_EQ(contributions().size(), before);
  EXPECT_TRUE(done_.empty());
}

TEST_F(WorkerTest, ReadyRangesEndWhereTheCallChanges) {
  join({.rank = 1, .window = 16});
  Floats data(1024);
  core::Operation a = operation(GG_BROADCAST, 16 * 5, nullptr, data.data(), 0);
  core::Operation b = operation(GG_BROADCAST, 16 * 3, nullptr, data.data() + 512, 0);
  member_->submit(a, now_);
  member_->submit(b, now_);
  poll();
  const auto ready = readies();
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].header.index, index(4));
  EXPECT_EQ(ready[0].header.count, 5u);
  EXPECT_EQ(ready[1].header.index, index(7));
  EXPECT_EQ(ready[1].header.count, 3u);
  EXPECT_EQ(ready[1].header.call, 1u);
  // Lost, they are sent again until they are acknowledged.
  run_until(now_ + 50 * kMillisecond);
  EXPECT_GT(readies().size(), 2u);
}

// The count has 16 bits, the window up to 24.
TEST_F(WorkerTest, ReadyRangeLongerThanItsFieldIsSplit) {
  join({.rank = 1, .window = 1u << 17});
  std::vector<uint8_t> data(size_t{70'000} * 64);
  core::Operation op = operation(GG_BROADCAST, 70'000 * 16, nullptr, data.data(), 0);
  member_->submit(op, now_);
  poll();
  uint32_t announced = 0;
  for (const Frame& frame : readies()) {
    EXPECT_GT(frame.header.count, 0u);
    announced += frame.header.count;
  }
  EXPECT_EQ(announced, 70'000u);
}

TEST_F(WorkerTest, ObserverMaySubmitFromItsCallback) {
  struct Chain final : core::Member::Observer {
    core::Member* member = nullptr;
    std::vector<core::Operation> operations = std::vector<core::Operation>(50);
    unsigned done = 0;
    void operation_done(core::Operation&) override {
      if (++done < operations.size()) member->submit(operations[done], kSecond);
    }
    void group_failed(const std::string&) override {}
  } chain;
  join({.rank = 1, .window = 64});
  core::MemberConfig config = member_->config();
  core::Member member(config, output_, chain, now_);
  chain.member = &member;
  Floats data(16, 1);
  // A non-root's reduce is done as soon as it is copied: fifty calls deep.
  for (core::Operation& o : chain.operations) o = operation(GG_REDUCE, 16, data.data(), nullptr, 0);
  member.submit(chain.operations[0], now_);
  EXPECT_EQ(chain.done, 50u);
  for (int i = 0; i < 10; ++i) member.poll(now_);
  const auto sent = contributions();
  ASSERT_EQ(sent.size(), 50u);
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(sent[i].header.call, i);
}

TEST_F(WorkerTest, PingIsASignOfLifeOnEveryLane) {
  join({.lanes = 4});
  member_->ping();
  poll();
  ASSERT_EQ(output_.sent.size(), 4u);
  now_ += kMillisecond;
  ack_all(2);
  EXPECT_EQ(member_->last_heard(), now_);
}

}  // namespace
}  // namespace gradgate::test
