// SPDX-License-Identifier: Apache-2.0
#include "client/udp_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <string.h>

#include <algorithm>

#include "client/error.h"
#include "wire/checksum.h"

namespace gradgate::client {
namespace {

constexpr int kSocketBufferBytes = 8 << 20;

void enlarge_buffer(int fd, int force_option, int option) {
  // The forced form ignores net.core.[rw]mem_max and needs CAP_NET_ADMIN.
  if (setsockopt(fd, SOL_SOCKET, force_option, &kSocketBufferBytes, sizeof kSocketBufferBytes) == 0) return;
  setsockopt(fd, SOL_SOCKET, option, &kSocketBufferBytes, sizeof kSocketBufferBytes);
}

}  // namespace

ReceiveBuffers::ReceiveBuffers() : memory_(new uint8_t[size_t{kMessages} * kMessageBytes]) {
  for (uint32_t i = 0; i < kMessages; ++i) {
    iov_[i] = {memory_.get() + size_t{i} * kMessageBytes, kMessageBytes};
    msghdr& header = messages_[i].msg_hdr;
    header.msg_iov = &iov_[i];
    header.msg_iovlen = 1;
    header.msg_name = &from_[i];
    header.msg_control = control_[i];
  }
}

UdpSocket::UdpSocket(const std::string& address, uint16_t port)
    : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), address_(address) {
  if (fd_.get() < 0) throw system_error("cannot create a UDP socket", errno);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &own.sin_addr) != 1)
    throw ClientError(GG_ERROR_ARGUMENT, "'" + address + "' is no IPv4 address");
  if (bind(fd_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) != 0)
    throw system_error("cannot bind a UDP socket to " + address + " port " + std::to_string(port), errno);
  socklen_t bytes = sizeof own;
  if (getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) throw system_error("getsockname", errno);
  port_ = ntohs(own.sin_port);

  enlarge_buffer(fd_.get(), SO_RCVBUFFORCE, SO_RCVBUF);
  enlarge_buffer(fd_.get(), SO_SNDBUFFORCE, SO_SNDBUF);
  const int on = 1;
  const int discover = IP_PMTUDISC_DO;  // gradient packets are never fragmented: too large must be an error here
  const int ect0 = 0x02;                // RFC 3168: our transport reacts to congestion marks
  setsockopt(fd_.get(), IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover);
  setsockopt(fd_.get(), IPPROTO_IP, IP_TOS, &ect0, sizeof ect0);
  setsockopt(fd_.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  setsockopt(fd_.get(), IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  // A kernel without UDP_SEGMENT says so here; a device that cannot carry it says so when sending.
  const int none = 0;
  segmentation_ = setsockopt(fd_.get(), IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none) == 0;

  arena_.reset(new uint8_t[kArenaBytes]);
  messages_.reserve(kMaxMessages + 1);
}

bool UdpSocket::send(const core::Datagram& datagram, const sockaddr_in& to) {
  if (blocked_) return false;
  const uint32_t payload_bytes = datagram.payload != nullptr ? datagram.payload->length : 0;
  const uint32_t bytes = datagram.header_bytes + payload_bytes + (datagram.trailer_crc ? GG_CRC_BYTES : 0);
  if (bytes > kMaxMessageBytes) {
    oversized_bytes_ = bytes;
    return true;
  }
  if (arena_used_ + bytes > kArenaBytes && !flush()) return false;

  uint8_t* packet = arena_.get() + arena_used_;
  memcpy(packet, datagram.header, datagram.header_bytes);
  if (payload_bytes > 0) memcpy(packet + datagram.header_bytes, datagram.payload->data, payload_bytes);
  if (datagram.trailer_crc) {
    const uint32_t covered = datagram.header_bytes + payload_bytes;
    gg_put32(packet + covered, wire::packet_crc32c(packet, covered));
  }
  batch(bytes, to);
  return true;
}

void UdpSocket::batch(uint32_t bytes, const sockaddr_in& to) {
  const uint32_t offset = arena_used_;
  arena_used_ += bytes;
  if (segmentation_ && !messages_.empty()) {
    Message& last = messages_.back();
    const bool open = last.bytes == uint32_t{last.segment_bytes} * last.segments;
    if (open && bytes <= last.segment_bytes && last.segments < kMaxSegments && last.bytes + bytes <= kMaxMessageBytes &&
        last.to.sin_port == to.sin_port && last.to.sin_addr.s_addr == to.sin_addr.s_addr) {
      last.bytes += bytes;
      ++last.segments;
      return;
    }
  }
  // Full as far as one system call goes. A kernel without room keeps the packet batched.
  messages_.push_back({offset, bytes, static_cast<uint16_t>(bytes), 1, to});
  if (messages_.size() - first_unsent_ > kMaxMessages) flush();
}

bool UdpSocket::flush() {
  mmsghdr headers[kMaxMessages];
  iovec iov[kMaxMessages];
  alignas(cmsghdr) uint8_t control[kMaxMessages][CMSG_SPACE(sizeof(uint16_t))];
  while (first_unsent_ < messages_.size()) {
    uint32_t count = 0;
    for (; count < kMaxMessages && first_unsent_ + count < messages_.size(); ++count) {
      Message& message = messages_[first_unsent_ + count];
      iov[count] = {arena_.get() + message.offset, message.bytes};
      msghdr& header = headers[count].msg_hdr;
      header = {};
      header.msg_name = &message.to;
      header.msg_namelen = sizeof message.to;
      header.msg_iov = &iov[count];
      header.msg_iovlen = 1;
      if (message.segments > 1) {
        header.msg_control = control[count];
        header.msg_controllen = sizeof control[count];
        cmsghdr* segment = CMSG_FIRSTHDR(&header);
        segment->cmsg_level = IPPROTO_UDP;
        segment->cmsg_type = UDP_SEGMENT;
        segment->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        memcpy(CMSG_DATA(segment), &message.segment_bytes, sizeof(uint16_t));
      }
    }
    const int sent = sendmmsg(fd_.get(), headers, count, 0);
    if (sent > 0) {
      first_unsent_ += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      blocked_ = true;
      return false;
    }
    const Message& failed = messages_[first_unsent_];
    if (failed.segments > 1) {
      // EIO: no checksum offload on the device; EINVAL, EMSGSIZE: segments above the MTU. Singly, the culprit shows.
      segmentation_ = false;
      split_messages();
      continue;
    }
    if (errno == EMSGSIZE) oversized_bytes_ = failed.bytes;
    // Anything else (ENOBUFS, EPERM of a firewall, ENETUNREACH while a link flaps) is a loss like any other.
    ++send_errors_;
    ++first_unsent_;
  }
  messages_.clear();
  first_unsent_ = 0;
  arena_used_ = 0;
  blocked_ = false;
  return true;
}

void UdpSocket::split_messages() {
  std::vector<Message> single;
  for (size_t i = first_unsent_; i < messages_.size(); ++i) {
    const Message& message = messages_[i];
    for (uint32_t done = 0; done < message.bytes; done += message.segment_bytes) {
      const uint32_t bytes = std::min<uint32_t>(message.segment_bytes, message.bytes - done);
      single.push_back({message.offset + done, bytes, static_cast<uint16_t>(bytes), 1, message.to});
    }
  }
  messages_ = std::move(single);
  first_unsent_ = 0;
}

uint32_t UdpSocket::receive_messages(ReceiveBuffers& buffers) {
  for (uint32_t i = 0; i < ReceiveBuffers::kMessages; ++i) {
    msghdr& header = buffers.messages_[i].msg_hdr;
    header.msg_namelen = sizeof(sockaddr_in);
    header.msg_controllen = ReceiveBuffers::kControlBytes;
  }
  const int n = recvmmsg(fd_.get(), buffers.messages_, ReceiveBuffers::kMessages, MSG_DONTWAIT, nullptr);
  return n > 0 ? static_cast<uint32_t>(n) : 0;
}

bool UdpSocket::describe(ReceiveBuffers& buffers, uint32_t i, ReceivedDatagram& datagram, uint32_t& segment_bytes) {
  msghdr& header = buffers.messages_[i].msg_hdr;
  if (header.msg_flags & MSG_TRUNC) return false;
  datagram.data = static_cast<uint8_t*>(buffers.iov_[i].iov_base);
  datagram.from = buffers.from_[i];
  segment_bytes = buffers.messages_[i].msg_len;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      int bytes = 0;
      memcpy(&bytes, CMSG_DATA(c), sizeof bytes);
      if (bytes > 0) segment_bytes = static_cast<uint32_t>(bytes);
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      datagram.ce = (*CMSG_DATA(c) & IPTOS_ECN_MASK) == IPTOS_ECN_CE;
    }
  }
  return true;
}

std::string resolve_own_address(const std::string& text) {
  in_addr parsed{};
  if (inet_pton(AF_INET, text.c_str(), &parsed) == 1) return text;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw system_error("getifaddrs", errno);
  std::string found, names;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    char address[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, address, sizeof address);
    names += std::string(names.empty() ? "" : ", ") + i->ifa_name + " (" + address + ")";
    if (found.empty() && text == i->ifa_name) found = address;
  }
  freeifaddrs(list);
  if (found.empty()) {
    throw ClientError(GG_ERROR_ARGUMENT, "address '" + text +
                                             "' is neither an IPv4 address nor an interface that has one; there are: " +
                                             (names.empty() ? "none" : names));
  }
  return found;
}

}  // namespace gradgate::client
