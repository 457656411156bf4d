// SPDX-License-Identifier: Apache-2.0
// How a worker becomes a member of a group, and one again after its gateway restarted (lib/control/PROTOCOL.md).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/error.h"
#include "client/http_client.h"
#include "core/member.h"

namespace gradgate::client {

/// Who wants to join what, and where.
struct JoinRequest {
  std::string gateway_host;
  uint16_t gateway_port = 0;
  std::string tenant, token, job, group;
  uint16_t rank = 0;
  uint16_t size = 1;
  std::string address;    ///< of the UDP socket
  uint16_t udp_port = 0;  ///< of the UDP socket
  // To join again:
  std::string restore_plan;           ///< JSON as received; empty: a first join
  std::vector<uint32_t> restore_low;  ///< first index of each lane that is not complete everywhere
};

/// What the gateway answered.
struct Membership {
  core::MemberConfig member;
  std::string plan;  ///< JSON, kept for restore
  std::string group_id;
  std::string gateway_address;  ///< IPv4, of the data plane
  uint16_t gateway_udp_port = 0;
  core::Nanoseconds heartbeat_ns = core::kSecond;
  core::Nanoseconds worker_timeout_ns = 10 * core::kSecond;
  core::Nanoseconds call_timeout_ns = 600 * core::kSecond;
};

struct Joined {
  HttpConnection connection;  ///< its end says that the gateway is gone
  Membership membership;
};

/// "host:port". Throws ClientError with GG_ERROR_ARGUMENT.
void parse_gateway(const std::string& text, std::string& host, uint16_t& port);

/// One attempt over an open connection; waits until the group has formed. Throws ClientError.
Joined join(HttpConnection connection, const JoinRequest& request, core::Nanoseconds deadline, int cancel_fd);

/// Tells the gateway that the worker has drained and is going. Throws ClientError.
void leave(HttpConnection& connection, const JoinRequest& request, const std::string& group_id,
           core::Nanoseconds deadline);

/// Joins in a thread of its own, so that whoever serves the sockets goes on.
class JoinTask {
 public:
  /// Tries until `deadline`; `retry`: while the gateway is away, not only once.
  JoinTask(JoinRequest request, core::Nanoseconds deadline, bool retry);
  ~JoinTask();  ///< cancels
  JoinTask(const JoinTask&) = delete;
  JoinTask& operator=(const JoinTask&) = delete;

  /// Readable when the task is done.
  int fd() const { return done_event_.get(); }
  bool done() const { return done_.load(std::memory_order_acquire); }
  const JoinRequest& request() const { return request_; }
  /// After done(), once. Throws ClientError if the task failed.
  Joined take();

 private:
  void run();

  JoinRequest request_;
  const core::Nanoseconds deadline_;
  const bool retry_;
  WakeFd cancel_, done_event_;
  std::optional<Joined> joined_;
  std::optional<ClientError> error_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace gradgate::client
