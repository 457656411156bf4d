// SPDX-License-Identifier: Apache-2.0
#include "client/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

// GCC 12 takes Beast's boost::optional for uninitialised under the sanitizers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#pragma GCC diagnostic pop

#include "client/error.h"

namespace gradgate::client {
namespace http = boost::beast::http;
namespace {

constexpr uint64_t kMaxBodyBytes = 4 << 20;

enum class Ready { kYes, kDeadline };

Ready wait_ready(int fd, short events, core::Nanoseconds deadline, int cancel_fd) {
  for (;;) {
    const core::Nanoseconds now = monotonic_ns();
    if (now >= deadline) return Ready::kDeadline;
    const core::Nanoseconds left = deadline - now;
    timespec timeout{static_cast<time_t>(left / core::kSecond), static_cast<long>(left % core::kSecond)};
    pollfd fds[2] = {{fd, events, 0}, {cancel_fd, POLLIN, 0}};
    const int n = ppoll(fds, 2, &timeout, nullptr);
    if (n < 0 && errno != EINTR) throw system_error("poll", errno);
    if (fds[1].revents != 0 && n > 0) throw ClientError(GG_ERROR_ABORTED, "the communicator was aborted");
    if (fds[0].revents != 0 && n > 0) return Ready::kYes;
  }
}

}  // namespace

HttpConnection HttpConnection::connect(const std::string& host, uint16_t port, core::Nanoseconds deadline,
                                       int cancel_fd) {
  HttpConnection connection;
  connection.where_ = host + ":" + std::to_string(port);
  const std::string who = "cannot reach the gateway at " + connection.where_ + ": ";

  addrinfo hints{};
  hints.ai_family = AF_INET;  // the worker's UDP address is taken from this connection, and udp4 is what workers speak
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw ClientError(GG_ERROR_UNREACHABLE, who + gai_strerror(error));

  std::string reason = "no address";
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) {
      reason = strerror(errno);
      continue;
    }
    int result = ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (result == EINPROGRESS) {
      try {
        if (wait_ready(fd.get(), POLLOUT, deadline, cancel_fd) == Ready::kYes) {
          socklen_t bytes = sizeof result;
          getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &result, &bytes);
        } else {
          result = ETIMEDOUT;
        }
      } catch (...) {
        freeaddrinfo(found);
        throw;
      }
    }
    if (result == 0) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      // The connection is silent for hours; a gateway host that vanished without a FIN is noticed by this at last.
      setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      connection.fd_ = std::move(fd);
      break;
    }
    reason = strerror(result);
  }
  freeaddrinfo(found);
  if (!connection.is_open()) {
    throw ClientError(GG_ERROR_UNREACHABLE,
                      who + reason + "; is gradgate running there, and is this its [control] listen address?");
  }
  return connection;
}

HttpResponse HttpConnection::post(const std::string& path, const std::string& body, core::Nanoseconds deadline,
                                  int cancel_fd) {
  const std::string request = "POST " + path + " HTTP/1.1\r\nHost: " + where_ +
                              "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                              "\r\n\r\n" + body;
  const auto late = [&] {
    return ClientError(GG_ERROR_TIMEOUT, "the gateway at " + where_ + " did not answer " + path + " in time");
  };
  const auto gone = [&](const char* reason) {
    return ClientError(GG_ERROR_UNREACHABLE, "the gateway at " + where_ + " closed the connection: " + reason);
  };

  for (size_t sent = 0; sent < request.size();) {
    const ssize_t n = send(fd_.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      if (wait_ready(fd_.get(), POLLOUT, deadline, cancel_fd) != Ready::kYes) throw late();
    } else if (errno != EINTR) {
      throw gone(strerror(errno));
    }
  }

  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBodyBytes);
  parser.eager(true);
  std::string pending;
  while (!parser.is_done()) {
    if (wait_ready(fd_.get(), POLLIN, deadline, cancel_fd) != Ready::kYes) throw late();
    char buffer[16384];
    const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) throw gone(strerror(errno));
    if (n == 0) throw gone("end of file before the answer");
    pending.append(buffer, static_cast<size_t>(n));
    boost::beast::error_code error;
    const size_t used = parser.put(boost::asio::buffer(pending), error);
    if (error && error != http::error::need_more) {
      throw ClientError(GG_ERROR_UNREACHABLE,
                        "what answers at " + where_ + " is no gradgate gateway (" + error.message() + ")");
    }
    pending.erase(0, used);
  }
  HttpResponse response;
  response.status = parser.get().result_int();
  response.body = std::move(parser.get().body());
  if (!parser.get().keep_alive()) fd_.reset();
  return response;
}

bool HttpConnection::ended() const {
  // A server that gives up on us may say so in a response first; nobody asked, so nobody reads it.
  char buffer[1024];
  ssize_t n;
  do {
    n = recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  } while (n > 0);
  return n == 0 || (errno != EAGAIN && errno != EINTR);
}

std::string HttpConnection::local_address() const {
  sockaddr_in own{};
  socklen_t bytes = sizeof own;
  char text[INET_ADDRSTRLEN] = "";
  if (getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &bytes) == 0)
    inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return text;
}

}  // namespace gradgate::client
