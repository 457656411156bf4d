// SPDX-License-Identifier: Apache-2.0
#include "dataplane/ports.h"

#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "dataplane/eal.h"
#include "dataplane/memory.h"

namespace gradgate::dataplane {

namespace {

using Kind = config::PortDevice::Kind;

constexpr uint16_t kDescriptors = 2048;
constexpr uint32_t kPoolCache = 256;

static_assert(sizeof(rte_mbuf) == 128 && RTE_PKTMBUF_HEADROOM == 128, "memory.cc counts with these");

/// Installed, or beside this program in its build tree: the latter first, so that both are of the same build.
std::string bpf_object_path() {
  if (const char* path = std::getenv("GRADGATE_BPF_OBJECT"); path != nullptr) return path;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path built = self.parent_path() / "../../bpf/gradgate.bpf.o";
  if (std::filesystem::exists(built, error)) return std::filesystem::canonical(built, error);
  return GRADGATE_BPF_INSTALLED;
}

std::string kernel_driver(const std::string& ifname) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request{};
  std::memcpy(request.ifr_name, ifname.data(), std::min(ifname.size(), sizeof request.ifr_name - 1));
  request.ifr_data = reinterpret_cast<char*>(&info);
  const bool known = ::ioctl(fd, SIOCETHTOOL, &request) == 0;
  ::close(fd);
  return known ? info.driver : std::string();
}

/// Sockets of AF_XDP that this process has open.
std::set<int> xdp_sockets() {
  std::set<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::stoi(entry.path().filename());
    int domain = 0;
    socklen_t bytes = sizeof domain;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_XDP) found.insert(fd);
  }
  return found;
}

}  // namespace

Port::Port(const config::Site& whole, uint16_t position)
    : site(whole), config(whole.ports[position]), index(position), has_kernel(config.device.kind == Kind::kInterface) {
  for (const config::Cidr& cidr : config.addresses) {
    if (const auto* ip4 = std::get_if<config::Ip4>(&cidr.address)) own.ip4.push_back(ip4->bytes);
    if (const auto* ip6 = std::get_if<config::Ip6>(&cidr.address)) own.ip6.push_back(ip6->bytes);
  }
}

Port::~Port() {
  if (started_) rte_eth_dev_stop(id);
  if (id != RTE_MAX_ETHPORTS) rte_eth_dev_close(id);
  rte_mempool_free(pool);
}

void Port::fail(const std::string& what, int error) const {
  throw StartError(fmt::format("port {} ({}): cannot {}: {}{}", config.name, config.device.text, what,
                               rte_strerror(error < 0 ? -error : error), dpdk_words()));
}

void Port::start() {
  const std::set<int> before = xdp_sockets();
  make_pool();
  create_device();
  configure_device();
  const int error = rte_eth_dev_start(id);
  if (error != 0) fail("start the device", error);
  started_ = true;
  if (has_kernel) {
    configure_xdp();
    for (const int fd : xdp_sockets())
      if (!before.contains(fd)) wait_fd = fd;
  } else {
    // Neighbour solicitations go to multicast addresses. Devices without filters do not know the call.
    rte_eth_allmulticast_enable(id);
  }
  dpdk_words();
}

