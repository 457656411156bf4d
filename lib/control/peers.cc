// SPDX-License-Identifier: Apache-2.0
#include "control/peers.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/connect.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>
#include <deque>

#include "control/version.h"

namespace gradgate::control {

namespace websocket = beast::websocket;
using boost::system::error_code;
using tcp = asio::ip::tcp;

namespace {

constexpr std::chrono::seconds kHandshakeTimeout{5};
constexpr size_t kMaxMessageBytes = 1 << 20;
constexpr size_t kMaxQueued = 16384;
constexpr size_t kMaxStrangers = 64;

}  // namespace

class Peers::Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Dialling `dialled`, or taking an accepted stream (0).
  Connection(Peers& peers, beast::tcp_stream stream, uint16_t dialled)
      : peers_(peers), ws_(std::move(stream)), resolver_(peers.io_), timer_(peers.io_), site_(dialled) {}

  uint16_t site() const { return site_; }

  void dial(const config::HostPort& to, const Json& hello, uint32_t link) {
    link_ = link;
    first_ = hello.dump();
    host_ = config::format(to);
    limit_time();
    resolver_.async_resolve(to.host, std::to_string(to.port),
                            [self = shared_from_this()](error_code error, const tcp::resolver::results_type& found) {
                              if (error) return self->fail("cannot resolve " + self->host_ + ": " + error.message());
                              self->connect(found);
                            });
  }

  void accept(HttpRequest request) {
    request_ = std::move(request);
    limit_time();
    prepare();
    ws_.async_accept(request_, [self = shared_from_this()](error_code error) {
      if (error) return self->fail(error.message());
      self->read();
    });
  }

  void send(std::string text) {
    if (closing_) return;
    queue_.push_back(std::move(text));
    if (queue_.size() > kMaxQueued) return fail("it does not read what we send");
    if (queue_.size() == 1 && open_) write();
  }

  /// After what is queued.
  void close() {
    if (closing_) return;
    closing_ = true;
    if (!open_) {
      beast::get_lowest_layer(ws_).close();
    } else if (queue_.empty()) {
      close_socket();
    }
  }

  void fail(const std::string& why) {
    if (failed_) return;
    failed_ = true;
    closing_ = true;
    timer_.cancel();
    resolver_.cancel();
    beast::get_lowest_layer(ws_).close();
    peers_.lost(*this, why);
  }

  uint32_t link() const { return link_; }
  void identify(uint16_t site, uint32_t link) {
    site_ = site;
    link_ = link;
  }
  bool greeted() const { return greeted_; }
  const std::string& remote() const { return remote_; }

 private:
  void limit_time() {
    timer_.expires_after(kHandshakeTimeout);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self != nullptr && !self->greeted_) self->fail("no answer within 5 s");
    });
  }

  void prepare() {
    beast::get_lowest_layer(ws_).expires_never();
    error_code error;
    beast::get_lowest_layer(ws_).socket().set_option(tcp::no_delay(true), error);
    const tcp::endpoint other = beast::get_lowest_layer(ws_).socket().remote_endpoint(error);
    if (!error) remote_ = fmt::format("{}:{}", other.address().to_string(), other.port());
    // Pings find out within the idle time that the other end is gone without a word.
    websocket::stream_base::timeout timeout{};
    timeout.handshake_timeout = kHandshakeTimeout;
    timeout.idle_timeout = std::chrono::seconds(10);
    timeout.keep_alive_pings = true;
    ws_.set_option(timeout);
    ws_.read_message_max(kMaxMessageBytes);
    ws_.text(true);
  }

  void connect(const tcp::resolver::results_type& found) {
    beast::get_lowest_layer(ws_).async_connect(
        found, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
          if (error) return self->fail("cannot connect to " + self->host_ + ": " + error.message());
          self->prepare();
          self->ws_.async_handshake(self->host_, "/v1/peer", [self](error_code refused) {
            if (refused) return self->fail(self->host_ + " refuses /v1/peer: " + refused.message());
            self->open_ = true;
            self->queue_.push_front(std::move(self->first_));
            self->write();
            self->read();
          });
        });
  }

  void read() {
    open_ = true;
    ws_.async_read(buffer_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->fail(error == websocket::error::closed ? "closed by the other side" : error.message());
      self->received();
    });
  }

  void received() {
    const std::string text = beast::buffers_to_string(buffer_.data());
    buffer_.consume(buffer_.size());
    if (closing_) return;
    try {
      const Json message = parse_json(text);
      if (!greeted_) {
        if (!peers_.established(shared_from_this(), message)) return;
        greeted_ = true;
        timer_.cancel();
        peers_.greeted(*this, message);
      } else {
        peers_.membership_->peer_message(site_, message, peers_.dataplane_.now_ns());
      }
    } catch (const BadMessage& error) {
      return fail(std::string("malformed message: ") + error.what());
    }
    read();
  }

  void write() {
    ws_.async_write(asio::buffer(queue_.front()), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->fail(error.message());
      self->queue_.pop_front();
      if (!self->queue_.empty()) return self->write();
      if (self->closing_) self->close_socket();
    });
  }

  void close_socket() {
    ws_.async_close(websocket::close_code::going_away, [self = shared_from_this()](error_code) {});
  }

  Peers& peers_;
  websocket::stream<beast::tcp_stream> ws_;
  tcp::resolver resolver_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::deque<std::string> queue_;
  HttpRequest request_;
  std::string host_, first_;
  std::string remote_ = "?";
  uint16_t site_;
  uint32_t link_ = 0;  ///< what our hello said
  bool open_ = false;
  bool greeted_ = false;
  bool closing_ = false;
  bool failed_ = false;
};

