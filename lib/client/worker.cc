// SPDX-License-Identifier: Apache-2.0
#include "client/worker.h"

#include <arpa/inet.h>

#include <algorithm>

#include "core/chunking.h"

namespace gradgate::client {
namespace {

/// Bursts served before timers and sending get their turn again at the latest.
constexpr uint32_t kBurstsPerRun = 8;
constexpr uint32_t kPacketsPerPoll = 256;

std::string seconds(core::Nanoseconds ns) {
  return std::to_string(ns / core::kSecond) + " s";
}

}  // namespace

Worker::Worker(JoinRequest request, UdpSocket socket, Joined joined, Owner& owner, core::Nanoseconds now)
    : request_(std::move(request)),
      socket_(std::move(socket)),
      control_(std::move(joined.connection)),
      owner_(owner),
      next_heartbeat_(now),
      silent_since_(now) {
  adopt(std::move(joined.membership));
  member_.reset(new core::Member(membership_.member, *this, *this, now));  // the bases are private
}

Worker::~Worker() = default;

void Worker::adopt(Membership membership) {
  membership_ = std::move(membership);
  gateway_.sin_family = AF_INET;
  inet_pton(AF_INET, membership_.gateway_address.c_str(), &gateway_.sin_addr);
}

void Worker::add_poll_fds(std::vector<pollfd>& fds) const {
  fds.push_back({socket_.fd(), static_cast<short>(socket_.blocked() ? POLLIN | POLLOUT : POLLIN), 0});
  fds.push_back({rejoin_ ? -1 : control_.fd(), POLLIN, 0});
  fds.push_back({rejoin_ ? rejoin_->fd() : -1, POLLIN, 0});
}

core::Nanoseconds Worker::next_deadline() const {
  if (failed_ || rejoin_) return core::kNever;
  const core::Nanoseconds duties = std::min(next_heartbeat_, silent_since_ + membership_.worker_timeout_ns);
  // Without room to send, only the socket's becoming writable helps.
  return socket_.blocked() ? duties : std::min(duties, member_->next_deadline());
}

void Worker::run(const pollfd* fds, ReceiveBuffers& buffers, core::Nanoseconds now) {
  if (failed_) return;
  if (rejoin_) {
    // Nobody is there who could mean what still arrives.
    if (fds[0].revents != 0) socket_.receive(buffers, [](ReceivedDatagram&) {});
    if (rejoin_->done()) join_ended(now);
    return;
  }
  if (fds[0].revents & POLLOUT) socket_.flush();
  if (fds[0].revents & (POLLIN | POLLERR)) receive(buffers, now);
  if (now >= next_heartbeat_) {
    member_->ping();
    next_heartbeat_ = now + membership_.heartbeat_ns;
  }
  member_->poll(now, kPacketsPerPoll);
  socket_.flush();
  if (!group_error_.empty()) {
    fail(GG_ERROR_GROUP_FAILED, group_error_);
  } else if (socket_.oversized_bytes() > 0) {
    fail(GG_ERROR_SYSTEM, "packets of " + std::to_string(socket_.oversized_bytes()) +
                              " bytes of UDP payload do not fit the MTU of the way from " + socket_.address() +
                              " to the gateway at " + membership_.gateway_address +
                              ": raise the MTU, or make the gateway's chunk smaller");
  } else {
    check_gateway(fds[1], now);
  }
}

void Worker::receive(ReceiveBuffers& buffers, core::Nanoseconds now) {
  const auto take = [&](ReceivedDatagram& datagram) {
    bytes_received_.add(datagram.length);
    core::Arrival arrival;
    const uint8_t* p = datagram.data;
    bool ours = datagram.from.sin_addr.s_addr == gateway_.sin_addr.s_addr && datagram.length >= GG_LINK_BYTES &&
                gg_get16(p) == GG_MAGIC && p[2] >> 6 == GG_VERSION && p[3] < membership_.member.lanes;
    if (ours) {
      gg_link_get(p, &arrival.link);
      arrival.packet = datagram.data;
      arrival.length = datagram.length;
      arrival.ce = datagram.ce || (arrival.link.flags & GG_FLAG_CE) != 0;
      ours = member_->receive(arrival, now);
    }
    if (ours) {
      answered_ |= p[GG_LINK_BYTES] == GG_ACK;  // an ACK is always the first frame
      silent_since_ = now;
    } else {
      dropped_.add();
    }
  };
  for (uint32_t burst = 0; burst < kBurstsPerRun; ++burst) {
    const bool more = socket_.receive(buffers, take);
    if (!more || !group_error_.empty()) return;
    // Acknowledgements and credit must not wait for the end of a long queue.
    member_->poll(now, kPacketsPerPoll);
    socket_.flush();
  }
}

uint64_t Worker::chunks(const core::Operation& operation) const {
  const core::MemberConfig& config = membership_.member;
  return core::Chunking(operation.kind, uint64_t{operation.elements} * gg_dtype_bytes(operation.dtype),
                        config.chunk_bytes, config.size)
      .chunks;
}

bool Worker::send(const core::Datagram& datagram) {
  sockaddr_in to = gateway_;
  to.sin_port = htons(static_cast<uint16_t>(membership_.gateway_udp_port + datagram.lane));
  if (!socket_.send(datagram, to)) return false;
  bytes_sent_.add(datagram.header_bytes + (datagram.payload != nullptr ? datagram.payload->length : 0u) +
                  (datagram.trailer_crc ? GG_CRC_BYTES : 0u));
  return true;
}

void Worker::group_failed(const std::string& text) {
  // Reported after the next poll, so that the gateway's ERROR is still acknowledged.
  group_error_ = text.empty() ? "the group has failed" : text;
}

void Worker::check_gateway(const pollfd& control, core::Nanoseconds now) {
  if (control.revents != 0 && control_.ended()) {
    gateway_gone("its control connection ended", now);
  } else if (now - silent_since_ >= membership_.worker_timeout_ns && now > silent_since_) {
    gateway_gone("nothing came from it for " + seconds(membership_.worker_timeout_ns), now);
  }
}

void Worker::gateway_gone(const std::string& why, core::Nanoseconds now) {
  gone_because_ = "the gateway at " + request_.gateway_host + ":" + std::to_string(request_.gateway_port) +
                  " went away (" + why + ")";
  control_.close();
  request_.restore_plan = membership_.plan;
  request_.restore_low = member_->low();
  rejoin_ = std::make_unique<JoinTask>(request_, now + membership_.call_timeout_ns, true);
}

void Worker::join_ended(core::Nanoseconds now) {
  std::unique_ptr<JoinTask> task = std::move(rejoin_);
  try {
    Joined joined = task->take();
    control_ = std::move(joined.connection);
    adopt(std::move(joined.membership));
    restarts_.add();
    silent_since_ = now;
    next_heartbeat_ = now;
    const core::MemberConfig& fresh = membership_.member;
    member_->gateway_restarted(fresh.link.remote_link, fresh.local_link, fresh.group_label, fresh.own_label, now);
  } catch (const ClientError& e) {
    const gg_result_t code = e.code() == GG_ERROR_REFUSED ? GG_ERROR_GROUP_FAILED : GG_ERROR_UNREACHABLE;
    fail(code, gone_because_ + " and did not take this rank back within " + seconds(membership_.call_timeout_ns) +
                   ": " + e.what());
  }
}

void Worker::fail(gg_result_t code, const std::string& text) {
  failed_ = true;
  control_.close();
  owner_.worker_failed(code, text);
}

void Worker::leave(core::Nanoseconds deadline) {
  if (control_.is_open()) client::leave(control_, request_, membership_.group_id, deadline);
}

}  // namespace gradgate::client
