// SPDX-License-Identifier: Apache-2.0
// The control connections to other gateways: WebSockets at /v1/peer, one JSON object a message (PROTOCOL.md).
#pragma once

#include <utility>  // Boost 1.74's awaitable.hpp forgets it

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>

#include "config/site.h"
#include "control/http.h"
#include "control/membership.h"

namespace gradgate::control {

class Peers final : public PeerPipe {
 public:
  static constexpr std::chrono::milliseconds kRedial{500};

  Peers(asio::io_context& io, const config::Site& site, dataplane::Dataplane& dataplane, SnapshotBuilder& builder,
        Random random);
  ~Peers() override;

  /// Dials the peers whose site id is above ours, for as long as it takes.
  void start(Membership& membership);
  /// A peer below ours has dialled.
  void accept(beast::tcp_stream stream, HttpRequest request);
  void stop();

  bool up(uint16_t site) const override;
  void send(uint16_t site, const Json& message) override;
  /// Of the other gateway; empty when down.
  std::string version(uint16_t site) const;

 private:
  class Connection;
  struct Peer {
    explicit Peer(asio::io_context& io) : redial(io) {}
    size_t position = 0;  ///< in Site::peers
    std::string boot;     ///< of the epoch that the neighbour is of; empty: none
    std::string version;
    std::shared_ptr<Connection> connection;  ///< after both hellos
    asio::steady_timer redial;
    bool unreachable_logged = false;
  };

  void dial(uint16_t site);
  void dial_later(uint16_t site);
  /// Checks the other side's hello and answers it if it dialled. False: refused and closed.
  bool established(const std::shared_ptr<Connection>& connection, const Json& hello);
  /// Both sides have said hello.
  void greeted(Connection& connection, const Json& hello);
  void lost(const Connection& connection, const std::string& why);
  Json hello(size_t peer, uint32_t link) const;

  asio::io_context& io_;
  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  SnapshotBuilder& builder_;
  Membership* membership_ = nullptr;
  const std::string boot_;
  std::map<uint16_t, Peer> peers_;
  std::vector<std::weak_ptr<Connection>> accepted_;  ///< not all have said hello
  bool stopping_ = false;
};

}  // namespace gradgate::control
