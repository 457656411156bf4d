// SPDX-License-Identifier: Apache-2.0
#include "client/join.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <random>

namespace gradgate::client {
namespace {

using nlohmann::json;

constexpr core::Nanoseconds kConnectTimeout = 2 * core::kSecond;
constexpr core::Nanoseconds kRetryInterval = 200 * core::kMillisecond;
/// A retry that the gateway neither answers nor refuses: its host may have died without closing the connection.
constexpr core::Nanoseconds kAttemptTimeout = 60 * core::kSecond;

uint32_t random_link() {
  std::random_device device;
  uint32_t link;
  do {
    link = device();
  } while (link == 0);
  return link;
}

/// Room for a chunk and a riding ACK frame with all its ranges, so that an ACK never costs a packet of its own; fits
/// the MTU wherever the chunk does (1024 at 1500, 2816 at 3498).
uint32_t max_packet_bytes(uint32_t chunk_bytes) {
  constexpr uint32_t kAckBytes = GG_FRAME_BYTES + 4 + 8 * (GG_MAX_ACK_RANGES - 1);
  return GG_LINK_BYTES + GG_FRAME_BYTES + chunk_bytes + kAckBytes + GG_CRC_BYTES;
}

Membership parse_answer(const json& answer, const JoinRequest& request, uint32_t local_link) {
  Membership m;
  const json& plan = answer.at("plan");
  m.plan = plan.dump();
  m.group_id = plan.at("group_id").get<std::string>();
  m.gateway_address = answer.at("gateway").at("address").get<std::string>();
  m.gateway_udp_port = answer.at("gateway").at("udp_port").get<uint16_t>();
  m.heartbeat_ns = answer.at("heartbeat_ms").get<uint64_t>() * core::kMillisecond;
  m.worker_timeout_ns = answer.at("worker_timeout_ms").get<uint64_t>() * core::kMillisecond;
  m.call_timeout_ns = answer.at("call_timeout_ms").get<uint64_t>() * core::kMillisecond;

  core::MemberConfig& c = m.member;
  c.rank = request.rank;
  c.size = plan.at("size").get<uint16_t>();
  c.chunk_bytes = plan.at("chunk_bytes").get<uint32_t>();
  c.lanes = plan.at("lanes").get<uint8_t>();
  c.window = plan.at("window").get<uint32_t>();
  c.start = plan.at("start").get<std::vector<uint32_t>>();
  c.group_label = answer.at("group_label").get<uint32_t>();
  c.own_label = answer.at("own_label").get<uint32_t>();
  c.local_link = local_link;
  c.trailer_crc_receive = answer.at("trailer_crc_receive").get<bool>();
  c.link.neighbour = 0;
  c.link.remote_link = answer.at("remote_link").get<uint32_t>();
  c.link.link_label = gg_label(answer.at("site").get<uint32_t>(), GG_CONTEXT_LINK);
  c.link.trailer_crc = answer.at("trailer_crc_send").get<bool>();
  c.link.max_packet_bytes = max_packet_bytes(c.chunk_bytes);
  c.link.max_in_flight = answer.at("max_in_flight").get<uint32_t>();

  in_addr address{};
  const bool sane = c.size == request.size && std::has_single_bit(c.chunk_bytes) && c.chunk_bytes <= 8192 &&
                    std::has_single_bit(c.lanes) && c.lanes <= GG_MAX_LANES && std::has_single_bit(c.window) &&
                    c.start.size() == c.lanes && std::has_single_bit(c.link.max_in_flight) &&
                    inet_pton(AF_INET, m.gateway_address.c_str(), &address) == 1;
  if (!sane) throw ClientError(GG_ERROR_REFUSED, "the gateway's plan is none that this library can follow: " + m.plan);
  return m;
}

[[noreturn]] void throw_refusal(const HttpResponse& response) {
  const json body = json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("error") || !body["error"].is_string()) {
    throw ClientError(GG_ERROR_REFUSED, "the gateway answered HTTP status " + std::to_string(response.status));
  }
  const std::string slug = body.contains("code") && body["code"].is_string() ? body["code"].get<std::string>() : "";
  throw ClientError(slug == "join_timeout" ? GG_ERROR_TIMEOUT : GG_ERROR_REFUSED,
                    "the gateway refused the join: " + body["error"].get<std::string>(), slug);
}

/// The gateway holds its answer back until the group has formed: that none came says who is late, not that it is dead.
HttpResponse post_join(HttpConnection& connection, const JoinRequest& request, const std::string& body,
                       core::Nanoseconds deadline, int cancel_fd) {
  try {
    return connection.post("/v1/join", body, deadline, cancel_fd);
  } catch (const ClientError& e) {
    if (e.code() != GG_ERROR_TIMEOUT || !request.restore_plan.empty()) throw;
    throw ClientError(GG_ERROR_TIMEOUT,
                      "group " + request.job + "/" + request.group + " of " + std::to_string(request.size) +
                          " ranks has not formed within join_timeout: GET http://" + request.gateway_host + ":" +
                          std::to_string(request.gateway_port) + "/v1/groups names the ranks that are missing");
  }
}

bool worth_retrying(const ClientError& error) {
  switch (error.code()) {
    case GG_ERROR_UNREACHABLE:
    case GG_ERROR_TIMEOUT:
      return true;
    case GG_ERROR_REFUSED:
      // The gateway may not have noticed yet that the old connection is dead.
      return error.slug() == "rank_taken" || error.slug() == "stopping";
    default:
      return false;
  }
}

}  // namespace

