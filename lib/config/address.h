// SPDX-License-Identifier: Apache-2.0
// Network addresses as plain values: parsing and formatting without sockets. Bytes are in network order.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace gradgate::config {

struct Ip4 {
  std::array<std::uint8_t, 4> bytes{};
  auto operator<=>(const Ip4&) const = default;
};

struct Ip6 {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const Ip6&) const = default;
};

struct Mac {
  std::array<std::uint8_t, 6> bytes{};
  auto operator<=>(const Mac&) const = default;
};

using IpAddress = std::variant<Ip4, Ip6>;

// An interface's own address with its subnet: 10.1.0.1/24 keeps the host part.
struct Cidr {
  IpAddress address;
  unsigned prefix_bits = 0;  // 0..32 for IPv4, 0..128 for IPv6
  auto operator<=>(const Cidr&) const = default;
};

// A numeric address with a TCP or UDP port.
struct SocketAddress {
  IpAddress address;
  std::uint16_t port = 0;
  auto operator<=>(const SocketAddress&) const = default;
};

// A host name or numeric address (IPv6 without its brackets) with a port, not resolved yet.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
  auto operator<=>(const HostPort&) const = default;
};

// Each takes the whole text and nothing around it; nullopt where it is not such an address.
std::optional<Ip4> parse_ip4(std::string_view text);
std::optional<Ip6> parse_ip6(std::string_view text);
std::optional<IpAddress> parse_ip(std::string_view text);
std::optional<Mac> parse_mac(std::string_view text);                       // aa:bb:cc:dd:ee:ff
std::optional<Cidr> parse_cidr(std::string_view text);                     // 10.1.0.1/24, 2001:db8::1/64
std::optional<SocketAddress> parse_socket_address(std::string_view text);  // 10.0.0.5:9470, [::1]:9470; port 1..65535
std::optional<HostPort> parse_host_port(std::string_view text);  // gw.example:9470 and all of the above; port 1..65535

std::string format(const Ip4& address);
std::string format(const Ip6& address);
std::string format(const IpAddress& address);
std::string format(const Mac& address);
std::string format(const Cidr& cidr);
std::string format(const SocketAddress& address);  // IPv6 in brackets
std::string format(const HostPort& address);       // IPv6 in brackets

bool is_loopback(const IpAddress& address);
// Could be one host's own address: not unspecified, not multicast, not the limited broadcast.
bool is_unicast(const IpAddress& address);
bool is_unicast(const Mac& address);  // neither group bit nor all zero

bool contains(const Cidr& subnet, const IpAddress& address);
// The subnets share an address. False across families.
bool overlap(const Cidr& a, const Cidr& b);
// The host part is zero or, for IPv4, all ones: the subnet's own or broadcast address. False for /31, /32, /127, /128.
bool is_reserved_host(const Cidr& cidr);

}  // namespace gradgate::config
