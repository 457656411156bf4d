// SPDX-License-Identifier: Apache-2.0
// What the client's own layers throw; the C API turns it into a code and a text.
#pragma once

#include <stdexcept>
#include <string>

#include "client/gradgate.h"

namespace gradgate::client {

class ClientError : public std::runtime_error {
 public:
  /// `slug`: the gateway's error code of PROTOCOL.md, if it answered.
  ClientError(gg_result_t code, const std::string& text, std::string slug = {})
      : std::runtime_error(text), code_(code), slug_(std::move(slug)) {}
  gg_result_t code() const { return code_; }
  const std::string& slug() const { return slug_; }

 private:
  gg_result_t code_;
  std::string slug_;
};

/// "text: strerror(error)" with GG_ERROR_SYSTEM.
ClientError system_error(const std::string& text, int error);

}  // namespace gradgate::client
