// SPDX-License-Identifier: Apache-2.0
#include "dataplane/kernel_hello.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "wire/checksum.h"

namespace gradgate::dataplane {

namespace {

sockaddr_in socket_address(const uint8_t* ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  std::memcpy(&address.sin_addr, ip, 4);
  return address;
}

}  // namespace

std::vector<uint8_t> hello_packet(const core::LinkConfig& link) {
  std::vector<uint8_t> packet(GG_LINK_BYTES + GG_FRAME_BYTES + (link.trailer_crc ? GG_CRC_BYTES : 0));
  gg_link header{};
  header.flags = static_cast<uint8_t>(GG_VERSION << 6 | GG_HOPS_MASK);
  header.lane = link.lane;
  header.label = link.link_label;
  header.link = link.remote_link;
  gg_link_put(packet.data(), &header);
  gg_frame ping{};
  ping.type = GG_PING;
  gg_frame_put(packet.data() + GG_LINK_BYTES, &ping);
  if (link.trailer_crc) {
    const size_t bytes = packet.size() - GG_CRC_BYTES;
    gg_put32(packet.data() + bytes, wire::packet_crc32c(packet.data(), bytes));
  }
  return packet;
}

KernelHello::~KernelHello() {
  for (const auto& [key, fd] : sockets_) ::close(fd);
}

std::string KernelHello::send(const std::string& device, const gg_path& path, const std::vector<uint8_t>& packet) {
  Ip4 source;
  std::copy_n(path.source_ip, 4, source.begin());
  const auto key = std::make_pair(device, source);
  auto found = sockets_.find(key);
  if (found == sockets_.end()) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return std::string("cannot open a UDP socket: ") + std::strerror(errno);
    const sockaddr_in own = socket_address(path.source_ip, 0);
    // By this interface whatever the routes say: the peer must learn this port's link-layer address.
    if (::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device.c_str(), static_cast<socklen_t>(device.size())) != 0 ||
        ::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) {
      std::string text = device + ": cannot bind a UDP socket to the port's address " +
                         config::format(config::Ip4{source}) + ": " + std::strerror(errno);
      if (errno == EADDRNOTAVAIL) text += "; the interface does not have it: `ip address add`, or correct the file";
      ::close(fd);
      return text;
    }
    found = sockets_.emplace(key, fd).first;
  }
  const sockaddr_in peer = socket_address(path.destination_ip, path.destination_port);
  if (::sendto(found->second, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) <
          0 &&
      errno != EAGAIN && errno != ECONNREFUSED) {  // refused: an ICMP answer to an earlier one; the peer is not up yet
    Ip4 destination;
    std::copy_n(path.destination_ip, 4, destination.begin());
    return device + ": cannot send to peer " + config::format(config::Ip4{destination}) + ": " + std::strerror(errno) +
           "; it needs a route by this interface (`ip route get`)";
  }
  return {};
}

}  // namespace gradgate::dataplane
