// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 server: connections, limits, slow clients. What is answered is the Handler's business.
#pragma once

#include <utility>  // Boost 1.74's awaitable.hpp forgets it

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace gradgate::control {

namespace asio = boost::asio;
namespace beast = boost::beast;
using HttpRequest = beast::http::request<beast::http::string_body>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string allow;       ///< of a 405
  bool keep_idle = false;  ///< the connection may stay idle for ever from now on
};

class HttpHandler {
 public:
  using Respond = std::function<void(HttpResponse)>;

  virtual ~HttpHandler() = default;
  /// `respond` is called exactly once, now or later, from the same thread. `connection` is unique in the process' life.
  virtual void handle(const HttpRequest& request, const asio::ip::address& client, uint64_t connection,
                      Respond respond) = 0;
  /// The connection is gone; nothing more will be heard of it.
  virtual void closed(uint64_t connection) = 0;
  /// A WebSocket upgrade for /v1/peer.
  virtual void upgrade(beast::tcp_stream stream, HttpRequest request) = 0;
};

struct HttpLimits {
  size_t connections = 1024;
  uint32_t header_bytes = 8 * 1024;
  uint64_t body_bytes = 64 * 1024;
  std::chrono::milliseconds request_timeout{10'000};  ///< from a request's first byte to its last
  std::chrono::milliseconds idle_timeout{60'000};     ///< between requests
};

class HttpServer {
 public:
  HttpServer(asio::io_context& io, HttpHandler& handler, const HttpLimits& limits);
  ~HttpServer();
  /// Throws boost::system::system_error if the address cannot be bound.
  void listen(const asio::ip::tcp::endpoint& endpoint);
  void stop_accepting();
  void close_all();
  uint16_t port() const { return port_; }
  size_t connections() const { return registry_->sessions.size(); }
  uint64_t refused() const { return refused_; }  ///< connections beyond the limit

 private:
  class Session;
  /// Outlives the server as long as a session does.
  struct Registry {
    HttpHandler* handler;
    std::map<uint64_t, std::weak_ptr<Session>> sessions;
    void remove(uint64_t id) {
      if (sessions.erase(id) > 0 && handler != nullptr) handler->closed(id);
    }
  };
  void accept();

  asio::io_context& io_;
  HttpHandler& handler_;
  const HttpLimits limits_;
  asio::ip::tcp::acceptor acceptor_;
  std::shared_ptr<Registry> registry_;
  uint16_t port_ = 0;
  uint64_t next_id_ = 1;
  uint64_t refused_ = 0;
};

}  // namespace gradgate::control