void parse_gateway(const std::string& text, std::string& host, uint16_t& port) {
  const size_t colon = text.rfind(':');
  const std::string digits = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool number = !digits.empty() && digits.size() <= 5 && digits.find_first_not_of("0123456789") == digits.npos;
  const unsigned long value = number ? std::stoul(digits) : 0;
  if (value == 0 || value > 65535 || colon == 0) {
    throw ClientError(GG_ERROR_ARGUMENT,
                      "gateway '" + text + "' is not \"host:port\", such as \"10.1.0.1:9470\" ([control] listen)");
  }
  host = text.substr(0, colon);
  port = static_cast<uint16_t>(value);
}

Joined join(HttpConnection connection, const JoinRequest& request, core::Nanoseconds deadline, int cancel_fd) {
  const uint32_t local_link = random_link();
  json body = {{"tenant", request.tenant},     {"token", request.token},     {"job", request.job},
               {"group", request.group},       {"rank", request.rank},       {"size", request.size},
               {"udp_port", request.udp_port}, {"address", request.address}, {"link", local_link}};
  if (!request.restore_plan.empty())
    body["restore"] = {{"plan", json::parse(request.restore_plan)}, {"low", request.restore_low}};
  std::string text;
  try {
    text = body.dump();
  } catch (const json::exception& e) {
    throw ClientError(GG_ERROR_ARGUMENT, std::string("tenant, token, job or group is not UTF-8: ") + e.what());
  }
  const HttpResponse response = post_join(connection, request, text, deadline, cancel_fd);
  if (response.status != 200) throw_refusal(response);
  if (!connection.is_open())
    throw ClientError(GG_ERROR_UNREACHABLE, "the gateway closed the connection after the join");
  try {
    Membership membership = parse_answer(json::parse(response.body), request, local_link);
    return {std::move(connection), std::move(membership)};
  } catch (const json::exception& e) {
    throw ClientError(GG_ERROR_REFUSED, std::string("the gateway's answer to the join is not understood: ") + e.what());
  }
}

void leave(HttpConnection& connection, const JoinRequest& request, const std::string& group_id,
           core::Nanoseconds deadline) {
  const json body = {
      {"tenant", request.tenant}, {"token", request.token}, {"group_id", group_id}, {"rank", request.rank}};
  const HttpResponse response = connection.post("/v1/leave", body.dump(), deadline, -1);
  if (response.status != 200) throw_refusal(response);
}

JoinTask::JoinTask(JoinRequest request, core::Nanoseconds deadline, bool retry)
    : request_(std::move(request)), deadline_(deadline), retry_(retry), thread_([this] { run(); }) {}

JoinTask::~JoinTask() {
  cancel_.signal();
  thread_.join();
}

void JoinTask::run() {
  for (;;) {
    try {
      const core::Nanoseconds now = monotonic_ns();
      HttpConnection connection = HttpConnection::connect(request_.gateway_host, request_.gateway_port,
                                                          std::min(deadline_, now + kConnectTimeout), cancel_.get());
      joined_ = join(std::move(connection), request_, retry_ ? std::min(deadline_, now + kAttemptTimeout) : deadline_,
                     cancel_.get());
      break;
    } catch (const ClientError& e) {
      if (!retry_ || !worth_retrying(e) || monotonic_ns() + kRetryInterval >= deadline_) {
        error_ = e;
        break;
      }
    } catch (const std::exception& e) {
      error_ = ClientError(GG_ERROR_SYSTEM, e.what());
      break;
    }
    pollfd cancelled{cancel_.get(), POLLIN, 0};
    poll(&cancelled, 1, static_cast<int>(kRetryInterval / core::kMillisecond));
  }
  done_.store(true, std::memory_order_release);
  done_event_.signal();
}

Joined JoinTask::take() {
  if (error_) throw *error_;
  return std::move(*joined_);
}

}  // namespace gradgate::client
