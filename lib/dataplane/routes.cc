// SPDX-License-Identifier: Apache-2.0
#include "dataplane/routes.h"

#include <algorithm>

namespace gradgate::dataplane {

namespace {

/// The port's address that packets to `ip` come from: in its subnet, else the port's first.
Ip4 source_address(const config::Port& port, const Ip4& ip, bool& on_link) {
  Ip4 first{};
  bool found = false;
  on_link = false;
  for (const config::Cidr& cidr : port.addresses) {
    const auto* own = std::get_if<config::Ip4>(&cidr.address);
    if (own == nullptr) continue;
    if (config::contains(cidr, config::Ip4{ip})) {
      on_link = true;
      return own->bytes;
    }
    if (!found) first = own->bytes;
    found = true;
  }
  return first;
}

Route make_route(const config::Site& site, const std::vector<Mac>& macs, const core::Neighbour& neighbour,
                 const Endpoint& endpoint) {
  Route route;
  route.in_use = true;
  route.peer = neighbour.peer;
  route.port_per_lane = endpoint.port_per_lane;
  route.port = endpoint.port;
  route.path.modality = endpoint.modality;
  route.path.source_port = site.dataplane.udp_port;
  route.path.destination_port = endpoint.udp_port;
  std::copy_n(macs[endpoint.port].begin(), 6, route.path.source_mac);
  if (endpoint.modality == GG_MODALITY_ETHERNET) {
    std::copy_n(endpoint.mac.begin(), 6, route.path.destination_mac);
    return route;
  }
  const config::Port& port = site.ports[endpoint.port];
  bool on_link = false;
  const Ip4 source = source_address(port, endpoint.ip, on_link);
  std::copy_n(source.begin(), 4, route.path.source_ip);
  std::copy_n(endpoint.ip.begin(), 4, route.path.destination_ip);
  route.next_hop = on_link || !port.next_hop ? endpoint.ip : port.next_hop->bytes;
  route.mac_tag = MacTable::tag(endpoint.port, endpoint.ip);
  return route;
}

}  // namespace

std::unique_ptr<const Published> publish_routes(const config::Site& site, const std::vector<Mac>& macs,
                                                std::shared_ptr<const Snapshot> snapshot) {
  auto published = std::make_unique<Published>();
  const auto& neighbours = snapshot->core->neighbours;
  published->routes.resize(neighbours.size());
  for (size_t i = 0; i < neighbours.size(); ++i) {
    if (neighbours[i] == nullptr || snapshot->endpoints[i].port >= site.ports.size()) continue;
    published->routes[i] = make_route(site, macs, *neighbours[i], snapshot->endpoints[i]);
  }
  published->snapshot = std::move(snapshot);
  return published;
}

uint16_t MacTable::tag(uint16_t port, const Ip4& ip) {
  uint64_t x = uint64_t{port} << 32 | uint64_t{ip[0]} << 24 | uint64_t{ip[1]} << 16 | uint64_t{ip[2]} << 8 | ip[3];
  x = (x + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9;  // splitmix64
  x ^= x >> 27;
  const auto tag = static_cast<uint16_t>(x >> 16);
  return tag == 0 ? uint16_t{1} : tag;
}

}  // namespace gradgate::dataplane
