// SPDX-License-Identifier: Apache-2.0
#include "control/http.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <optional>

#include "control/protocol.h"

namespace gradgate::control {

namespace http = beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

class HttpServer::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(HttpServer& server, tcp::socket socket, uint64_t id)
      : server_(server), registry_(server.registry_), stream_(std::move(socket)), buffer_(kBufferBytes), id_(id) {
    error_code error;
    const tcp::endpoint remote = stream_.socket().remote_endpoint(error);
    if (!error) client_ = remote.address();
  }

  ~Session() { registry_->remove(id_); }

  void start() { wait(); }

  void close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  static constexpr size_t kBufferBytes = 128 * 1024;

  /// For the first byte of a request.
  void wait() {
    if (buffer_.size() > 0) return read_header();
    if (keep_idle_) {
      stream_.expires_never();
    } else {
      stream_.expires_after(server_.limits_.idle_timeout);
    }
    stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, size_t bytes) {
      if (error) return;
      self->buffer_.commit(bytes);
      self->read_header();
    });
  }

  void read_header() {
    parser_.emplace();
    parser_->header_limit(server_.limits_.header_bytes);
    parser_->body_limit(server_.limits_.body_bytes);
    stream_.expires_after(server_.limits_.request_timeout);
    http::async_read_header(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->bad_request(error);
      self->header_read();
    });
  }

  void header_read() {
    const auto& header = parser_->get();
    if (header.target() == "/v1/peer" && beast::websocket::is_upgrade(header)) {
      stream_.expires_never();
      server_.handler_.upgrade(std::move(stream_), parser_->release());
      return;
    }
    if (beast::iequals(header[http::field::expect], "100-continue")) {
      static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(stream_, asio::buffer(kContinue, sizeof kContinue - 1),
                        [self = shared_from_this()](error_code error, size_t) {
                          if (!error) self->read_body();
                        });
      return;
    }
    read_body();
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->bad_request(error);
      self->handle();
    });
  }

  void handle() {
    stream_.expires_never();
    const HttpRequest request = parser_->release();
    keep_alive_ = request.keep_alive();
    version_ = request.version();
    responded_ = false;
    server_.handler_.handle(request, client_, id_,
                            [self = shared_from_this()](HttpResponse response) { self->respond(std::move(response)); });
    if (!responded_) watch();
  }

  /// While an answer is held back, a client that goes away must be noticed; what it pipelines waits in the buffer.
  void watch() {
    if (buffer_.size() >= server_.limits_.body_bytes) return;
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, size_t bytes) {
      self->watching_ = false;
      if (error == asio::error::operation_aborted && self->responded_) return self->write();
      if (error) return self->gone();
      self->buffer_.commit(bytes);
      if (self->responded_) return self->write();
      self->watch();
    });
  }

  void gone() {
    responded_ = true;
    close();
    registry_->remove(id_);
  }

  void respond(HttpResponse response) {
    if (responded_) return;  // the client is gone
    responded_ = true;
    keep_idle_ = keep_idle_ || response.keep_idle;
    response_ = {};
    response_.version(version_);
    response_.result(static_cast<unsigned>(response.status));
    response_.set(http::field::server, "gradgate");
    response_.set(http::field::content_type, response.content_type);
    if (!response.allow.empty()) response_.set(http::field::allow, response.allow);
    response_.keep_alive(keep_alive_);
    response_.body() = std::move(response.body);
    response_.prepare_payload();
    // Beast streams allow one read at a time: the watching one ends first.
    if (watching_) {
      stream_.cancel();
    } else {
      write();
    }
  }

  void write() {
    stream_.expires_after(server_.limits_.request_timeout);
    http::async_write(stream_, response_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return;
      if (!self->keep_alive_) return self->linger();
      self->wait();
    });
  }

  void bad_request(error_code error) {
    HttpResponse response;
    std::string code = "bad_request";
    std::string text = "not an HTTP/1.1 request: " + error.message();
    response.status = 400;
    if (error == http::error::body_limit) {
      response.status = 413;
      code = "too_large";
      text = "the body is larger than " + std::to_string(server_.limits_.body_bytes) + " bytes";
    } else if (error == http::error::header_limit) {
      response.status = 431;
      code = "too_large";
      text = "the header is larger than " + std::to_string(server_.limits_.header_bytes) + " bytes";
    } else if (error.category() != http::make_error_code(http::error::bad_method).category() ||
               error == http::error::end_of_stream || error == http::error::partial_message) {
      return;  // closed, reset or too slow
    }
    keep_alive_ = false;
    responded_ = false;
    response.body = to_reply({response.status, code, text}).body.dump();
    respond(std::move(response));
  }

  /// The client may still be sending what we refused: closing now would reset the connection and lose the answer.
  void linger() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(1));
    drain(0);
  }

  void drain(size_t drained) {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this(), drained](error_code error, size_t bytes) {
                              constexpr size_t kMost = 1 << 20;
                              if (!error && drained + bytes < kMost) self->drain(drained + bytes);
                            });
  }

  HttpServer& server_;
  const std::shared_ptr<Registry> registry_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  const uint64_t id_;
  asio::ip::address client_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool keep_idle_ = false;
  bool responded_ = true;
  bool watching_ = false;
};

HttpServer::HttpServer(asio::io_context& io, HttpHandler& handler, const HttpLimits& limits)
    : io_(io),
      handler_(handler),
      limits_(limits),
      acceptor_(io),
      registry_(std::make_shared<Registry>(Registry{&handler, {}})) {}

HttpServer::~HttpServer() {
  registry_->handler = nullptr;
}

void HttpServer::listen(const tcp::endpoint& endpoint) {
  acceptor_.open(endpoint.protocol());
  acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(endpoint);
  acceptor_.listen();
  port_ = acceptor_.local_endpoint().port();
  accept();
}

void HttpServer::accept() {
  acceptor_.async_accept(io_, [this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (error) {
      // Out of descriptors, most likely: the connection stays in the queue, so do not spin on it.
      spdlog::error("control: accept: {}", error.message());
      auto pause = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(100));
      pause->async_wait([this, pause](error_code aborted) {
        if (!aborted && acceptor_.is_open()) accept();
      });
      return;
    }
    if (registry_->sessions.size() >= limits_.connections) {
      ++refused_;
      const std::string body = fmt::format(
          R"({{"code":"too_many_connections","error":"{} connections are open already: close some, or try again"}})",
          limits_.connections);
      const std::string answer = fmt::format(
          "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
          "Connection: close\r\n\r\n{}",
          body.size(), body);
      socket.non_blocking(true, error);
      socket.write_some(asio::buffer(answer), error);
    } else {
      const uint64_t id = next_id_++;
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      socket.set_option(asio::socket_base::keep_alive(true), ignored);
      auto session = std::make_shared<Session>(*this, std::move(socket), id);
      registry_->sessions[id] = session;
      session->start();
    }
    accept();
  });
}

void HttpServer::stop_accepting() {
  error_code ignored;
  acceptor_.close(ignored);
}

void HttpServer::close_all() {
  const auto sessions = registry_->sessions;
  for (const auto& [id, weak] : sessions)
    if (const auto session = weak.lock()) session->close();
}

}  // namespace gradgate::control