Peers::Peers(asio::io_context& io, const config::Site& site, dataplane::Dataplane& dataplane, SnapshotBuilder& builder,
             Random random)
    : io_(io),
      site_(site),
      dataplane_(dataplane),
      builder_(builder),
      boot_(fmt::format("{:08x}{:08x}", random(), random())) {
  for (size_t i = 0; i < site_.peers.size(); ++i) {
    const auto [entry, fresh] = peers_.emplace(site_.peers[i].id, io_);
    entry->second.position = i;
  }
}

Peers::~Peers() = default;

void Peers::start(Membership& membership) {
  membership_ = &membership;
  for (auto& [site, peer] : peers_)
    if (site > site_.id) dial(site);
}

void Peers::stop() {
  stopping_ = true;
  for (auto& [site, peer] : peers_) {
    peer.redial.cancel();
    if (peer.connection != nullptr) peer.connection->close();
  }
}

Json Peers::hello(size_t position, uint32_t link) const {
  return {{"type", "hello"},
          {"site", site_.id},
          {"name", site_.name},
          {"version", kVersion},
          {"boot", boot_},
          {"peer_boot", peers_.at(site_.peers[position].id).boot},
          {"udp_port", site_.dataplane.udp_port},
          {"link", link},
          {"lanes", site_.dataplane.lanes},
          {"chunk_bytes", site_.dataplane.chunk_bytes}};
}

void Peers::dial(uint16_t site) {
  if (stopping_) return;
  Peer& peer = peers_.at(site);
  const uint32_t link = builder_.draw_peer_link(peer.position);
  const auto connection = std::make_shared<Connection>(*this, beast::tcp_stream(io_), site);
  connection->dial(site_.peers[peer.position].control, hello(peer.position, link), link);
}

void Peers::dial_later(uint16_t site) {
  if (stopping_ || site < site_.id) return;
  Peer& peer = peers_.at(site);
  peer.redial.expires_after(kRedial);
  peer.redial.async_wait([this, site](error_code error) {
    if (!error) dial(site);
  });
}

void Peers::accept(beast::tcp_stream stream, HttpRequest request) {
  // Who has not said hello yet may be anybody: few at a time, and each for 5 s at most.
  std::erase_if(accepted_, [](const auto& weak) {
    const auto connection = weak.lock();
    return connection == nullptr || connection->greeted();
  });
  if (accepted_.size() >= kMaxStrangers) return;
  const auto connection = std::make_shared<Connection>(*this, std::move(stream), uint16_t{0});
  accepted_.push_back(connection);
  connection->accept(std::move(request));
}

