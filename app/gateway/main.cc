// SPDX-License-Identifier: Apache-2.0
// gradgate, the gateway: reads a site's file, brings up the data plane and control, runs until it is told to stop.
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "config/site.h"
#include "control/control.h"
#include "dataplane/start.h"

namespace {

using namespace gradgate;

enum ExitStatus { kStopped = 0, kBadConfiguration = 1, kBadUsage = 2, kCannotStart = 3 };

constexpr const char* kDescription =
    "gradgate sums the gradients of its site's workers, exchanges one partial sum per site with the gateways of other\n"
    "sites, and sends the results back to every worker.";

constexpr const char* kFooter =
    "\nFirst steps:\n"
    "  gradgate --config site.toml --check-config    every fault of the file with line and remedy; needs no root\n"
    "  sudo gradgate --config site.toml              runs until SIGINT or SIGTERM\n"
    "  sudo gradgate --config site.toml -- --log-level=lib.eal:debug    what follows -- goes to DPDK's EAL\n"
    "\n"
    "A file to start from, with every key explained: conf/site-afxdp.toml (kernel interfaces), site-pci.toml (NICs "
    "bound\n"
    "to vfio-pci), site-vm.toml (virtual machines), site-single.toml (one site).\n"
    "\n"
    "Exit status: 0 stopped, 1 bad configuration, 2 bad usage, 3 this machine lacks something that the file needs.\n"
    "Environment: GRADGATE_BPF_OBJECT names the XDP program (gradgate.bpf.o) where it is not installed.";

struct Arguments {
  std::string config;
  std::string log_level;
  bool check = false;
  std::vector<std::string> eal;
};

spdlog::level::level_enum spdlog_level(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::kTrace:
      return spdlog::level::trace;
    case config::LogLevel::kDebug:
      return spdlog::level::debug;
    case config::LogLevel::kInfo:
      return spdlog::level::info;
    case config::LogLevel::kWarn:
      return spdlog::level::warn;
    case config::LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void set_up_log(const config::Log& log, const std::string& level) {
  spdlog::sink_ptr sink;
  if (log.file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(log.file);
  }
  auto logger = std::make_shared<spdlog::logger>("gradgate", std::move(sink));
  logger->set_level(level.empty() ? spdlog_level(log.level) : spdlog::level::from_str(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void print(const std::string& file, const char* kind, const std::vector<config::Fault>& faults) {
  for (const config::Fault& fault : faults) fmt::print(stderr, "{}{}\n", kind, config::to_text(file, fault));
}

/// SIGINT and SIGTERM, taken by a thread of their own, as all others started later hold them back: the first one stops
/// control, also one that comes before there is any, so that no XDP program is left behind; the second one ends the
/// program at once, and the next start cleans up.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGINT);
    ::sigaddset(&set_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    thread_ = std::thread([this] { wait(); });
  }
  ~Signals() {
    done_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  Signals(const Signals&) = delete;

  /// nullptr: none any more.
  void stops(control::Control* control) {
    const std::lock_guard lock(mutex_);
    control_ = control;
    if (control_ != nullptr && pending_) control_->stop();
  }

 private:
  void wait() {
    for (bool first = true;; first = false) {
      int number = 0;
      ::sigwait(&set_, &number);
      if (done_) return;
      if (!first) std::_Exit(128 + number);
      spdlog::info("signal {}: stopping; another one ends the program at once", number);
      const std::lock_guard lock(mutex_);
      pending_ = true;
      if (control_ != nullptr) control_->stop();
    }
  }

  sigset_t set_;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  bool pending_ = false;
  control::Control* control_ = nullptr;
  std::thread thread_;
};

int run(const config::Site& site, const Arguments& arguments) {
  try {
    set_up_log(site.log, arguments.log_level);
  } catch (const spdlog::spdlog_ex& error) {
    fmt::print(stderr, "gradgate: [log] file: {}\n", error.what());
    return kCannotStart;
  }
  dataplane::StartOptions options;
  options.eal = arguments.eal;
  options.debug = spdlog::default_logger()->should_log(spdlog::level::debug);
  try {
    Signals signals;
    const auto dataplane = dataplane::start(site, options);
    control::ControlOptions control_options;
    control_options.signals = false;
    control::Control control(site, *dataplane, control_options);
    control.on_listening([&] {
      std::string ports;
      for (const dataplane::PortStatus& port : dataplane->ports())
        ports += fmt::format(", port {} {} ({}, mtu {}{})", port.name, port.device, port.driver, port.mtu,
                             port.link_up ? "" : ", no link");
      spdlog::info("gradgate: site {} ready: {} lanes on {} lcores, {} buffers for groups{}", site.name,
                   site.dataplane.lanes, dataplane->lcores().size(), dataplane->admissible_buffers(), ports);
    });
    signals.stops(&control);
    control.run();
    signals.stops(nullptr);
  } catch (const dataplane::StartError& error) {
    for (const std::string& fault : error.faults()) spdlog::error("cannot start: {}", fault);
    return kCannotStart;
  } catch (const std::runtime_error& error) {
    spdlog::error("cannot start: {}", error.what());
    return kCannotStart;
  }
  spdlog::info("gradgate: site {} stopped", site.name);
  return kStopped;
}

/// Exit status if there is nothing to run.
std::optional<int> parse(int argc, char** argv, Arguments& arguments) {
  // CLI11 would take what follows "--" for its own positionals.
  std::vector<std::string> own;
  bool eal = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (eal) {
      arguments.eal.push_back(argument);
    } else if (argument == "--") {
      eal = true;
    } else {
      own.push_back(argument);
    }
  }
  std::reverse(own.begin(), own.end());  // as CLI11 wants them

  CLI::App app(kDescription, "gradgate");
  app.footer(kFooter);
  app.set_version_flag("--version", "gradgate " GRADGATE_VERSION);
  app.add_option("-c,--config", arguments.config, "the site's file (TOML)")->required()->type_name("FILE");
  app.add_flag("--check-config", arguments.check, "check the file, print every fault and warning, do not start");
  app.add_option("--log-level", arguments.log_level,
                 "instead of the file's [log] level: trace, debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->type_name("LEVEL");
  try {
    app.parse(own);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kStopped : kBadUsage;
  }
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (const std::optional<int> status = parse(argc, argv, arguments)) return *status;
  const config::Result result = config::load_file(arguments.config);
  print(arguments.config, "warning: ", result.warnings);
  print(arguments.config, "", result.faults);
  if (!result.site) return kBadConfiguration;
  if (arguments.check) {
    fmt::print("{}: site {} (id {}): {} ports, {} peers, {} tenants: no faults\n", arguments.config, result.site->name,
               result.site->id, result.site->ports.size(), result.site->peers.size(), result.site->tenants.size());
    return kStopped;
  }
  return run(*result.site, arguments);
}
