// SPDX-License-Identifier: Apache-2.0
// Batched UDP: sendmmsg with UDP_SEGMENT, recvmmsg with UDP_GRO where the kernel has them, one packet a system call
// less where not.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/os.h"
#include "core/io.h"

namespace gradgate::client {

/// Memory for one recvmmsg; sockets that are served by one thread share it.
class ReceiveBuffers {
 public:
  static constexpr uint32_t kMessages = 32;
  static constexpr uint32_t kMessageBytes = 65536;  ///< what UDP_GRO coalesces at most

  ReceiveBuffers();

 private:
  friend class UdpSocket;
  static constexpr uint32_t kControlBytes = 64;

  std::unique_ptr<uint8_t[]> memory_;
  mmsghdr messages_[kMessages] = {};
  iovec iov_[kMessages] = {};
  sockaddr_in from_[kMessages] = {};
  alignas(cmsghdr) uint8_t control_[kMessages][kControlBytes] = {};
};

struct ReceivedDatagram {
  uint8_t* data;
  uint32_t length;
  sockaddr_in from;
  bool ce;  ///< IP congestion experienced
};

class UdpSocket {
 public:
  /// Binds to an IPv4 address. Port 0: any. Throws ClientError.
  explicit UdpSocket(const std::string& address, uint16_t port = 0);

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  const std::string& address() const { return address_; }

  // ---- sending
  /// Copies the packet, and its CRC32C if asked for, into the batch for `to`; sends the batch when it is full.
  /// False: the kernel has no room, wait until the socket is writable and flush().
  bool send(const core::Datagram& datagram, const sockaddr_in& to);
  /// Sends what is batched. False: the kernel has no room.
  bool flush();
  /// Something is batched that the kernel had no room for.
  bool blocked() const { return blocked_; }
  /// Bytes of a packet that exceeded the path's MTU, 0 if none did.
  uint32_t oversized_bytes() const { return oversized_bytes_; }
  uint64_t send_errors() const { return send_errors_; }
  bool uses_segmentation() const { return segmentation_; }

  // ---- receiving
  /// One recvmmsg; calls `each(ReceivedDatagram&)` for every datagram. Returns whether more may be waiting.
  template <typename Each>
  bool receive(ReceiveBuffers& buffers, Each&& each) {
    const uint32_t messages = receive_messages(buffers);
    for (uint32_t i = 0; i < messages; ++i) {
      ReceivedDatagram datagram{};
      uint32_t segment_bytes = 0;
      if (!describe(buffers, i, datagram, segment_bytes)) continue;
      uint32_t left = buffers.messages_[i].msg_len;
      for (uint8_t* data = datagram.data; left > 0; data += datagram.length, left -= datagram.length) {
        datagram.data = data;
        datagram.length = left < segment_bytes ? left : segment_bytes;
        each(datagram);
      }
    }
    return messages == ReceiveBuffers::kMessages;
  }

 private:
  static constexpr uint32_t kArenaBytes = 512 * 1024;
  static constexpr uint32_t kMaxSegments = 64;  // UDP_MAX_SEGMENTS of kernels before 6.9
  static constexpr uint32_t kMaxMessageBytes = 65000;
  static constexpr uint32_t kMaxMessages = 64;

  /// Packets of one size to one address, of which only the last may be shorter.
  struct Message {
    uint32_t offset;
    uint32_t bytes;
    uint16_t segment_bytes;
    uint16_t segments;
    sockaddr_in to;
  };

  void batch(uint32_t bytes, const sockaddr_in& to);
  void split_messages();
  uint32_t receive_messages(ReceiveBuffers& buffers);
  static bool describe(ReceiveBuffers& buffers, uint32_t i, ReceivedDatagram& datagram, uint32_t& segment_bytes);

  UniqueFd fd_;
  std::string address_;
  uint16_t port_ = 0;
  std::unique_ptr<uint8_t[]> arena_;
  uint32_t arena_used_ = 0;
  std::vector<Message> messages_;
  size_t first_unsent_ = 0;
  bool blocked_ = false;
  bool segmentation_ = true;
  uint32_t oversized_bytes_ = 0;
  uint64_t send_errors_ = 0;
};

/// The IPv4 address of `text`: an address, or the name of an interface that has one. Throws ClientError.
std::string resolve_own_address(const std::string& text);

}  // namespace gradgate::client