void Port::make_pool() {
  const PoolShape shape = pool_shape(config, site.dataplane);
  buffers = shape.buffers;
  buffer_bytes = shape.element_bytes;
  const std::string name = fmt::format("port{}", index);
  constexpr uint32_t kObjectHeader = RTE_CACHE_LINE_SIZE;
  const uint32_t element = shape.element_bytes - kObjectHeader;
  if (!shape.exact) {
    pool = rte_pktmbuf_pool_create(name.c_str(), buffers, kPoolCache, 0,
                                   static_cast<uint16_t>(element - sizeof(rte_mbuf)), SOCKET_ID_ANY);
    if (pool == nullptr) fail(fmt::format("allocate {} buffers of {} bytes", buffers, buffer_bytes), rte_errno);
    return;
  }
  // The PMD takes the UMEM to be as long as elements times their size: they must fill pages without gaps, which the
  // default layout does not (facts: "UMEM too short").
  rte_mempool_objsz size{};
  if (rte_mempool_calc_obj_size(element, RTE_MEMPOOL_F_NO_SPREAD, &size) != shape.element_bytes)
    fail("lay out packet buffers without gaps", EINVAL);
  pool = rte_mempool_create_empty(name.c_str(), buffers, element, kPoolCache, sizeof(rte_pktmbuf_pool_private),
                                  SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_SPREAD);
  if (pool == nullptr) fail("create the buffer pool", rte_errno);
  int error = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), nullptr);
  if (error != 0) fail("set up the buffer pool", error);
  rte_pktmbuf_pool_init(pool, nullptr);
  error = rte_mempool_populate_default(pool);
  if (error < 0) fail(fmt::format("allocate {} buffers of {} bytes", buffers, buffer_bytes), error);
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  if (pool->nb_mem_chunks != 1) fail("allocate the packet buffers in one piece, as AF_XDP needs them", ENOMEM);
}

void Port::create_device() {
  std::string name = config.device.text;
  std::string arguments;
  switch (config.device.kind) {
    case Kind::kPci:
      break;  // probed by EAL
    case Kind::kInterface: {
      const std::string object = bpf_object_path();
      std::error_code missing;
      if (!std::filesystem::exists(object, missing))
        throw StartError(
            fmt::format("the XDP program {} is missing: install it, or name it in GRADGATE_BPF_OBJECT", object));
      if (object.find_first_of(",=[]") != std::string::npos)
        throw StartError(fmt::format("the XDP program {}: DPDK takes no ',', '=' or brackets in its path", object));
      name = fmt::format("net_af_xdp{}", index);
      arguments = fmt::format("iface={},xdp_prog={}", config.device.text, object);
      // With a budget an empty poll is a system call; without one the PMD can block for a second where the driver has
      // zero-copy (facts 3.2, 8). These drivers have none.
      driver_ = kernel_driver(config.device.text);
      static constexpr const char* kCopyDrivers[] = {"veth", "tun", "virtio_net"};
      if (std::find(std::begin(kCopyDrivers), std::end(kCopyDrivers), driver_) != std::end(kCopyDrivers))
        arguments += ",busy_budget=0";
      break;
    }
    case Kind::kVdev: {
      const size_t comma = name.find(',');
      if (comma != std::string::npos) {
        arguments = name.substr(comma + 1);
        name.resize(comma);
      }
      break;
    }
  }
  if (config.device.kind != Kind::kPci) {
    const int error = rte_eal_hotplug_add("vdev", name.c_str(), arguments.c_str());
    if (error != 0) fail(fmt::format("create the device {} with \"{}\"", name, arguments), error);
  }
  const int error = rte_eth_dev_get_port_by_name(name.c_str(), &id);
  if (error != 0) {
    id = RTE_MAX_ETHPORTS;
    fail("find the device in DPDK: no driver of DPDK took it", error);
  }
}

