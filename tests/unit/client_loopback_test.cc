// SPDX-License-Identifier: Apache-2.0
// The C API against a gateway of one site on loopback: collectives, losses, failures.
#include <gtest/gtest.h>
#include <poll.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "client/gradgate.h"
#include "tests/unit/client_fake_gateway.h"

extern "C" int client_c_example(const char* gateway, int rank);

namespace gradgate::test {
namespace {

constexpr uint32_t kPatience = 60'000;  // ms; only a failing test waits so long

/// A buffer at an address that is aligned to nothing.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes + 1) {}
  explicit Buffer(const std::vector<uint8_t>& content) : Buffer(content.size()) {
    if (!content.empty()) memcpy(data(), content.data(), content.size());
  }
  uint8_t* data() { return bytes_.data() + 1; }
  std::vector<uint8_t> content() const { return {bytes_.begin() + 1, bytes_.end()}; }

 private:
  std::vector<uint8_t> bytes_;
};

int value(uint32_t rank, uint64_t element) {
  return static_cast<int>((element * 7 + rank * 13 + element / 1000) % 17) - 8;
}

uint16_t half(int v) {
  if (v == 0) return 0;
  const auto magnitude = static_cast<uint32_t>(std::abs(v));
  const auto exponent = static_cast<uint32_t>(std::bit_width(magnitude)) - 1;
  return static_cast<uint16_t>((v < 0 ? 0x8000u : 0) | (exponent + 15) << 10 |
                               ((magnitude << (10 - exponent)) & 0x3FF));
}

std::vector<uint8_t> encode(gg_dtype_t dtype, size_t count, const std::function<int(size_t)>& element) {
  const size_t bytes = gg_dtype_bytes(static_cast<uint8_t>(dtype));
  std::vector<uint8_t> out(count * bytes);
  for (size_t i = 0; i < count; ++i) {
    const int v = element(i);
    const float f = static_cast<float>(v);
    uint16_t h = half(v);
    if (dtype == GG_DTYPE_BFLOAT16) h = static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
    const auto b = static_cast<uint8_t>(v);
    const void* from = dtype == GG_DTYPE_FLOAT32 ? static_cast<const void*>(&f)
                       : dtype == GG_DTYPE_INT32 ? static_cast<const void*>(&v)
                       : dtype == GG_DTYPE_BYTES ? static_cast<const void*>(&b)
                                                 : static_cast<const void*>(&h);
    memcpy(&out[i * bytes], from, bytes);
  }
  return out;
}

gg_comm_t join(const FakeGateway& gateway, int rank, int size) {
  gg_config_t config;
  gg_config_init(&config);
  const std::string address = gateway.address();
  config.gateway = address.c_str();
  config.tenant = "lab";
  config.token = "secret";
  config.job = "test";
  config.rank = rank;
  config.size = size;
  config.join_timeout_ms = kPatience;
  gg_comm_t comm = nullptr;
  EXPECT_EQ(gg_comm_init(&comm, &config), GG_SUCCESS) << gg_last_error(nullptr);
  return comm;
}

/// Runs `body` as every rank, each in a thread of its own, once all have joined; destroys the communicators.
void as_ranks(const FakeGateway& gateway, int size, const std::function<void(gg_comm_t, int)>& body) {
  std::vector<std::thread> threads;
  std::barrier all_joined(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      gg_comm_t comm = join(gateway, rank, size);
      all_joined.arrive_and_wait();
      if (comm != nullptr) body(comm, rank);
      EXPECT_EQ(gg_comm_destroy(comm), GG_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#define EXPECT_OK(call) EXPECT_EQ(call, GG_SUCCESS) << gg_last_error(nullptr)

/// Every kind once, with `count` elements (per rank for reduce-scatter and all-gather), results compared bit by bit.
void all_kinds(gg_comm_t comm, int rank, int size, gg_dtype_t dtype, size_t count) {
  const size_t bytes = gg_dtype_bytes(static_cast<uint8_t>(dtype));
  const auto own = [&](size_t i) { return value(static_cast<uint32_t>(rank), i); };
  const auto sum = [&](size_t i) {
    int total = 0;
    for (int r = 0; r < size; ++r) total += value(static_cast<uint32_t>(r), i);
    return total;
  };
  const size_t total = count * static_cast<size_t>(size);
  const size_t shard = count * static_cast<size_t>(rank);
  const int root = size - 1;

  if (dtype != GG_DTYPE_BYTES) {
    Buffer in(encode(dtype, count, own)), out(count * bytes);
    EXPECT_OK(gg_all_reduce(comm, in.data(), out.data(), count, dtype, GG_OP_SUM, nullptr));
    EXPECT_TRUE(out.content() == encode(dtype, count, sum)) << "all_reduce";
    EXPECT_OK(gg_all_reduce(comm, in.data(), in.data(), count, dtype, GG_OP_SUM, nullptr));
    EXPECT_TRUE(in.content() == encode(dtype, count, sum)) << "all_reduce in place";

    Buffer scaled(encode(dtype, count, [&](size_t i) { return own(i) * size; }));
    EXPECT_OK(gg_all_reduce(comm, scaled.data(), scaled.data(), count, dtype, GG_OP_AVERAGE, nullptr));
    EXPECT_TRUE(scaled.content() == encode(dtype, count, sum)) << "average";

    Buffer whole(encode(dtype, total, own)), part(count * bytes);
    EXPECT_OK(gg_reduce_scatter(comm, whole.data(), part.data(), count, dtype, GG_OP_SUM, nullptr));
    const std::vector<uint8_t> scattered = encode(dtype, count, [&](size_t i) { return sum(shard + i); });
    EXPECT_TRUE(part.content() == scattered) << "reduce_scatter";
    EXPECT_OK(gg_reduce_scatter(comm, whole.data(), whole.data() + shard * bytes, count, dtype, GG_OP_SUM, nullptr));
    EXPECT_TRUE(std::vector<uint8_t>(whole.data() + shard * bytes, whole.data() + (shard + count) * bytes) == scattered)
        << "reduce_scatter in place";

    Buffer reduced(encode(dtype, count, own));
    EXPECT_OK(gg_reduce(comm, reduced.data(), reduced.data(), count, dtype, GG_OP_SUM, root, nullptr));
    EXPECT_TRUE(reduced.content() == encode(dtype, count, rank == root ? std::function<int(size_t)>(sum) : own))
        << "reduce";
  }
  const std::vector<uint8_t> gathered = encode(dtype, total, [&](size_t i) {
    return value(static_cast<uint32_t>(i / std::max<size_t>(count, 1)), i % std::max<size_t>(count, 1));
  });
  Buffer in(encode(dtype, count, own)), whole(total * bytes);
  EXPECT_OK(gg_all_gather(comm, in.data(), whole.data(), count, dtype, nullptr));
  EXPECT_TRUE(whole.content() == gathered) << "all_gather";
  Buffer in_place(total * bytes);
  if (count > 0) memcpy(in_place.data() + shard * bytes, in.data(), count * bytes);
  EXPECT_OK(gg_all_gather(comm, in_place.data() + shard * bytes, in_place.data(), count, dtype, nullptr));
  EXPECT_TRUE(in_place.content() == gathered) << "all_gather in place";

  Buffer buffer(encode(dtype, count, own));
  EXPECT_OK(gg_broadcast(comm, buffer.data(), count, dtype, root, nullptr));
  EXPECT_TRUE(buffer.content() == encode(dtype, count, [&](size_t i) { return value(static_cast<uint32_t>(root), i); }))
      << "broadcast";
  EXPECT_OK(gg_barrier(comm, nullptr));
}

const gg_dtype_t kDtypes[] = {GG_DTYPE_FLOAT32, GG_DTYPE_FLOAT16, GG_DTYPE_BFLOAT16, GG_DTYPE_INT32, GG_DTYPE_BYTES};

TEST(ClientLoopback, EveryKindTypeAndSize) {
  FakeGateway gateway({.size = 3});
  as_ranks(gateway, 3, [](gg_comm_t comm, int rank) {
    for (const gg_dtype_t dtype : kDtypes) {
      for (const size_t count : {0, 1, 2, 511, 513, 100'003}) {
        SCOPED_TRACE("dtype " + std::to_string(dtype) + " count " + std::to_string(count));
        all_kinds(comm, rank, 3, dtype, count);
      }
    }
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
  });
  EXPECT_EQ(gateway.left(), 3u);
}

TEST(ClientLoopback, ExampleInC) {
  FakeGateway gateway({.size = 2});
  std::thread other([&] { EXPECT_EQ(client_c_example(gateway.address().c_str(), 0), 0); });
  EXPECT_EQ(client_c_example(gateway.address().c_str(), 1), 0);
  other.join();
}

TEST(ClientLoopback, GroupOfOneAndOfFour) {
  for (const int size : {1, 4}) {
    FakeGateway gateway({.size = static_cast<uint16_t>(size), .lanes = 1, .window = 16});
    as_ranks(gateway, size, [&](gg_comm_t comm, int rank) {
      all_kinds(comm, rank, size, GG_DTYPE_FLOAT32, 10'001);
      EXPECT_OK(gg_comm_finalize(comm, kPatience));
    });
  }
}

TEST(ClientLoopback, ThreeMebibytesWithTrailers) {
  FakeGateway gateway({.size = 2, .trailer_crc = true});
  as_ranks(gateway, 2, [](gg_comm_t comm, int rank) {
    all_kinds(comm, rank, 2, GG_DTYPE_FLOAT32, 786'432);
    gg_stats_t stats;
    EXPECT_OK(gg_comm_stats(comm, &stats));
    EXPECT_EQ(stats.calls, 10u);
    EXPECT_GT(stats.bytes_sent, 3u << 20);
    EXPECT_GT(stats.bytes_received, 3u << 20);
    EXPECT_GT(stats.chunks, 3u * 3072);
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
  });
}

TEST(ClientLoopback, FivePercentLoss) {
  FakeGateway gateway({.size = 3, .loss = 0.05});
  as_ranks(gateway, 3, [](gg_comm_t comm, int rank) {
    for (const gg_dtype_t dtype : kDtypes) all_kinds(comm, rank, 3, dtype, 20'001);
    gg_stats_t stats;
    EXPECT_OK(gg_comm_stats(comm, &stats));
    EXPECT_GT(stats.frames_resent, 0u);
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
  });
}

TEST(ClientLoopback, ManyRequestsAtOnce) {
  FakeGateway gateway({.size = 2});
  as_ranks(gateway, 2, [](gg_comm_t comm, int rank) {
    constexpr size_t kRequests = 100;
    std::vector<std::vector<int32_t>> data;
    std::vector<gg_request_t> requests(kRequests);
    for (size_t r = 0; r < kRequests; ++r) data.emplace_back(r * 37, static_cast<int32_t>(r) + rank);
    for (size_t r = 0; r < kRequests; ++r) {
      EXPECT_OK(
          gg_all_reduce(comm, data[r].data(), data[r].data(), data[r].size(), GG_DTYPE_INT32, GG_OP_SUM, &requests[r]));
    }
    for (size_t r = kRequests; r-- > 0;) {
      EXPECT_OK(gg_wait(requests[r], kPatience));
      EXPECT_EQ(data[r], std::vector<int32_t>(r * 37, static_cast<int32_t>(2 * r) + 1));
      int done = 0;
      EXPECT_OK(gg_test(requests[r], &done));
      EXPECT_EQ(done, 1);
      gg_request_free(requests[r]);
    }
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
    EXPECT_EQ(gg_barrier(comm, nullptr), GG_ERROR_ARGUMENT);
    EXPECT_STREQ(gg_last_error(comm), "the communicator is finalized and takes no more calls");
  });
  EXPECT_EQ(gateway.left(), 2u);
}

TEST(ClientLoopback, FreedRequestGoesOn) {
  FakeGateway gateway({.size = 2});
  as_ranks(gateway, 2, [](gg_comm_t comm, int) {
    std::vector<float> x(5000, 1);
    gg_request_t request;
    EXPECT_OK(gg_all_reduce(comm, x.data(), x.data(), x.size(), GG_DTYPE_FLOAT32, GG_OP_SUM, &request));
    gg_request_free(request);
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
    EXPECT_EQ(x, std::vector<float>(5000, 2));
  });
}

TEST(ClientLoopback, WaitTimesOutAndGoesOn) {
  FakeGateway gateway({.size = 2});
  client::WakeFd timed_out;
  as_ranks(gateway, 2, [&](gg_comm_t comm, int rank) {
    float x = 1;
    if (rank == 1) {
      pollfd fd{timed_out.get(), POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, kPatience), 1);
      EXPECT_OK(gg_all_reduce(comm, &x, &x, 1, GG_DTYPE_FLOAT32, GG_OP_SUM, nullptr));
    } else {
      gg_request_t request;
      EXPECT_OK(gg_all_reduce(comm, &x, &x, 1, GG_DTYPE_FLOAT32, GG_OP_SUM, &request));
      int done = 1;
      EXPECT_OK(gg_test(request, &done));
      EXPECT_EQ(done, 0);
      EXPECT_EQ(gg_wait(request, 20), GG_ERROR_TIMEOUT);
      EXPECT_EQ(gg_comm_finalize(comm, 1), GG_ERROR_TIMEOUT);
      timed_out.signal();
      EXPECT_OK(gg_wait(request, kPatience));
      gg_request_free(request);
    }
    EXPECT_EQ(x, 2);
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
  });
}

TEST(ClientLoopback, MismatchNamesBothCalls) {
  FakeGateway gateway({.size = 3});
  as_ranks(gateway, 3, [](gg_comm_t comm, int rank) {
    std::vector<float> x(3000);
    const gg_result_t result =
        rank == 1 ? gg_reduce(comm, x.data(), x.data(), 300, GG_DTYPE_FLOAT32, GG_OP_SUM, 0, nullptr)
                  : gg_all_reduce(comm, x.data(), x.data(), 3000, GG_DTYPE_FLOAT32, GG_OP_SUM, nullptr);
    // A rank whose reduce needs nothing from anybody may be through before the gateway compares.
    EXPECT_EQ(rank == 1 && result == GG_SUCCESS ? gg_barrier(comm, nullptr) : result, GG_ERROR_GROUP_FAILED);
    const std::string text = gg_last_error(comm);
    EXPECT_NE(text.find("rank 1 called reduce of 300 elements"), std::string::npos) << text;
    EXPECT_NE(text.find("called all_reduce of 3000 elements"), std::string::npos) << text;
    EXPECT_EQ(gg_barrier(comm, nullptr), GG_ERROR_GROUP_FAILED);
    EXPECT_EQ(gg_comm_finalize(comm, kPatience), GG_ERROR_GROUP_FAILED);
    EXPECT_EQ(gg_last_error(nullptr), text);
  });
}

TEST(ClientLoopback, LostMemberFailsTheOthers) {
  FakeGateway gateway({.size = 3});
  as_ranks(gateway, 3, [](gg_comm_t comm, int rank) {
    std::vector<float> x(3000);
    if (rank == 2) return;  // destroyed without having finalized: as if killed
    gg_request_t request = nullptr;
    gg_result_t result = gg_all_reduce(comm, x.data(), x.data(), x.size(), GG_DTYPE_FLOAT32, GG_OP_SUM, &request);
    if (result == GG_SUCCESS) {
      result = gg_wait(request, kPatience);
    } else {
      EXPECT_EQ(request, nullptr);
    }
    EXPECT_EQ(result, GG_ERROR_GROUP_FAILED);
    EXPECT_STREQ(gg_last_error(comm), "rank 2 at site fake is gone");
    gg_request_free(request);
  });
}

TEST(ClientLoopback, AbortWakesEveryThread) {
  FakeGateway gateway({.size = 2});
  std::barrier aborted(2);
  as_ranks(gateway, 2, [&](gg_comm_t comm, int rank) {
    if (rank == 0) {
      float x = 1;
      gg_request_t request = nullptr;
      EXPECT_OK(gg_all_reduce(comm, &x, &x, 1, GG_DTYPE_FLOAT32, GG_OP_SUM, &request));
      std::thread waiter([&] { EXPECT_EQ(gg_wait(request, kPatience), GG_ERROR_ABORTED); });
      EXPECT_OK(gg_comm_abort(comm));
      waiter.join();
      gg_request_free(request);
      EXPECT_EQ(gg_barrier(comm, nullptr), GG_ERROR_ABORTED);
    }
    aborted.arrive_and_wait();
  });
}

TEST(ClientLoopback, RequestOutlivesItsCommunicator) {
  FakeGateway gateway({.size = 2});
  std::barrier submitted(2);
  gg_request_t request = nullptr;
  float x = 1;
  as_ranks(gateway, 2, [&](gg_comm_t comm, int rank) {
    if (rank == 0) {
      EXPECT_OK(gg_all_reduce(comm, &x, &x, 1, GG_DTYPE_FLOAT32, GG_OP_SUM, &request));
    }
    submitted.arrive_and_wait();
  });
  const gg_result_t result = gg_wait(request, 0);
  EXPECT_TRUE(result == GG_ERROR_ABORTED || result == GG_ERROR_GROUP_FAILED) << result;
  gg_request_free(request);
}

TEST(ClientLoopback, GatewayRestartsInTheMiddle) {
  for (const double loss : {0.0, 0.02}) {
    FakeGateway gateway({.size = 3, .loss = loss});
    as_ranks(gateway, 3, [&](gg_comm_t comm, int rank) {
      for (int round = 0; round < 6; ++round) {
        const size_t count = 400'003;
        const auto own = [&](size_t i) { return value(static_cast<uint32_t>(rank), i + static_cast<size_t>(round)); };
        std::vector<uint8_t> x = encode(GG_DTYPE_FLOAT32, count, own);
        gg_request_t request;
        EXPECT_OK(gg_all_reduce(comm, x.data(), x.data(), count, GG_DTYPE_FLOAT32, GG_OP_SUM, &request));
        if (rank == 1 && round % 2 == 0) gateway.restart();
        EXPECT_OK(gg_wait(request, kPatience));
        gg_request_free(request);
        EXPECT_TRUE(x == encode(GG_DTYPE_FLOAT32, count,
                                [&](size_t i) {
                                  int total = 0;
                                  for (uint32_t r = 0; r < 3; ++r) total += value(r, i + static_cast<size_t>(round));
                                  return total;
                                }))
            << "round " << round;
      }
      gg_stats_t stats;
      EXPECT_OK(gg_comm_stats(comm, &stats));
      EXPECT_GE(stats.gateway_restarts, 1u);
      EXPECT_OK(gg_comm_finalize(comm, kPatience));
    });
  }
}

TEST(ClientLoopback, GatewayGoneForGood) {
  FakeGateway gateway({.size = 2, .call_timeout_ms = 1000});
  as_ranks(gateway, 2, [&](gg_comm_t comm, int rank) {
    if (rank == 0) gateway.die();
    const gg_result_t result = gg_barrier(comm, nullptr);
    if (result == GG_SUCCESS) {  // it was faster than the death
      EXPECT_EQ(gg_barrier(comm, nullptr), GG_ERROR_UNREACHABLE);
    } else {
      EXPECT_EQ(result, GG_ERROR_UNREACHABLE);
    }
    const std::string text = gg_last_error(comm);
    EXPECT_NE(text.find("went away (its control connection ended)"), std::string::npos) << text;
  });
}

TEST(ClientLoopback, UdpThatDoesNotArriveIsNoticedAtTheStart) {
  FakeGateway gateway({.size = 1, .deaf = true, .worker_timeout_ms = 300});
  gg_config_t config;
  gg_config_init(&config);
  const std::string address = gateway.address();
  config.gateway = address.c_str();
  config.tenant = config.job = "x";
  config.token = "secret";
  config.rank = 0;
  config.size = 1;
  gg_comm_t comm = nullptr;
  EXPECT_EQ(gg_comm_init(&comm, &config), GG_ERROR_UNREACHABLE);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(std::string(gg_last_error(nullptr)).find("no answer to a UDP packet"), std::string::npos);
}

TEST(ClientLoopback, BuffersAreGivenBack) {
  FakeGateway gateway({.size = 2, .loss = 0.02});
  as_ranks(gateway, 2, [](gg_comm_t comm, int rank) {
    all_kinds(comm, rank, 2, GG_DTYPE_FLOAT32, 50'000);
    EXPECT_OK(gg_comm_finalize(comm, kPatience));
  });
  gateway.die();
  EXPECT_EQ(gateway.buffers_held(), 0);
}

}  // namespace
}  // namespace gradgate::test
