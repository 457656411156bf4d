// SPDX-License-Identifier: Apache-2.0
#include "dataplane/preflight.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <utility>

#include "dataplane/join.h"
#include "dataplane/xdp.h"

namespace gradgate::dataplane {

namespace {

using Kind = config::PortDevice::Kind;

constexpr uint64_t kMiB = 1 << 20;

uint64_t mib(uint64_t bytes) {
  return (bytes + kMiB - 1) / kMiB;
}

uint64_t effective_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return 0;
  return uint64_t{data[1].effective} << 32 | data[0].effective;
}

void check_privileges(const config::Site& site, std::vector<std::string>& faults) {
  const bool interfaces = std::any_of(site.ports.begin(), site.ports.end(),
                                      [](const config::Port& port) { return port.device.kind == Kind::kInterface; });
  if (!interfaces) return;
  const uint64_t have = effective_capabilities();
  std::string missing;
  const auto need = [&](unsigned capability, const char* name) {
    if ((have >> capability & 1) == 0) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need(CAP_NET_ADMIN, "CAP_NET_ADMIN");
  need(CAP_NET_RAW, "CAP_NET_RAW");
  // CAP_BPF loads the program; finding its maps again by their ids takes CAP_SYS_ADMIN, which includes it.
  need(CAP_SYS_ADMIN, "CAP_SYS_ADMIN");
  if (!missing.empty()) {
    faults.push_back("privileges are missing for ports on kernel interfaces: " + missing +
                     "; run as root, or give the service these capabilities (AmbientCapabilities= in systemd)");
  }
  rlimit limit{};
  uint64_t umem_bytes = 0;
  for (const config::Port& port : site.ports) {
    const PoolShape shape = pool_shape(port, site.dataplane);
    if (shape.exact) umem_bytes += uint64_t{shape.buffers} * shape.element_bytes;
  }
  const bool may_lock = (have >> CAP_IPC_LOCK & 1) != 0 || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
                        limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= umem_bytes;
  if (!may_lock) {
    faults.push_back(
        fmt::format("the limit of locked memory is {} MiB, packet buffers take {} MiB: run as root or with "
                    "CAP_IPC_LOCK, or raise it (LimitMEMLOCK=infinity in systemd)",
                    mib(limit.rlim_cur), mib(umem_bytes)));
  }
}

void check_interface(const config::Port& port, std::vector<std::string>& faults) {
  const std::string& ifname = port.device.text;
  const auto fault = [&](const std::string& text) { faults.push_back(fmt::format("port {}: {}", port.name, text)); };
  InterfaceState state;
  if (const std::string error = interface_state(ifname, state); !error.empty()) return fault(error);
  if (!state.exists)
    return fault(fmt::format("no network interface {} here; `ip -br link` lists those there are", ifname));
  if (!state.up) fault(fmt::format("interface {} is down: ip link set dev {} up", ifname, ifname));
  if (state.mtu > kMaxXdpMtu) {
    fault(fmt::format("interface {} has MTU {}, XDP carries {} at most: ip link set dev {} mtu {}", ifname, state.mtu,
                      kMaxXdpMtu, ifname, port.mtu_bytes));
  } else if (state.mtu < port.mtu_bytes) {
    fault(fmt::format("interface {} has MTU {}, the file says {}: ip link set dev {} mtu {}", ifname, state.mtu,
                      port.mtu_bytes, ifname, port.mtu_bytes));
  }
  if (state.rx_queues > 1) {
    fault(fmt::format("interface {} spreads packets over {} receive queues, a port reads one: ethtool -L {} combined 1",
                      ifname, state.rx_queues, ifname));
  }
  AttachedXdp attached;
  std::string error = inspect(ifname, attached);
  // Of a foreign program remove_stale() only says what to do.
  if (error.empty() && attached.owner == XdpOwner::kForeign) error = remove_stale(ifname);
  if (!error.empty()) fault(error);
}

void check_pci(const config::Port& port, std::vector<std::string>& faults) {
  const std::string& address = port.device.text;
  const std::filesystem::path device = "/sys/bus/pci/devices/" + address;
  std::error_code error;
  if (!std::filesystem::exists(device, error)) {
    faults.push_back(
        fmt::format("port {}: no PCI device {} here; `lspci -D` lists those there are", port.name, address));
    return;
  }
  const std::string driver = std::filesystem::read_symlink(device / "driver", error).filename();
  // NVIDIA's cards are driven through their kernel driver.
  static constexpr const char* kUsable[] = {"vfio-pci", "uio_pci_generic", "igb_uio", "mlx4_core", "mlx5_core"};
  if (std::find(std::begin(kUsable), std::end(kUsable), driver) != std::end(kUsable)) return;
  faults.push_back(fmt::format("port {}: PCI device {} is bound to {}: dpdk-devbind.py --bind=vfio-pci {}", port.name,
                               address, driver.empty() ? "no driver" : driver, address));
}

void check_cpus(const config::Site& site, std::vector<std::string>& faults) {
  const std::vector<unsigned> allowed = allowed_cpus();
  for (const unsigned cpu : site.dataplane.lcores) {
    if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) continue;
    faults.push_back(
        fmt::format("dataplane.lcores: CPU {} is not among those this process may use ({})", cpu, join(allowed, ",")));
  }
}

void check_memory(const MemoryPlan& memory, std::vector<std::string>& faults) {
  if (memory.lacking_device.empty()) return;
  constexpr uint64_t kPage = 2 * kMiB;
  faults.push_back(fmt::format(
      "device {} works with hugepages only: {} MiB are needed, {} MiB are free (and [dataplane] hugepages must not be "
      "\"never\"): sysctl vm.nr_hugepages={}",
      memory.lacking_device, mib(memory.needed_bytes), memory.free_hugepage_bytes / kMiB,
      (memory.needed_bytes + kPage - 1) / kPage));
}

}  // namespace

