// SPDX-License-Identifier: Apache-2.0
// Which chunks a worker sends, on which lane, with which bytes, and where their results go.
#include <numeric>

#include "tests/unit/core_member_fixture.h"

namespace gradgate::test {
namespace {

struct Size {
  uint8_t kind;
  uint8_t lanes;
  uint64_t bytes;  ///< of the call; of one shard where there are owners
};

void PrintTo(const Size& s, std::ostream* out) {
  *out << "kind " << int{s.kind} << ", lanes " << int{s.lanes} << ", " << s.bytes << " bytes";
}

class ChunkingTest : public MemberTest, public ::testing::WithParamInterface<Size> {};

/// The gateway answers every chunk with what all ranks' inputs say, so that the outputs show where it went.
TEST_P(ChunkingTest, EachChunkOnceAndItsResultInItsPlace) {
  const Size& size = GetParam();
  constexpr uint16_t kRanks = 3, kRank = 1;
  join({.rank = kRank, .size = kRanks, .lanes = size.lanes, .window = 256});
  const bool owners = size.kind == GG_REDUCE_SCATTER || size.kind == GG_ALL_GATHER;
  const bool gather = size.kind == GG_ALL_GATHER, scatter = size.kind == GG_REDUCE_SCATTER;
  const uint64_t shard = size.bytes / 4, whole = owners ? shard * kRanks : shard;
  // Element e of the whole call is e; this rank's all-gather input is its shard of it.
  std::vector<float> input(gather ? shard : whole), output(scatter ? shard : whole, -1);
  std::iota(input.begin(), input.end(), gather ? static_cast<float>(kRank * shard) : 0.0f);

  for (uint32_t call = 0; call < 3; ++call) {
    SCOPED_TRACE(call);
    output_.sent.clear();
    std::fill(output.begin(), output.end(), -1.0f);
    const uint16_t root = size.kind == GG_BROADCAST ? 2 : kRank;
    core::Operation op = operation(size.kind, static_cast<uint32_t>(whole), input.data(), output.data(), root);
    if (size.kind == GG_BROADCAST) op.input = nullptr;
    const std::vector<uint32_t> before = member_->low();
    member_->submit(op, now_);
    poll();
    // One entry an index, whether CONTRIBUTION or part of a READY range.
    std::map<uint32_t, Frame> sent;
    for (const SentPacket& packet : output_.sent)
      for (const Frame& frame : packet.frames) {
        if (frame.header.type != GG_CONTRIBUTION && frame.header.type != GG_READY) continue;
        EXPECT_EQ(packet.link.lane, lane_of(setup_, frame.header.index));
        EXPECT_EQ(packet.link.label, kGroupLabel);
        for (uint32_t i = 0; i < frame.header.count; ++i)
          EXPECT_TRUE(sent.emplace(frame.header.index - i * size.lanes, frame).second) << "sent twice";
      }
    const core::Chunking chunking(size.kind, whole * 4, setup_.chunk_bytes, kRanks);
    ASSERT_EQ(sent.size(), chunking.chunks);
    std::vector<uint64_t> per_lane(size.lanes);
    for (const auto& [index, frame] : sent) ++per_lane[lane_of(setup_, index)];
    if (chunking.chunks <= core::kOneLaneChunks)
      EXPECT_EQ(per_lane[call % size.lanes], chunking.chunks) << "one lane";
    else
      for (const uint64_t n : per_lane) EXPECT_NEAR(double(n), double(chunking.chunks) / size.lanes, 1);

    std::set<float> seen;
    uint64_t shard_seen[kRanks] = {};
    for (uint8_t lane = 0; lane < size.lanes; ++lane) {
      uint32_t index = before[lane];
      for (uint64_t n = 0; n < per_lane[lane]; ++n, index += size.lanes) {
        ASSERT_EQ(sent.count(index), 1u) << "indices of a lane follow each other";
        const Frame& frame = sent[index];
        const uint64_t k = chunking.chunks <= core::kOneLaneChunks
                               ? n
                               : n * size.lanes + (lane + size.lanes - call % size.lanes) % size.lanes;
        EXPECT_EQ(frame.header.elements, whole);
        EXPECT_EQ(frame.header.call, call);
        EXPECT_EQ(frame.header.root, owners ? k % kRanks : root) << "shard-interleaved";
        const uint16_t owner = owners ? frame.header.root : uint16_t{0};
        const uint64_t first = owner * shard + k / (owners ? kRanks : 1) * (setup_.chunk_bytes / 4);
        const uint64_t end = std::min<uint64_t>(first + setup_.chunk_bytes / 4, owner * shard + shard);
        std::vector<float> expected(end - first);
        std::iota(expected.begin(), expected.end(), static_cast<float>(first));
        shard_seen[owner] += expected.size();
        const bool source = size.kind == GG_BROADCAST ? false : !gather || owner == kRank;
        EXPECT_EQ(frame.header.type, source ? GG_CONTRIBUTION : GG_READY);
        if (source) {
          EXPECT_EQ(floats_of(frame.payload), expected);
        }
        for (const float value : expected) EXPECT_TRUE(seen.insert(value).second);
        const bool sink = (!scatter || owner == kRank) && (size.kind != GG_REDUCE || root == kRank);
        if (sink)
          deliver(
              lane,
              {answer(frame.header.type == GG_READY
                          ? call_frame(GG_READY, kRank, index,
                                       core::CallParameters{call, uint32_t(whole), frame.header.root, frame.header.kind,
                                                            frame.header.dtype, frame.header.op, 0})
                          : frame,
                      bytes_of(expected))});
      }
      ack_all(lane);
      tell_low(lane, index);
    }
    EXPECT_EQ(seen.size(), whole);
    EXPECT_TRUE(op.done);
    EXPECT_TRUE(member_->drained());
    std::vector<float> expected(output.size());
    std::iota(expected.begin(), expected.end(), scatter ? static_cast<float>(kRank * shard) : 0.0f);
    EXPECT_EQ(output, expected);
  }
}

std::vector<Size> sizes() {
  std::vector<Size> all;
  for (const uint8_t kind : {GG_ALL_REDUCE, GG_REDUCE_SCATTER, GG_ALL_GATHER, GG_BROADCAST, GG_REDUCE})
    for (const uint8_t lanes : {uint8_t{1}, uint8_t{4}})
      for (const uint64_t bytes : {0, 4, 60, 64, 68, 64 * 64, 64 * 64 + 4, 65 * 64, 200 * 64 + 4})
        if (lanes > 1 || bytes <= 65 * 64) all.push_back({kind, lanes, bytes});
  all.push_back({GG_BARRIER, 4, 0});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Sizes, ChunkingTest, ::testing::ValuesIn(sizes()));

TEST(Chunking, SharesOfAllLanesAreEveryChunkOnce) {
  for (const uint64_t chunks : {1, 2, 63, 64, 65, 66, 127, 1000})
    for (const uint8_t lanes : {1, 2, 8, 64})
      for (const uint32_t call : {0u, 1u, 7u, 0xFFFFFFFFu}) {
        const core::Chunking chunking(GG_ALL_REDUCE, chunks * 1024 - 4, 1024, 2);
        ASSERT_EQ(chunking.chunks, chunks);
        std::set<uint64_t> seen;
        for (uint8_t lane = 0; lane < lanes; ++lane) {
          const core::Chunking::Share share = chunking.share(call, lane, lanes);
          for (uint64_t n = 0; n < share.count; ++n) ASSERT_TRUE(seen.insert(share.first + n * share.stride).second);
          if (lane == call % lanes) {
            ASSERT_GT(share.count, 0u);
            EXPECT_EQ(share.first, 0u) << "calls of different sizes meet in chunk 0";
          }
        }
        ASSERT_EQ(seen.size(), chunks);
        EXPECT_EQ(*seen.rbegin(), chunks - 1);
      }
}

TEST(Chunking, LargestCallDoesNotOverflow) {
  const core::Chunking chunking(GG_ALL_REDUCE, uint64_t{0xFFFFFFFF} * 4, 1024, 2);
  EXPECT_EQ(chunking.chunks, uint64_t{1} << 24);
  EXPECT_EQ(chunking.offset(chunking.chunks - 1) + chunking.length(chunking.chunks - 1), uint64_t{0xFFFFFFFF} * 4);
}

}  // namespace
}  // namespace gradgate::test
