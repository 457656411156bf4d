// SPDX-License-Identifier: Apache-2.0

// lib/reduce against the fastest plain loop over the same bytes. All buffers lie as payload in received packets does:
// at offset 18 of a cache line (Ethernet, IPv4, UDP, link and frame headers: 82 bytes), scattered over a pool.
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "reduce/reduce.h"
#include "reduce/targets.h"
#include "tests/bench/reduce_plain.h"
#include "wire/gg_wire.h"

namespace gradgate::bench {
namespace {

constexpr size_t kRepeats = 15;
constexpr double kBar = 0.95;
constexpr size_t kHeadroom = 128 + 18;
constexpr size_t kCacheBytes = 256 << 10;
constexpr size_t kMeasuredCacheBytes = 24 << 20;
constexpr size_t kMeasuredDramBytes = 48 << 20;

struct Dtype {
  uint8_t code;
  const char* name;
  uint32_t ones;  ///< 32 bits of elements 1
};

constexpr Dtype kDtypes[] = {{GG_FLOAT32, "float32", 0x3F800000},
                             {GG_BFLOAT16, "bfloat16", 0x3F803F80},
                             {GG_FLOAT16, "float16", 0x3C003C00},
                             {GG_INT32, "int32", 1}};

size_t dram_bytes() {
  const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t wanted = 4 * static_cast<size_t>(std::max(last_level, 0L));
  return std::clamp<size_t>(wanted, size_t{512} << 20, size_t{2} << 30);
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      std::fprintf(stderr, "reduce_bench: no %zu MiB of memory for the DRAM-sized pool\n", bytes >> 20);
      std::exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    data_ = static_cast<uint8_t*>(p);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() { return data_; }
  size_t bytes() const { return bytes_; }

  void fill(uint32_t pattern) {
    for (size_t at = 0; at < bytes_; at += sizeof(pattern)) std::memcpy(data_ + at, &pattern, sizeof(pattern));
  }

 private:
  size_t bytes_;
  uint8_t* data_;
};

/// Calls of n buffers each, in the shuffled order a used mempool hands them out.
class Calls {
 public:
  Calls(Memory& memory, size_t pool_bytes, size_t payload_bytes, size_t n) : n_(n) {
    const size_t stride = payload_bytes + 1024;
    for (size_t at = 0; at + stride <= pool_bytes; at += stride) buffers_.push_back(memory.data() + at + kHeadroom);
    std::mt19937_64 random(1);
    std::shuffle(buffers_.begin(), buffers_.end(), random);
    buffers_.resize(buffers_.size() / n * n);
  }

  uint8_t* const* next() {
    if (at_ == buffers_.size()) at_ = 0;
    uint8_t* const* call = &buffers_[at_];
    at_ += n_;
    return call;
  }

