// SPDX-License-Identifier: Apache-2.0
#include "config/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

namespace gradgate::config {
namespace {

std::span<const std::uint8_t> bytes_of(const IpAddress& address) {
  return std::visit([](const auto& a) { return std::span<const std::uint8_t>(a.bytes); }, address);
}

template <typename Address>
std::optional<Address> parse_with_inet(int family, std::string_view text) {
  // inet_pton stops at a NUL, which a TOML string may hold.
  if (text.find('\0') != std::string_view::npos) return std::nullopt;
  Address address;
  if (inet_pton(family, std::string(text).c_str(), address.bytes.data()) != 1) return std::nullopt;
  return address;
}

std::optional<unsigned> parse_decimal(std::string_view text, unsigned max) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

bool same_prefix(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, unsigned bits) {
  const unsigned whole = bits / 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  if (bits % 8 == 0) return true;
  const unsigned mask = 0xFFu << (8 - bits % 8) & 0xFFu;
  return (a[whole] & mask) == (b[whole] & mask);
}

// RFC 1123 host names, with the underscore that container networks use.
bool is_host_name(std::string_view text) {
  if (text.empty() || text.size() > 253 || text.front() == '-' || text.front() == '.') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

// RFC 1123 2.1: a host name is told from an address by its last label, which is not all digits.
bool looks_numeric(std::string_view host) {
  const std::string_view last = host.substr(host.rfind('.') + 1);
  return std::all_of(last.begin(), last.end(), [](char c) { return c >= '0' && c <= '9'; });
}

struct Split {
  std::string_view host;
  bool bracketed;
  std::uint16_t port;
};

std::optional<Split> split_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<unsigned> port = parse_decimal(text.substr(colon + 1), 65535);
  if (!port || *port == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  return Split{host, bracketed, static_cast<std::uint16_t>(*port)};
}

}  // namespace

std::optional<Ip4> parse_ip4(std::string_view text) {
  return parse_with_inet<Ip4>(AF_INET, text);
}

std::optional<Ip6> parse_ip6(std::string_view text) {
  return parse_with_inet<Ip6>(AF_INET6, text);
}

std::optional<IpAddress> parse_ip(std::string_view text) {
  if (const auto v4 = parse_ip4(text)) return *v4;
  if (const auto v6 = parse_ip6(text)) return *v6;
  return std::nullopt;
}

std::optional<Mac> parse_mac(std::string_view text) {
  if (text.size() != 17) return std::nullopt;
  Mac mac;
  for (std::size_t i = 0; i < mac.bytes.size(); ++i) {
    const char* digits = text.data() + 3 * i;
    if (i + 1 < mac.bytes.size() && digits[2] != ':') return std::nullopt;
    const auto [end, error] = std::from_chars(digits, digits + 2, mac.bytes[i], 16);
    if (error != std::errc() || end != digits + 2) return std::nullopt;
  }
  return mac;
}

std::optional<Cidr> parse_cidr(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::optional<IpAddress> address = parse_ip(text.substr(0, slash));
  if (!address) return std::nullopt;
  const std::optional<unsigned> bits =
      parse_decimal(text.substr(slash + 1), static_cast<unsigned>(bytes_of(*address).size() * 8));
  if (!bits) return std::nullopt;
  return Cidr{*address, *bits};
}

std::optional<SocketAddress> parse_socket_address(std::string_view text) {
  const std::optional<Split> split = split_port(text);
  if (!split) return std::nullopt;
  if (split->bracketed) {
    if (const auto v6 = parse_ip6(split->host)) return SocketAddress{*v6, split->port};
    return std::nullopt;
  }
  if (const auto v4 = parse_ip4(split->host)) return SocketAddress{*v4, split->port};
  return std::nullopt;
}

std::optional<HostPort> parse_host_port(std::string_view text) {
  const std::optional<Split> split = split_port(text);
  if (!split) return std::nullopt;
  const bool right = split->bracketed             ? parse_ip6(split->host).has_value()
                     : looks_numeric(split->host) ? parse_ip4(split->host).has_value()
                                                  : is_host_name(split->host);
  if (!right) return std::nullopt;
  return HostPort{std::string(split->host), split->port};
}

std::string format(const Ip4& a) {
  return fmt::format("{}.{}.{}.{}", a.bytes[0], a.bytes[1], a.bytes[2], a.bytes[3]);
}

std::string format(const Ip6& address) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, address.bytes.data(), text, sizeof text);
}

std::string format(const IpAddress& address) {
  return std::visit([](const auto& a) { return format(a); }, address);
}

std::string format(const Mac& address) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : address.bytes) {
    if (!text.empty()) text += ':';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 0xF];
  }
  return text;
}

std::string format(const Cidr& cidr) {
  return fmt::format("{}/{}", format(cidr.address), cidr.prefix_bits);
}

std::string format(const SocketAddress& address) {
  return format(HostPort{format(address.address), address.port});
}

std::string format(const HostPort& address) {
  if (address.host.find(':') != std::string::npos) return fmt::format("[{}]:{}", address.host, address.port);
  return fmt::format("{}:{}", address.host, address.port);
}

bool is_loopback(const IpAddress& address) {
  if (const Ip4* v4 = std::get_if<Ip4>(&address)) return v4->bytes[0] == 127;
  Ip6 loopback;
  loopback.bytes[15] = 1;
  return std::get<Ip6>(address) == loopback;
}

bool is_unicast(const IpAddress& address) {
  if (const Ip4* v4 = std::get_if<Ip4>(&address)) {
    // RFC 1122 3.2.1.3: network 0 is "this network"; 224/4 is multicast, 240/4 reserved with the limited broadcast.
    return v4->bytes[0] != 0 && v4->bytes[0] < 224;
  }
  const Ip6& v6 = std::get<Ip6>(address);
  return v6 != Ip6{} && v6.bytes[0] != 0xFF;
}

bool is_unicast(const Mac& address) {
  return address != Mac{} && (address.bytes[0] & 1) == 0;
}

bool contains(const Cidr& subnet, const IpAddress& address) {
  return subnet.address.index() == address.index() &&
         same_prefix(bytes_of(subnet.address), bytes_of(address), subnet.prefix_bits);
}

bool overlap(const Cidr& a, const Cidr& b) {
  return a.address.index() == b.address.index() &&
         same_prefix(bytes_of(a.address), bytes_of(b.address), std::min(a.prefix_bits, b.prefix_bits));
}

bool is_reserved_host(const Cidr& cidr) {
  const std::span<const std::uint8_t> bytes = bytes_of(cidr.address);
  const unsigned bits = static_cast<unsigned>(bytes.size() * 8);
  // RFC 3021 and RFC 6164: both addresses of a /31 or /127 are hosts.
  if (cidr.prefix_bits + 1 >= bits) return false;
  bool zeros = true;
  bool ones = cidr.address.index() == 0;
  for (unsigned bit = cidr.prefix_bits; bit < bits; ++bit) {
    if (bytes[bit / 8] >> (7 - bit % 8) & 1) {
      zeros = false;
    } else {
      ones = false;
    }
  }
  return zeros || ones;
}

}  // namespace gradgate::config
