// SPDX-License-Identifier: Apache-2.0
// What each path of the HTTP API does (PROTOCOL.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "control/http.h"
#include "control/membership.h"
#include "control/metrics.h"

namespace gradgate::control {

/// Compares without telling by its duration where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

class Api {
 public:
  Api(const config::Site& site, dataplane::Dataplane& dataplane, Membership& membership, std::function<View()> view)
      : site_(site), dataplane_(dataplane), membership_(membership), view_(std::move(view)) {}

  void handle(const HttpRequest& request, const asio::ip::address& client, uint64_t connection,
              HttpHandler::Respond respond);

 private:
  /// Both throw BadMessage. `client` is the default of "address".
  void join(const Json& body, const asio::ip::address& client, uint64_t connection, HttpHandler::Respond respond);
  Reply leave(const Json& body);
  /// Empty: the tenant is known and the token is its own.
  std::optional<Refusal> refuse_token(const Fields& fields) const;

  const config::Site& site_;
  dataplane::Dataplane& dataplane_;
  Membership& membership_;
  std::function<View()> view_;
};

}  // namespace gradgate::control