 private:
  size_t n_;
  size_t at_ = 0;
  std::vector<uint8_t*> buffers_;
};

// CPU time, so that other programs on the machine count as little as possible.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Contender {
  std::string name;
  PlainSum plain;  ///< null: lib/reduce
};

void run(const Contender& contender, uint8_t dtype, uint8_t* const* buffers, size_t n, size_t bytes) {
  if (contender.plain != nullptr) return contender.plain(buffers[0], buffers, bytes);
  reduce::sum(dtype, buffers[0], buffers, n, bytes, 1);
}

/// GB/s of input.
double measure(const Contender& contender, uint8_t dtype, Calls& calls, size_t n, size_t bytes, size_t total_bytes) {
  const size_t count = total_bytes / (n * bytes);
  const double start = cpu_seconds();
  for (size_t i = 0; i < count; ++i) run(contender, dtype, calls.next(), n, bytes);
  return 1e-9 * static_cast<double>(count * n * bytes) / (cpu_seconds() - start);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// A contender that computes something else is no contender.
void check_same_sums(const std::vector<Contender>& contenders, uint8_t dtype, size_t n) {
  constexpr size_t kBytes = 1024;
  std::mt19937 random(2);
  std::vector<std::vector<uint8_t>> contents(n, std::vector<uint8_t>(kBytes));
  for (std::vector<uint8_t>& content : contents) {
    // Small positive numbers in every dtype.
    for (size_t at = 0; at < kBytes; at += 2) {
      content[at] = static_cast<uint8_t>(random());
      content[at + 1] = static_cast<uint8_t>(0x30 + random() % 8);
    }
  }
  std::vector<uint8_t> expected;
  for (const Contender& contender : contenders) {
    std::vector<std::vector<uint8_t>> work = contents;
    std::vector<uint8_t*> buffers;
    for (std::vector<uint8_t>& buffer : work) buffers.push_back(buffer.data());
    run(contender, dtype, buffers.data(), n, kBytes);
    if (expected.empty()) expected = work[0];
    if (work[0] == expected) continue;
    std::fprintf(stderr, "reduce_bench: %s gives another sum than lib/reduce\n", contender.name.c_str());
    std::exit(1);
  }
}

struct Row {
  std::string name;
  double ratio;
  bool valid;  ///< false if this CPU can run no plain loop
};

Row compare(const Dtype& dtype, size_t n, size_t bytes, bool in_cache, Memory& memory) {
  std::vector<Contender> contenders = {{"lib/reduce", nullptr}};
  for (const Plain& plain : plain_sums(dtype.code, n)) contenders.push_back({plain.name, plain.sum});
  const std::string name = std::string(dtype.name) + "_n" + std::to_string(n) + "_" + std::to_string(bytes >> 10) +
                           "k_" + (in_cache ? "cache" : "dram");
  if (contenders.size() == 1) return {name, 0, false};
  check_same_sums(contenders, dtype.code, n);

  Calls calls(memory, in_cache ? std::max(kCacheBytes, n * 2 * bytes) : memory.bytes(), bytes, n);
  const size_t total_bytes = in_cache ? kMeasuredCacheBytes : kMeasuredDramBytes;
  std::vector<std::vector<double>> rates(contenders.size());
  for (size_t repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const size_t c = (i + repeat) % contenders.size();
      rates[c].push_back(measure(contenders[c], dtype.code, calls, n, bytes, total_bytes));
    }
  }

  size_t best = 1;
  for (size_t c = 2; c < contenders.size(); ++c) {
    if (median(rates[c]) > median(rates[best])) best = c;
  }
  std::vector<double> ratios;
  for (size_t repeat = 0; repeat < kRepeats; ++repeat) ratios.push_back(rates[0][repeat] / rates[best][repeat]);
  const Row row = {name, median(ratios), true};
  std::printf("%-26s %8.2f %8.2f  %-16s %6.3f\n", row.name.c_str(), median(rates[0]), median(rates[best]),
              contenders[best].name.c_str(), row.ratio);
  std::fflush(stdout);
  return row;
}

void print_json(const std::vector<Row>& rows) {
  std::printf("{\"bench\":\"reduce\",\"rows\":[");
  for (size_t i = 0; i < rows.size(); ++i) {
    std::printf(
        "%s{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"ratio\",\"bar\":%.2f,\"higher_is_better\":true,\"valid\":%s}",
        i == 0 ? "" : ",", rows[i].name.c_str(), rows[i].ratio, kBar, rows[i].valid ? "true" : "false");
  }
  std::printf("]}\n");
}

int run_all() {
  std::printf("target: %s; GB/s of input, CPU time, medians of %zu interleaved repeats; bar: the fastest plain loop\n",
              reduce::targets().front().c_str(), kRepeats);
  std::printf("in cache: pool of %zu KiB; in DRAM: pool of %zu MiB\n\n", kCacheBytes >> 10, dram_bytes() >> 20);
  std::printf("%-26s %8s %8s  %-16s %6s\n", "row", "reduce", "bar", "fastest loop", "ratio");
  Memory memory(dram_bytes());
  std::vector<Row> rows;
  for (const Dtype& dtype : kDtypes) {
    memory.fill(dtype.ones);
    for (const size_t n : {2, 4, 8}) {
      for (const size_t bytes : {1024, 8192}) {
        for (const bool in_cache : {true, false}) rows.push_back(compare(dtype, n, bytes, in_cache, memory));
      }
    }
  }
  print_json(rows);
  return 0;
}

}  // namespace
}  // namespace gradgate::bench

int main() {
  return gradgate::bench::run_all();
}
