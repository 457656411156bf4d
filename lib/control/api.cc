// SPDX-License-Identifier: Apache-2.0
#include "control/api.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace gradgate::control {

namespace http = beast::http;

namespace {

HttpResponse json_response(const Reply& reply) {
  HttpResponse response;
  response.status = reply.status;
  // Texts may quote what a client sent.
  response.body = reply.body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

config::Ip4 client_address(const asio::ip::address& client) {
  if (client.is_v4()) return {client.to_v4().to_bytes()};
  if (client.is_v6() && client.to_v6().is_v4_mapped())
    return {asio::ip::make_address_v4(asio::ip::v4_mapped, client.to_v6()).to_bytes()};
  throw BadMessage(fmt::format("\"address\" is missing: {} is no IPv4 address, so say where the worker receives",
                               client.to_string()));
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  // The result must depend on every byte: keep the compiler from leaving early.
  const volatile unsigned result = difference;
  return result == 0;
}

std::optional<Refusal> Api::refuse_token(const Fields& fields) const {
  const std::string name = fields.name("tenant");
  const std::string token = fields.text("token", 1024);
  for (const config::Tenant& tenant : site_.tenants) {
    if (tenant.name != name) continue;
    if (equal_in_constant_time(token, tenant.token)) return std::nullopt;
    return Refusal{403, "wrong_token", fmt::format("wrong token for tenant {} at site {}", name, site_.name)};
  }
  return Refusal{403, "unknown_tenant",
                 fmt::format("site {} has no tenant {}: add a [[tenant]] to its file", site_.name, name)};
}

void Api::join(const Json& body, const asio::ip::address& client, uint64_t connection, HttpHandler::Respond respond) {
  const Fields fields(body);
  if (const auto refusal = refuse_token(fields)) {
    spdlog::warn("join from {} refused: {}", client.to_string(), refusal->text);
    respond(json_response(to_reply(*refusal)));
    return;
  }
  JoinRequest request;
  request.name = {fields.name("tenant"), fields.name("job"), fields.name("group")};
  request.size = static_cast<uint16_t>(fields.number("size", 1, kMaxGroupSize));
  request.rank = static_cast<uint16_t>(fields.number("rank", 0, kMaxGroupSize - 1));
  request.address.udp_port = static_cast<uint16_t>(fields.number("udp_port", 1, 65535));
  request.address.link = static_cast<uint32_t>(fields.number("link", 0, ~uint32_t{0}));
  if (fields.has("address")) {
    const std::string text = fields.text("address", 64);
    const auto ip = config::parse_ip4(text);
    if (!ip || !config::is_unicast(*ip)) throw BadMessage("\"address\" must be a host's IPv4 address");
    request.address.ip = *ip;
  } else {
    request.address.ip = client_address(client);
  }
  if (fields.has("restore")) {
    const Fields restore(fields.object("restore"), "restore.");
    JoinRequest::Restore said;
    said.plan = plan_from_json(restore.object("plan"), "restore.plan.");
    said.low = restore.numbers("low", GG_MAX_LANES, ~uint32_t{0});
    if (said.low.size() != said.plan.lanes) throw BadMessage("\"restore.low\" must have one per lane");
    for (size_t lane = 0; lane < said.low.size(); ++lane)
      if (said.low[lane] % said.plan.lanes != lane)
        throw BadMessage(fmt::format("\"restore.low\"[{}] is no index of lane {}", lane, lane));
    request.restore = std::move(said);
  }
  membership_.join(
      std::move(request), connection,
      [respond = std::move(respond)](const Reply& reply) {
        HttpResponse response = json_response(reply);
        response.keep_idle = reply.status == 200;
        respond(std::move(response));
      },
      dataplane_.now_ns());
}

Reply Api::leave(const Json& body) {
  const Fields fields(body);
  if (const auto refusal = refuse_token(fields)) return to_reply(*refusal);
  return membership_.leave(fields.name("tenant"), fields.id("group_id"),
                           static_cast<uint16_t>(fields.number("rank", 0, kMaxGroupSize - 1)), dataplane_.now_ns());
}

void Api::handle(const HttpRequest& request, const asio::ip::address& client, uint64_t connection,
                 HttpHandler::Respond respond) {
  std::string_view path(request.target().data(), request.target().size());
  path = path.substr(0, path.find('?'));
  const bool post = path == "/v1/join" || path == "/v1/leave";
  const bool get = path == "/v1/status" || path == "/v1/groups" || path == "/v1/drops" || path == "/metrics";
  if (path == "/v1/peer")
    return respond(
        json_response(to_reply({400, "bad_request", "/v1/peer takes WebSocket connections of gateways only"})));
  if (!post && !get)
    return respond(json_response(to_reply(
        {404, "not_found",
         fmt::format("no such path: {}; there are POST /v1/join, /v1/leave and GET /v1/status, /v1/groups, /v1/drops, "
                     "/metrics",
                     path.substr(0, 100))})));
  if (request.method() != (post ? http::verb::post : http::verb::get)) {
    HttpResponse response = json_response(
        to_reply({405, "method_not_allowed", fmt::format("{} takes {} only", path, post ? "POST" : "GET")}));
    response.allow = post ? "POST" : "GET";
    return respond(std::move(response));
  }
  if (get) {
    const View view = view_();
    HttpResponse response;
    if (path == "/metrics") {
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = metrics_text(view);
    } else {
      response = json_response({200, path == "/v1/status"   ? status_json(view)
                                     : path == "/v1/groups" ? groups_json(view)
                                                            : drops_json(view)});
    }
    return respond(std::move(response));
  }
  try {
    const Json body = parse_json(request.body());
    if (path == "/v1/join") {
      join(body, client, connection, respond);
    } else {
      respond(json_response(leave(body)));
    }
  } catch (const BadMessage& error) {
    respond(json_response(to_reply({400, "bad_request", error.what()})));
  }
}

}  // namespace gradgate::control
