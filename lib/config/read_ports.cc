// SPDX-License-Identifier: Apache-2.0
// [site], [[port]] and [[peer]].
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "config/quote.h"
#include "config/read_site.h"

namespace gradgate::config {
namespace {

// DPDK's RTE_MAX_ETHPORTS as Debian builds it.
constexpr std::size_t kMaxPorts = 32;
constexpr std::size_t kMaxAddresses = 16;
// Native XDP without fragments on a 4 KiB page: measured on veth, facts/afxdp-and-dpdk.md 3.4.
constexpr unsigned kMaxXdpMtuBytes = 3498;
// IFNAMSIZ less its NUL.
constexpr std::size_t kMaxInterfaceName = 15;

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_name(std::string_view text, std::size_t max) {
  return !text.empty() && text.size() <= max && std::all_of(text.begin(), text.end(), [](char c) {
    return is_alphanumeric(c) || c == '_' || c == '.' || c == '-';
  });
}

bool is_site_name(std::string_view text) {
  return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

std::optional<std::string> read_site_name(Section& section, std::string_view key, std::string_view example) {
  std::optional<std::string> name = section.text(key, example, Need::kRequired);
  if (name && !is_site_name(*name)) {
    section.fault(key, fmt::format("{} is no site name", in_quotes(*name)), "use 1 to 32 of a-z 0-9 -");
    return std::nullopt;
  }
  return name;
}

// dddd:bb:dd.f with hexadecimal digits; a function is 0..7.
bool is_pci_address(std::string_view text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.f";
  if (text.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const char c = text[i];
    const bool hexadecimal = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    const bool right = kForm[i] == 'x' ? hexadecimal : kForm[i] == 'f' ? c >= '0' && c <= '7' : c == kForm[i];
    if (!right) return false;
  }
  return true;
}

bool is_vdev(std::string_view text) {
  return text.starts_with("net_") && is_name(text.substr(0, text.find(',')), 63) &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

std::optional<PortDevice> read_device(Section& section) {
  std::optional<std::string> text = section.text("device", "\"eth1\"", Need::kRequired);
  if (!text) return std::nullopt;
  // "net_" first: what begins so is for DPDK, even where it would do as an interface's name.
  if (text->starts_with("net_")) {
    if (is_vdev(*text)) return PortDevice{PortDevice::Kind::kVdev, *text};
    section.fault("device", fmt::format("{} is no DPDK virtual device", in_quotes(*text)),
                  "write \"net_NAME\" or \"net_NAME,key=value,…\" without spaces");
    return std::nullopt;
  }
  if (is_pci_address(*text)) {
    std::transform(text->begin(), text->end(), text->begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
    return PortDevice{PortDevice::Kind::kPci, *text};
  }
  if (is_name(*text, kMaxInterfaceName) && *text != "." && *text != "..") {
    return PortDevice{PortDevice::Kind::kInterface, *text};
  }
  section.fault(
      "device",
      fmt::format("{} is neither an interface's name, nor a PCI address, nor a DPDK virtual device", in_quotes(*text)),
      "write for example \"eth1\" (15 characters at most), \"0000:3b:00.0\" or \"net_vhost0,iface=/run/vm.sock\"");
  return std::nullopt;
}

// What makes two device strings the same device: EAL names a virtual device by what stands before its first comma.
std::string_view device_key(const PortDevice& device) {
  return std::string_view(device.text).substr(0, device.text.find(','));
}

void read_mtu(Section& section, Port& port) {
  const auto mtu = section.integer("mtu", "1500", 576, 9000, Need::kOptional);
  if (!mtu) return;
  port.mtu_bytes = static_cast<unsigned>(*mtu);
  if (port.device.kind == PortDevice::Kind::kInterface && !port.device.text.empty() && *mtu > kMaxXdpMtuBytes) {
    section.fault("mtu", fmt::format("{} is more than XDP carries on an interface", *mtu),
                  fmt::format("use {} or less", kMaxXdpMtuBytes));
    port.mtu_bytes = kMaxXdpMtuBytes;
  }
}

void read_addresses(Section& section, Report& report, const std::vector<Port>& earlier, Port& port) {
  for (const Item<std::string>& item : section.texts("address", "[\"10.1.0.1/24\"]", kMaxAddresses)) {
    const std::optional<Cidr> cidr = parse_cidr(item.value);
    if (!cidr) {
      report.fault(item.place, item.where,
                   fmt::format("{} is no address with its subnet's length", in_quotes(item.value)),
                   "write for example \"10.1.0.1/24\" or \"2001:db8::1/64\"");
      continue;
    }
    if (!is_unicast(cidr->address)) {
      report.fault(item.place, item.where, fmt::format("{} is no address that a port can have", format(*cidr)),
                   "use a unicast address");
      continue;
    }
    if (is_reserved_host(*cidr)) {
      report.fault(item.place, item.where, fmt::format("{} is its subnet's own or broadcast address", format(*cidr)),
                   "use the address of a host in that subnet");
      continue;
    }
    if (std::any_of(port.addresses.begin(), port.addresses.end(),
                    [&](const Cidr& other) { return other.address == cidr->address; })) {
      report.fault(item.place, item.where, fmt::format("{} stands here twice", format(cidr->address)),
                   "remove one of them");
      continue;
    }
    for (const Port& other : earlier) {
      const auto clash = std::find_if(other.addresses.begin(), other.addresses.end(),
                                      [&](const Cidr& theirs) { return overlap(theirs, *cidr); });
      if (clash == other.addresses.end()) continue;
      const bool same = clash->address == cidr->address;
      report.fault(item.place, item.where,
                   same
                       ? fmt::format("{} is port {}'s address too", format(cidr->address), in_quotes(other.name))
                       : fmt::format("{} overlaps {} of port {}", format(*cidr), format(*clash), in_quotes(other.name)),
                   "give each port its own subnet");
      break;
    }
    port.addresses.push_back(*cidr);
  }
}

void read_next_hop(Section& section, Port& port) {
  const auto text = section.text("next_hop", "\"10.1.0.254\"", Need::kOptional);
  if (!text) return;
  const std::optional<Ip4> hop = parse_ip4(*text);
  if (!hop) {
    section.fault("next_hop", fmt::format("{} is no IPv4 address", in_quotes(*text)),
                  "write the router's address, for example \"10.1.0.254\"");
    return;
  }
  if (port.device.kind == PortDevice::Kind::kInterface) {
    if (!port.device.text.empty()) {
      section.fault("next_hop", fmt::format("the kernel routes for the interface {}", port.device.text),
                    fmt::format("remove it and set the route with: ip route add … via {} dev {}", format(*hop),
                                port.device.text));
    }
    return;
  }
  const bool inside =
      std::any_of(port.addresses.begin(), port.addresses.end(), [&](const Cidr& cidr) { return contains(cidr, *hop); });
  if (!inside) {
    section.fault("next_hop", fmt::format("{} is in none of the port's subnets", format(*hop)),
                  "use a router's address inside one of the port's `address` subnets");
    return;
  }
  if (std::any_of(port.addresses.begin(), port.addresses.end(),
                  [&](const Cidr& cidr) { return cidr.address == IpAddress(*hop); })) {
    section.fault("next_hop", fmt::format("{} is the port's own address", format(*hop)), "use the router's address");
    return;
  }
  port.next_hop = *hop;
}

bool has_ip4(const Port& port) {
  return std::any_of(port.addresses.begin(), port.addresses.end(),
                     [](const Cidr& cidr) { return std::holds_alternative<Ip4>(cidr.address); });
}

std::optional<gg_modality> read_modality(Section& section) {
  const auto text = section.text("modality", "\"udp4\"", Need::kRequired);
  if (!text) return std::nullopt;
  if (*text == "udp4") return GG_MODALITY_UDP4;
  if (*text == "ethernet") return GG_MODALITY_ETHERNET;
  constexpr std::string_view kLater[] = {"udp6", "vxlan", "rocev2", "id", "geo", "mf", "ndn", "flexip"};
  const bool known = std::find(std::begin(kLater), std::end(kLater), *text) != std::end(kLater);
  section.fault("modality",
                known ? fmt::format("{} is known but not in this version", in_quotes(*text))
                      : fmt::format("{} is no modality", in_quotes(*text)),
                "use \"udp4\" or \"ethernet\"");
  return std::nullopt;
}

void read_udp4_address(Section& section, const std::string& text, const Port* port, Peer& peer) {
  const std::optional<Ip4> address = parse_ip4(text);
  if (!address || !is_unicast(IpAddress(*address))) {
    section.fault("address", fmt::format("{} is no IPv4 address of a host", in_quotes(text)),
                  "with modality = \"udp4\" write for example \"198.51.100.2\"");
    return;
  }
  peer.address = *address;
  if (port == nullptr) return;
  if (!has_ip4(*port)) {
    section.fault("port", fmt::format("port {} has no IPv4 address to send from", in_quotes(port->name)),
                  "add one to the port's address list, for example \"198.51.100.1/30\"");
    return;
  }
  bool reached = port->next_hop.has_value() || port->device.kind == PortDevice::Kind::kInterface;
  for (const Cidr& cidr : port->addresses) {
    if (cidr.address == IpAddress(*address)) {
      section.fault("address", fmt::format("{} is port {}'s own address", format(*address), in_quotes(port->name)),
                    "use the other site's address");
      return;
    }
    reached = reached || contains(cidr, *address);
  }
  if (!reached) {
    section.fault("address", fmt::format("{} is in none of port {}'s subnets", format(*address), in_quotes(port->name)),
                  "add next_hop, the router's address, to the port");
  }
}

void read_peer_address(Section& section, const std::optional<gg_modality>& modality, const Port* port, Peer& peer) {
  const auto text = section.text(
      "address", modality == GG_MODALITY_ETHERNET ? "\"02:00:00:00:00:02\"" : "\"198.51.100.2\"", Need::kRequired);
  if (!text || !modality) return;
  if (*modality == GG_MODALITY_UDP4) {
    read_udp4_address(section, *text, port, peer);
    return;
  }
  const std::optional<Mac> mac = parse_mac(*text);
  if (!mac || !is_unicast(*mac)) {
    section.fault("address", fmt::format("{} is no MAC address of a host", in_quotes(*text)),
                  "with modality = \"ethernet\" write for example \"02:00:00:00:00:02\"");
    return;
  }
  peer.address = *mac;
}

// What must not occur twice among the peers, each with the peer it belongs to.
struct Taken {
  std::map<std::string, std::string> names;
  std::map<std::uint16_t, std::string> ids;
  std::map<std::pair<std::size_t, std::variant<Ip4, Mac>>, std::string> addresses;
  std::map<HostPort, std::string> controls;
};

void read_peer_identity(Section& section, const Site& site, Taken& taken, Peer& peer) {
  if (const auto name = read_site_name(section, "site", "\"shanghai\"")) {
    peer.site = *name;
    if (*name == site.name) {
      section.fault("site", fmt::format("{} is this site itself", in_quotes(*name)), "use the other site's name");
    } else if (!taken.names.emplace(*name, *name).second) {
      section.fault("site", fmt::format("there are two peers {}", in_quotes(*name)), "keep one [[peer]] for each site");
    }
  }
  if (const auto id = section.integer("id", "2", 1, GG_MAX_SITE, Need::kRequired)) {
    peer.id = static_cast<std::uint16_t>(*id);
    const auto [other, first] = taken.ids.emplace(peer.id, peer.site);
    if (peer.id == site.id) {
      section.fault("id", fmt::format("{} is this site's own id", *id), "use the id in the other site's file");
    } else if (!first) {
      section.fault("id", fmt::format("{} is the id of peer {} too", *id, in_quotes(other->second)),
                    "use the id in the other site's file");
    }
  }
}

const Port* read_peer_port(Section& section, const Site& site, Peer& peer) {
  const auto name = section.text("port", "\"wan\"", Need::kRequired);
  if (!name) return nullptr;
  const auto port = std::find_if(site.ports.begin(), site.ports.end(), [&](const Port& p) { return p.name == *name; });
  if (port == site.ports.end()) {
    std::vector<std::string> names;
    for (const Port& p : site.ports) {
      if (!p.name.empty()) names.push_back(in_quotes(p.name));
    }
    section.fault("port", fmt::format("there is no port {}", in_quotes(*name)),
                  names.empty() ? "add a [[port]] of that name" : fmt::format("use one of {}", join(names)));
    return nullptr;
  }
  peer.port = static_cast<std::size_t>(port - site.ports.begin());
  return &*port;
}

void read_peer(Section& section, const Site& site, Taken& taken, Peer& peer) {
  read_peer_identity(section, site, taken, peer);
  const Port* port = read_peer_port(section, site, peer);
  const std::optional<gg_modality> modality = read_modality(section);
  if (modality) peer.modality = *modality;
  read_peer_address(section, modality, port, peer);
  const bool addressed = peer.address != std::variant<Ip4, Mac>{};
  if (port != nullptr && addressed) {
    const auto [other, first] = taken.addresses.emplace(std::pair(peer.port, peer.address), peer.site);
    if (!first) {
      section.fault("address", fmt::format("is the address of peer {} too", in_quotes(other->second)),
                    "give each site's gateway its own address");
    }
  }
  peer.rate_bits_per_second =
      section.quantity("rate", "\"10 Gbit/s\"", parse_rate, format_rate, 100'000, 1'000'000'000'000, Need::kRequired)
          .value_or(0);
  peer.rtt_ns =
      section.quantity("rtt", "\"30 ms\"", parse_duration, format_duration, 1'000, 10'000'000'000, Need::kRequired)
          .value_or(0);
  if (const auto text = section.text("control", "\"gw.shanghai.example:9470\"", Need::kRequired)) {
    const std::optional<HostPort> control = parse_host_port(*text);
    if (!control) {
      section.fault("control", fmt::format("{} is no host and TCP port", in_quotes(*text)),
                    "write for example \"gw.shanghai.example:9470\", \"198.51.100.2:9470\" or \"[2001:db8::2]:9470\"");
    } else {
      peer.control = *control;
      const auto [other, first] = taken.controls.emplace(*control, peer.site);
      if (!first) {
        section.fault("control", fmt::format("is the control address of peer {} too", in_quotes(other->second)),
                      "use the other site's own listen address");
      }
    }
  }
  const bool given = section.find("trusted") != nullptr;
  const std::optional<bool> trusted = section.boolean("trusted");
  peer.trusted = trusted.value_or(false);
  if (peer.trusted) {
    section.warn("trusted",
                 fmt::format("gradients to and from site {} cross the network unprotected", in_quotes(peer.site)),
                 "keep it so only where the network between the sites is closed");
  } else if (trusted || !given) {
    section.fault("trusted", "peer links are not encrypted in this version",
                  "set trusted = true, and only where the network between the sites is closed");
  }
  section.refuse_unknown();
}

}  // namespace

std::optional<std::string> read_name(Section& section, std::string_view key, std::string_view example) {
  std::optional<std::string> name = section.text(key, example, Need::kRequired);
  if (name && !is_name(*name, 32)) {
    section.fault(key, fmt::format("{} is no name", in_quotes(*name)), "use 1 to 32 of A-Z a-z 0-9 _ . -");
    return std::nullopt;
  }
  return name;
}

void read_identity(Section& root, Site& site) {
  std::optional<Section> section = root.table("site", Need::kRequired, "name = \"beijing\" and id = 1");
  if (!section) return;
  site.name = read_site_name(*section, "name", "\"beijing\"").value_or("");
  site.id = static_cast<std::uint16_t>(section->integer("id", "1", 1, GG_MAX_SITE, Need::kRequired).value_or(0));
  section->refuse_unknown();
}

void read_ports(Section& root, Report& report, Site& site) {
  std::set<std::string> names;
  std::map<std::string, std::string> devices;
  for (Section& section : root.tables("port", kMaxPorts)) {
    Port port;
    if (const auto name = read_name(section, "name", "\"wan\"")) {
      port.name = *name;
      if (!names.insert(*name).second) {
        section.fault("name", fmt::format("there are two ports {}", in_quotes(*name)), "give each port its own name");
      }
    }
    if (const auto device = read_device(section)) {
      port.device = *device;
      const auto [other, first] = devices.emplace(device_key(*device), port.name);
      if (!first) {
        section.fault("device",
                      fmt::format("{} is the device of port {} too", device_key(*device), in_quotes(other->second)),
                      "give each port its own device");
      }
    }
    read_mtu(section, port);
    read_addresses(section, report, site.ports, port);
    read_next_hop(section, port);
    section.refuse_unknown();
    site.ports.push_back(std::move(port));
  }
}

void read_peers(Section& root, Site& site) {
  Taken taken;
  for (Section& section : root.tables("peer", GG_MAX_SITE)) {
    Peer peer;
    read_peer(section, site, taken, peer);
    site.peers.push_back(std::move(peer));
  }
}

}  // namespace gradgate::config
