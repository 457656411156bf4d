// SPDX-License-Identifier: Apache-2.0
#include "control/control.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/signal_set.hpp>
#include <random>

#include "control/api.h"
#include "control/http.h"
#include "control/peers.h"
#include "control/watchdog.h"

namespace gradgate::control {

namespace {

using boost::system::error_code;

constexpr std::chrono::milliseconds kTick{100};
/// While a group waits for the lcores to adopt its slots.
constexpr std::chrono::milliseconds kFastTick{1};
/// For ERROR frames to reach the workers before the data plane stops.
constexpr std::chrono::milliseconds kDrain{1000};
/// For the close handshakes of peer connections.
constexpr std::chrono::milliseconds kClose{100};

uint32_t random_bits() {
  // /dev/urandom or RDRAND: link ids must not be guessed.
  thread_local std::random_device device;
  return device();
}

asio::ip::tcp::endpoint endpoint_of(const config::SocketAddress& address) {
  if (const auto* ip4 = std::get_if<config::Ip4>(&address.address))
    return {asio::ip::address_v4(ip4->bytes), address.port};
  return {asio::ip::address_v6(std::get<config::Ip6>(address.address).bytes), address.port};
}

}  // namespace

class Control::Impl final : public HttpHandler {
 public:
  Impl(const config::Site& site, dataplane::Dataplane& dataplane, const ControlOptions& options)
      : site_(site),
        dataplane_(dataplane),
        started_(dataplane.now_ns()),
        signals_(io_),
        timer_(io_),
        drain_(io_),
        builder_(site, dataplane, random_bits),
        peers_(io_, site, dataplane, builder_, random_bits),
        membership_(site, dataplane, builder_, peers_, random_bits),
        watchdog_(site, dataplane, builder_, membership_),
        api_(site, dataplane, membership_, [this] { return view(); }),
        http_(io_, *this, limits(options)) {
    if (options.signals) {
      signals_.add(SIGINT);
      signals_.add(SIGTERM);
    }
    membership_.on_awaiting([this] { asio::post(io_, [this] { hurry(); }); });
    try {
      http_.listen(endpoint_of(site.control.listen));
    } catch (const boost::system::system_error& error) {
      throw std::runtime_error(fmt::format(
          "[control] listen = \"{}\": {}: use an address of this machine and a port that no other program listens on",
          config::format(site.control.listen), error.code().message()));
    }
  }

  void run() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      spdlog::info("signal {}: stopping", signal);
      stop();
    });
    builder_.publish();
    peers_.start(membership_);
    tick();
    asio::post(io_, [this] {
      spdlog::info("site {} (id {}) listens for workers, peers and operators on {}", site_.name, site_.id,
                   config::format(site_.control.listen));
      if (!config::is_loopback(site_.control.listen.address))
        spdlog::warn("[control] has no TLS in this version: tenants' tokens cross the network in clear text");
      if (listening) listening();
    });
    io_.run();
  }

  void post_stop() {
    asio::post(io_, [this] { stop(); });
  }

  uint16_t port() const { return http_.port(); }

  std::function<void()> listening;

 private:
  static HttpLimits limits(const ControlOptions& options) {
    HttpLimits limits;
    limits.request_timeout = std::chrono::milliseconds(options.request_timeout_ns / core::kMillisecond);
    return limits;
  }

  void tick() {
    const core::Nanoseconds now = dataplane_.now_ns();
    if (now >= next_watch_) {
      next_watch_ = now + static_cast<core::Nanoseconds>(std::chrono::nanoseconds(kTick).count());
      watchdog_.tick(now);
    }
    membership_.tick(now);
    arm();
  }

  void arm() {
    timer_.expires_after(membership_.waits_for_adoption() ? kFastTick : kTick);
    timer_.async_wait([this](error_code error) {
      if (!error) tick();
    });
  }

  /// A group waits for the lcores: look sooner than the running timer would.
  void hurry() {
    if (timer_.expiry() > std::chrono::steady_clock::now() + kFastTick && timer_.cancel() > 0) arm();
  }

  void stop() {
    if (stopping_) return;
    stopping_ = true;
    error_code ignored;
    signals_.cancel(ignored);
    http_.stop_accepting();
    const bool workers = !membership_.groups().empty();
    membership_.stop(dataplane_.now_ns());
    drain_.expires_after(workers ? kDrain : std::chrono::milliseconds(0));
    drain_.async_wait([this](error_code) {
      peers_.stop();
      http_.close_all();
      drain_.expires_after(kClose);
      drain_.async_wait([this](error_code) { io_.stop(); });
    });
  }

  View view() const {
    return {site_, dataplane_, builder_, membership_, peers_, started_, http_.connections(), http_.refused()};
  }

  void handle(const HttpRequest& request, const asio::ip::address& client, uint64_t connection,
              Respond respond) override {
    api_.handle(request, client, connection, std::move(respond));
  }

  void closed(uint64_t connection) override { membership_.disconnected(connection, dataplane_.now_ns()); }

  void upgrade(beast::tcp_stream stream, HttpRequest request) override {
    peers_.accept(std::move(stream), std::move(request));
  }

  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  const core::Nanoseconds started_;
  core::Nanoseconds next_watch_ = 0;
  bool stopping_ = false;

  // Handlers that are still queued when this goes hold sessions: the queue goes last.
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::steady_timer timer_;
  asio::steady_timer drain_;
  SnapshotBuilder builder_;
  Peers peers_;
  Membership membership_;
  Watchdog watchdog_;
  Api api_;
  HttpServer http_;
};

Control::Control(const config::Site& site, dataplane::Dataplane& dataplane, const ControlOptions& options)
    : impl_(std::make_unique<Impl>(site, dataplane, options)) {}

Control::~Control() = default;

uint16_t Control::port() const {
  return impl_->port();
}

void Control::on_listening(std::function<void()> callback) {
  impl_->listening = std::move(callback);
}

void Control::run() {
  impl_->run();
}

void Control::stop() {
  impl_->post_stop();
}

}  // namespace gradgate::control
