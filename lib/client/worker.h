// SPDX-License-Identifier: Apache-2.0
// One rank: core::Member over a UDP socket, and what happens when its gateway goes away. Driven by a thread that may
// drive others too (a communicator drives one, gradgate-pktgen many).
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "client/join.h"
#include "client/udp_socket.h"
#include "core/member.h"

namespace gradgate::client {

class Worker final : private core::Output, private core::Member::Observer {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void operation_done(core::Operation& operation) = 0;
    /// No operation will be done any more, and no memory of one is touched again.
    virtual void worker_failed(gg_result_t code, const std::string& text) = 0;
  };

  /// `request` is the one that was answered by `joined`.
  Worker(JoinRequest request, UdpSocket socket, Joined joined, Owner& owner, core::Nanoseconds now);
  ~Worker() override;

  void submit(core::Operation& operation, core::Nanoseconds now) { member_->submit(operation, now); }

  /// Appends kPollFds entries: what to wait for, at most until next_deadline().
  static constexpr size_t kPollFds = 3;
  void add_poll_fds(std::vector<pollfd>& fds) const;
  core::Nanoseconds next_deadline() const;
  /// Serves the entries that add_poll_fds() made and poll() filled, and all timers.
  void run(const pollfd* fds, ReceiveBuffers& buffers, core::Nanoseconds now);

  /// Chunks that the group needs for a call.
  uint64_t chunks(const core::Operation& operation) const;

  bool failed() const { return failed_; }
  /// Everything submitted is complete on all ranks.
  bool drained() const { return member_->drained(); }
  /// Leaves the group; the worker is of no use afterwards. Throws ClientError.
  void leave(core::Nanoseconds deadline);
  /// Whether the gateway ever acknowledged a packet: gradients get there and back.
  bool answered() const { return answered_; }

  const JoinRequest& request() const { return request_; }
  const Membership& membership() const { return membership_; }

  // ---- from any thread
  const core::LaneCounters& counters() const { return member_->counters(); }
  uint64_t bytes_sent() const { return bytes_sent_.get(); }
  uint64_t bytes_received() const { return bytes_received_.get(); }
  uint64_t packets_dropped() const { return dropped_.get(); }
  uint64_t restarts() const { return restarts_.get(); }

 private:
  bool send(const core::Datagram& datagram) override;
  void operation_done(core::Operation& operation) override { owner_.operation_done(operation); }
  void group_failed(const std::string& text) override;

  void adopt(Membership membership);
  void receive(ReceiveBuffers& buffers, core::Nanoseconds now);
  void check_gateway(const pollfd& control, core::Nanoseconds now);
  void gateway_gone(const std::string& why, core::Nanoseconds now);
  void join_ended(core::Nanoseconds now);
  void fail(gg_result_t code, const std::string& text);

  JoinRequest request_;
  UdpSocket socket_;
  HttpConnection control_;
  Membership membership_;
  Owner& owner_;
  sockaddr_in gateway_{};
  std::unique_ptr<core::Member> member_;
  std::unique_ptr<JoinTask> rejoin_;  ///< while the gateway is away
  std::string gone_because_;
  std::string group_error_;
  core::Nanoseconds next_heartbeat_ = 0;
  core::Nanoseconds silent_since_ = 0;
  bool failed_ = false;
  bool answered_ = false;
  core::Counter bytes_sent_, bytes_received_, dropped_, restarts_;
};

}  // namespace gradgate::client