void Port::configure_device() {
  rte_eth_dev_info info{};
  int error = rte_eth_dev_info_get(id, &info);
  if (error != 0) fail("ask for the device's abilities", error);
  driver_ = driver_.empty() ? info.driver_name : fmt::format("{} ({})", info.driver_name, driver_);

  rte_eth_conf conf{};
  conf.rxmode.mtu = config.mtu_bytes;
  if (info.max_mtu < config.mtu_bytes)
    throw StartError(fmt::format("port {} ({}): mtu {} is more than the device's {}", config.name, config.device.text,
                                 config.mtu_bytes, info.max_mtu));
  error = rte_eth_dev_configure(id, 1, 1, &conf);
  if (error != 0) fail("configure the device", error);
  uint16_t rx = kDescriptors, tx = kDescriptors;
  error = rte_eth_dev_adjust_nb_rx_tx_desc(id, &rx, &tx);
  if (error != 0) fail("choose the sizes of its rings", error);
  error = rte_eth_rx_queue_setup(id, 0, rx, rte_eth_dev_socket_id(id), nullptr, pool);
  if (error != 0) fail("set up its receive queue", error);
  error = rte_eth_tx_queue_setup(id, 0, tx, rte_eth_dev_socket_id(id), nullptr);
  if (error != 0) fail("set up its transmit queue", error);
  ring_buffers = uint32_t{rx} + tx;
  reserve = std::max(buffers / 16 + 512, uint32_t{tx} + kPoolCache);

  rte_ether_addr mac{};
  error = rte_eth_macaddr_get(id, &mac);
  if (error != 0) fail("read its MAC", error);
  std::copy_n(mac.addr_bytes, 6, own.mac.begin());
}

void Port::configure_xdp() {
  const std::string& ifname = config.device.text;
  std::string text = xdp.open(ifname);
  if (text.empty()) {
    gg_xdp_config what{};
    what.site = site.id;
    what.base_port = site.dataplane.udp_port;
    what.lanes = static_cast<uint16_t>(site.dataplane.lanes);
    // More than the program's table holds: any destination address counts as ours, the label decides.
    if (own.ip4.size() <= GG_XDP_MAX_ADDRESSES) {
      what.address_count = static_cast<uint16_t>(own.ip4.size());
      for (size_t i = 0; i < own.ip4.size(); ++i) std::copy_n(own.ip4[i].begin(), 4, what.addresses[i]);
    }
    text = xdp.configure(what);
  }
  if (!text.empty()) throw StartError(fmt::format("port {}: {}", config.name, text));
  AttachedXdp attached;
  if (inspect(ifname, attached).empty() && attached.mode == XdpMode::kGeneric)
    spdlog::warn("port {}: the driver of {} has no native XDP; the generic mode is several times slower", config.name,
                 ifname);
}

PortStatus Port::status() const {
  PortStatus out;
  out.name = config.name;
  out.device = config.device.text;
  out.driver = driver_;
  out.mtu = config.mtu_bytes;
  out.mac = own.mac;
  if (has_kernel) {
    // The PMD's link is made up (facts 3.2, 2).
    InterfaceState state;
    out.link_up = interface_state(config.device.text, state).empty() && state.carrier;
    XdpMaps::Verdicts verdicts{};
    if (xdp.read_drops(out.xdp_drops).empty() && xdp.read_verdicts(verdicts).empty()) {
      out.xdp_redirected = verdicts[GG_XDP_VERDICT_REDIRECT];
      out.xdp_passed = verdicts[GG_XDP_VERDICT_PASS];
      out.xdp_no_socket = verdicts[GG_XDP_VERDICT_NO_SOCKET];
    }
  } else {
    rte_eth_link link{};
    out.link_up = rte_eth_link_get_nowait(id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
  }
  rte_eth_stats stats{};
  if (rte_eth_stats_get(id, &stats) == 0) {
    out.rx_packets = stats.ipackets;
    out.rx_bytes = stats.ibytes;
    out.rx_missed = stats.imissed;
    out.rx_no_buffer_polls = stats.rx_nombuf;
    out.tx_packets = stats.opackets;
    out.tx_bytes = stats.obytes;
  }
  // The PMD leaves out what did not fit into the receive ring (facts 3.2, 10).
  xdp_statistics socket_stats{};
  socklen_t bytes = sizeof socket_stats;
  if (wait_fd >= 0 && ::getsockopt(wait_fd, SOL_XDP, XDP_STATISTICS, &socket_stats, &bytes) == 0)
    out.rx_missed = socket_stats.rx_dropped + socket_stats.rx_ring_full;
  out.buffers = buffers;
  out.buffers_free = rte_mempool_avail_count(pool);
  return out;
}

}  // namespace gradgate::dataplane
