// SPDX-License-Identifier: Apache-2.0
#include "dataplane/eal.h"

#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <mutex>
#include <set>

#include "dataplane/join.h"

namespace gradgate::dataplane {

namespace {

/// Lines that DPDK and libbpf would print on their own go through our log; the last ones explain a failure.
class Words {
 public:
  void say(std::string_view text) {
    const std::lock_guard lock(mutex_);
    for (const char c : text) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (!line_.empty()) {
        spdlog::debug("dpdk: {}", line_);
        last_.push_back(std::move(line_));
        if (last_.size() > kKept) last_.pop_front();
      }
      line_.clear();
    }
  }

  std::string take() {
    const std::lock_guard lock(mutex_);
    if (last_.empty()) return {};
    const std::string text = fmt::format("; DPDK says: {}", join(last_, " | "));
    last_.clear();
    return text;
  }

 private:
  static constexpr size_t kKept = 4;
  std::mutex mutex_;
  std::string line_;
  std::deque<std::string> last_;
};

Words& words() {
  static Words instance;
  return instance;
}

ssize_t write_words(void*, const char* text, size_t bytes) {
  words().say({text, bytes});
  return static_cast<ssize_t>(bytes);
}

int print_libbpf(libbpf_print_level level, const char* format, va_list arguments) {
  if (level == LIBBPF_DEBUG) return 0;
  char text[512];
  const int bytes = std::vsnprintf(text, sizeof text, format, arguments);
  words().say(text);
  return bytes;
}

}  // namespace

std::vector<std::string> eal_arguments(const config::Site& site, const MemoryPlan& memory,
                                       const std::vector<unsigned>& allowed_cpus, const StartOptions& options) {
  // One prefix for all: neither way of taking memory below leaves files under it that two processes could share.
  std::vector<std::string> arguments{"gradgate", "--no-telemetry", "--iova-mode=va", "--file-prefix=gradgate"};
  if (memory.hugepages) {
    arguments.push_back("--in-memory");
    // virtio-user hands its memory over as one file descriptor a segment list.
    const bool virtio_user = std::any_of(site.ports.begin(), site.ports.end(), [](const config::Port& port) {
      return port.device.text.starts_with("net_virtio_user");
    });
    if (virtio_user) arguments.push_back("--single-file-segments");
  } else {
    arguments.push_back("--no-huge");
    arguments.push_back("--no-shconf");  // 22.11 refuses --in-memory here
    arguments.push_back("-m");
    arguments.push_back(std::to_string((memory.needed_bytes + (1 << 20) - 1) >> 20));
  }
  bool pci = false;
  for (const config::Port& port : site.ports) {
    if (port.device.kind != config::PortDevice::Kind::kPci) continue;
    pci = true;
    arguments.push_back("-a");
    arguments.push_back(port.device.text);
  }
  if (!pci) arguments.push_back("--no-pci");

  const std::vector<unsigned>& workers = site.dataplane.lcores;
  const std::set<unsigned> taken(workers.begin(), workers.end());
  std::vector<unsigned> free;
  std::copy_if(allowed_cpus.begin(), allowed_cpus.end(), std::back_inserter(free),
               [&](unsigned cpu) { return !taken.contains(cpu); });
  const std::vector<unsigned>& control = free.empty() ? allowed_cpus : free;
  std::string lcores = fmt::format("--lcores=0@({})", join(control, ","));
  for (unsigned k = 0; k < worker_count(site.dataplane); ++k) {
    lcores += workers.empty() ? fmt::format(",{}@({})", worker_lcore(k), join(allowed_cpus, ","))
                              : fmt::format(",{}@{}", worker_lcore(k), workers[k]);
  }
  arguments.push_back(lcores);
  arguments.push_back("--main-lcore=0");
  arguments.push_back(options.debug ? "--log-level=*:info" : "--log-level=*:error");
  arguments.insert(arguments.end(), site.dataplane.eal.begin(), site.dataplane.eal.end());
  arguments.insert(arguments.end(), options.eal.begin(), options.eal.end());
  return arguments;
}

void eal_init(const std::vector<std::string>& arguments, bool debug) {
  cookie_io_functions_t functions{};
  functions.write = write_words;
  FILE* const stream = ::fopencookie(nullptr, "w", functions);
  ::setvbuf(stream, nullptr, _IOLBF, 0);
  rte_openlog_stream(stream);
  libbpf_set_print(print_libbpf);
  if (debug) spdlog::debug("EAL arguments: {}", join(arguments, " "));

  // EAL permutes argv and keeps pointers into it.
  static std::vector<std::string> kept;
  kept = arguments;
  std::vector<char*> argv;
  for (std::string& argument : kept) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int result = rte_eal_init(static_cast<int>(kept.size()), argv.data());
  if (result < 0)
    throw StartError(fmt::format("DPDK's EAL does not start: {}{}; its arguments were: {}", rte_strerror(rte_errno),
                                 dpdk_words(), join(arguments, " ")));
  dpdk_words();
}

std::string dpdk_words() {
  return words().take();
}

}  // namespace gradgate::dataplane
