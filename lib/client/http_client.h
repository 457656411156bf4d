// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 connection to a gateway's control port. It stays open after an answer: its end says that the gateway
// is gone (lib/control/PROTOCOL.md).
#pragma once

#include <string>

#include "client/os.h"
#include "core/types.h"

namespace gradgate::client {

struct HttpResponse {
  unsigned status = 0;
  std::string body;
};

class HttpConnection {
 public:
  HttpConnection() = default;

  /// Throws ClientError: GG_ERROR_UNREACHABLE, or GG_ERROR_ABORTED when `cancel_fd` (-1: none) becomes readable.
  static HttpConnection connect(const std::string& host, uint16_t port, core::Nanoseconds deadline, int cancel_fd);

  /// Sends a JSON body and waits for the answer. Throws as connect(); GG_ERROR_TIMEOUT if no answer comes.
  HttpResponse post(const std::string& path, const std::string& body, core::Nanoseconds deadline, int cancel_fd);

  bool is_open() const { return fd_.get() >= 0; }
  int fd() const { return fd_.get(); }
  /// Whether the other end has closed; to be asked when fd() is readable.
  bool ended() const;
  void close() { fd_.reset(); }
  /// Own IPv4 address of the connection.
  std::string local_address() const;

 private:
  UniqueFd fd_;
  std::string where_;  ///< "host:port" for messages
};

}  // namespace gradgate::client