bool Peers::established(const std::shared_ptr<Connection>& connection, const Json& message) {
  const Fields fields(message);
  if (fields.text("type", 32) != "hello") throw BadMessage("the first message must be \"hello\"");
  const uint16_t site = static_cast<uint16_t>(fields.number("site", 1, GG_MAX_SITE));
  const std::string name = fields.name("name");
  const bool accepted = connection->site() == 0;
  const auto found = peers_.find(site);
  std::string why;
  if (found == peers_.end()) {
    why = fmt::format("site {} ({}) is no [[peer]] here", site, name);
  } else if (const std::string& expected = site_.peers[found->second.position].site; expected != name) {
    why = fmt::format("it says it is site {} ({}), the site's file says ({})", site, name, expected);
  } else if (accepted && site > site_.id) {
    why = fmt::format("site {} dialled, but the lower site, {}, does", site, site_.id);
  } else if (!accepted && site != connection->site()) {
    why = fmt::format("site {} answers at the control address of site {}", site, connection->site());
  }
  if (!why.empty()) {
    connection->fail(why);
    return false;
  }
  fields.id("boot");
  fields.text("peer_boot", 16);
  fields.number("link", 0, ~uint32_t{0});
  fields.number("udp_port", 1, 65535 - GG_MAX_LANES);
  fields.name("version");
  if (fields.number("lanes", 1, GG_MAX_LANES) != site_.dataplane.lanes)
    spdlog::warn("site {} has {} lanes, this site {}: groups use the smaller number", name,
                 fields.number("lanes", 1, GG_MAX_LANES), site_.dataplane.lanes);
  if (accepted) {
    Peer& peer = found->second;
    const uint32_t link = builder_.draw_peer_link(peer.position);
    connection->identify(site, link);
    connection->send(hello(peer.position, link).dump());
  }
  return true;
}

void Peers::greeted(Connection& connection, const Json& message) {
  const Fields fields(message);
  const uint16_t site = connection.site();
  Peer& peer = peers_.at(site);
  const core::Nanoseconds now = dataplane_.now_ns();
  if (peer.connection != nullptr) {
    const auto old = std::move(peer.connection);
    peer.connection = nullptr;
    membership_->peer_down(site, now);
    old->fail("replaced by a new connection");
  }
  // Both sides hold both boots after both hellos, so both come to the same answer.
  const std::string boot = fields.id("boot");
  const bool new_epoch = peer.boot != boot || fields.text("peer_boot", 16) != boot_;
  if (new_epoch)
    builder_.set_peer(peer.position, connection.link(), static_cast<uint32_t>(fields.number("link", 0, ~uint32_t{0})),
                      static_cast<uint16_t>(fields.number("udp_port", 1, 65535)));
  peer.boot = boot;
  peer.version = fields.name("version");
  peer.unreachable_logged = false;
  peer.connection = connection.shared_from_this();
  spdlog::info("site {} is connected ({}, version {}{})", site_.peers[peer.position].site, connection.remote(),
               peer.version, new_epoch ? ", new epoch" : "");
  membership_->peer_up(site, new_epoch, now);
}

void Peers::lost(const Connection& connection, const std::string& why) {
  const auto found = peers_.find(connection.site());
  if (found == peers_.end()) {
    spdlog::warn("peer connection from {} refused: {}", connection.remote(), why);
    return;
  }
  Peer& peer = found->second;
  const std::string& name = site_.peers[peer.position].site;
  if (peer.connection.get() == &connection) {
    spdlog::warn("the connection to site {} is lost: {}", name, why);
    peer.connection = nullptr;
    if (!stopping_) membership_->peer_down(found->first, dataplane_.now_ns());
  } else if (peer.connection != nullptr) {
    return;  // an old one
  } else if (!peer.unreachable_logged) {
    peer.unreachable_logged = true;
    spdlog::warn("no connection to site {}: {}; trying again every {} ms", name, why, kRedial.count());
  }
  dial_later(found->first);
}

bool Peers::up(uint16_t site) const {
  const auto found = peers_.find(site);
  return found != peers_.end() && found->second.connection != nullptr;
}

void Peers::send(uint16_t site, const Json& message) {
  const auto found = peers_.find(site);
  if (found != peers_.end() && found->second.connection != nullptr) found->second.connection->send(message.dump());
}

std::string Peers::version(uint16_t site) const {
  return up(site) ? peers_.at(site).version : "";
}

}  // namespace gradgate::control