std::vector<std::string> preflight(const config::Site& site, const MemoryPlan& memory) {
  std::vector<std::string> faults;
  check_privileges(site, faults);
  check_cpus(site, faults);
  check_memory(memory, faults);
  const bool privileged = faults.empty() || (effective_capabilities() >> CAP_SYS_ADMIN & 1) != 0;
  for (const config::Port& port : site.ports) {
    // Without privileges every look at an XDP program fails, which would hide the one line that matters.
    if (port.device.kind == Kind::kInterface && privileged) check_interface(port, faults);
    if (port.device.kind == Kind::kPci) check_pci(port, faults);
  }
  return faults;
}

InterfaceLock::~InterfaceLock() {
  if (fd_ >= 0) ::close(fd_);
}

InterfaceLock::InterfaceLock(InterfaceLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

std::string InterfaceLock::acquire(const std::string& ifname) {
  // An abstract UNIX socket's name belongs to the network namespace, as the interface does (unix(7)).
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "gradgate-port/" + ifname;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (fd_ >= 0 && ::bind(fd_, reinterpret_cast<const sockaddr*>(&address), length) == 0) return {};
  if (errno == EADDRINUSE)
    return ifname + ": another gradgate process uses this interface: stop it first, or name another interface";
  return ifname + ": cannot lock the interface: " + std::strerror(errno);
}

std::vector<unsigned> allowed_cpus() {
  // Larger than glibc's cpu_set_t on purpose: sched_getaffinity() fails when the machine has more.
  constexpr unsigned kMaxCpus = 8192;
  std::vector<unsigned> cpus;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  if (::sched_getaffinity(0, bytes, set) == 0) {
    for (unsigned cpu = 0; cpu < kMaxCpus; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
  }
  CPU_FREE(set);
  return cpus;
}

}  // namespace gradgate::dataplane
