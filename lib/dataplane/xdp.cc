// SPDX-License-Identifier: Apache-2.0
#include "dataplane/xdp.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace gradgate::dataplane {
namespace {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// `error` is a positive errno.
std::string failure(const std::string& ifname, const std::string& what, int error) {
  std::string text = ifname + ": cannot " + what + ": " + std::strerror(error);
  // Loading and attaching need CAP_BPF and CAP_NET_ADMIN; going from an id to a descriptor, as every look at a program
  // that another process attached does, needs CAP_SYS_ADMIN (kernel/bpf/syscall.c).
  if (error == EPERM || error == EACCES) {
    text +=
        "; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN (finding attached programs and their maps)";
  }
  return text;
}

std::string missing(const std::string& ifname) {
  return ifname + ": no such network interface in this network namespace; `ip -br link` lists those there are";
}

std::string detach_command(const std::string& ifname, XdpMode mode) {
  const char* word = mode == XdpMode::kGeneric ? "xdpgeneric" : mode == XdpMode::kOffloaded ? "xdpoffload" : "xdpdrv";
  return "`ip link set dev " + ifname + " " + word + " off`";
}

std::string describe(const AttachedXdp& attached) {
  return "XDP program \"" + attached.program_name + "\" (id " + std::to_string(attached.program_id) + ", " +
         xdp_mode_name(attached.mode) + " mode)";
}

// The kernel keeps 15 characters of a map's or program's name and cuts the rest.
bool name_matches(const char* kept, const char* wanted) {
  return std::strncmp(kept, wanted, BPF_OBJ_NAME_LEN - 1) == 0;
}

// Fills `out` when a program is attached in `mode`. `program_id` 0: none.
std::string identify(const std::string& ifname, uint32_t program_id, XdpMode mode, AttachedXdp& out) {
  if (program_id == 0) return {};
  const Fd program(bpf_prog_get_fd_by_id(program_id));
  if (program.get() < 0) {
    if (errno == ENOENT) return {};  // detached since the query
    return failure(ifname, "open the attached XDP program, id " + std::to_string(program_id), errno);
  }
  bpf_prog_info info{};
  uint32_t length = sizeof info;
  if (bpf_obj_get_info_by_fd(program.get(), &info, &length) != 0) {
    return failure(ifname, "read the attached XDP program, id " + std::to_string(program_id), errno);
  }
  const bool ours = name_matches(info.name, GG_XDP_PROGRAM);
  if (out.owner == XdpOwner::kForeign || (out.owner == XdpOwner::kOurs && ours)) return {};
  out = {ours ? XdpOwner::kOurs : XdpOwner::kForeign, program_id, info.name, mode};
  return {};
}

template <size_t kCount>
std::string read_counters(const std::string& ifname, int fd, const char* map, std::array<uint64_t, kCount>& out) {
  const int cpus = libbpf_num_possible_cpus();
  if (cpus < 0) return failure(ifname, "count the possible CPUs", -cpus);
  std::vector<uint64_t> values(static_cast<size_t>(cpus));
  for (uint32_t key = 0; key < kCount; ++key) {
    if (bpf_map_lookup_elem(fd, &key, values.data()) != 0) {
      return failure(ifname, std::string("read the map ") + map, errno);
    }
    out[key] = 0;
    for (const uint64_t value : values) out[key] += value;
  }
  return {};
}

std::string check_config(const std::string& ifname, const gg_xdp_config& config) {
  const auto refuse = [&](const char* what, unsigned value, const char* right) {
    return ifname + ": XDP configuration: " + what + " " + std::to_string(value) + " is wrong; " + right;
  };
  if (config.site == 0 || config.site > GG_MAX_SITE) return refuse("site", config.site, "1 to 4095");
  if (config.lanes == 0 || config.lanes > GG_MAX_LANES) return refuse("lanes", config.lanes, "1 to 64");
  if (config.base_port == 0 || config.base_port > 65536 - GG_MAX_LANES) {
    return refuse("base UDP port", config.base_port, "1 to 65472, so that every lane has its port");
  }
  if (config.address_count > GG_XDP_MAX_ADDRESSES) {
    return refuse("number of own IPv4 addresses", config.address_count, "at most 8 a port");
  }
  return {};
}

}  // namespace

std::string interface_state(const std::string& ifname, InterfaceState& out) {
  out = {};
  ifreq request{};
  if (ifname.empty() || ifname.size() >= sizeof request.ifr_name) return {};
  std::memcpy(request.ifr_name, ifname.data(), ifname.size());

  // Not /sys/class/net: a mounted sysfs shows the network namespace of whoever mounted it.
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return failure(ifname, "open a socket to ask for the interface", errno);
  if (::ioctl(socket.get(), SIOCGIFINDEX, &request) != 0) {
    return errno == ENODEV ? std::string() : failure(ifname, "read the interface's index", errno);
  }
  out.exists = true;
  out.ifindex = static_cast<unsigned>(request.ifr_ifindex);
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return failure(ifname, "read the interface's flags", errno);
  out.up = (request.ifr_flags & IFF_UP) != 0;
  out.carrier = out.up && (request.ifr_flags & IFF_RUNNING) != 0;
  if (::ioctl(socket.get(), SIOCGIFMTU, &request) != 0) return failure(ifname, "read the interface's MTU", errno);
  out.mtu = static_cast<unsigned>(request.ifr_mtu);
  if (::ioctl(socket.get(), SIOCGIFHWADDR, &request) != 0) return failure(ifname, "read the interface's MAC", errno);
  std::memcpy(out.mac.data(), request.ifr_hwaddr.sa_data, out.mac.size());

  // Drivers without channels (tun, dummy) refuse; they have the one queue.
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  request.ifr_data = reinterpret_cast<char*>(&channels);
  out.rx_queues = 1;
  if (::ioctl(socket.get(), SIOCETHTOOL, &request) == 0) {
    out.rx_queues = std::max(1u, channels.rx_count + channels.combined_count);
  }
  return {};
}

const char* xdp_mode_name(XdpMode mode) {
  switch (mode) {
    case XdpMode::kNative:
      return "native";
    case XdpMode::kGeneric:
      return "generic";
    case XdpMode::kOffloaded:
      return "offloaded";
  }
  return "unknown";
}

std::string inspect(const std::string& ifname, AttachedXdp& out) {
  out = {};
  const unsigned ifindex = if_nametoindex(ifname.c_str());
  if (ifindex == 0) return missing(ifname);
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  const int error = bpf_xdp_query(static_cast<int>(ifindex), 0, &query);
  if (error != 0) return failure(ifname, "ask for the attached XDP program", -error);
  // Modes can be occupied at the same time: look at each, not at the summary.
  std::string text = identify(ifname, query.drv_prog_id, XdpMode::kNative, out);
  if (text.empty()) text = identify(ifname, query.skb_prog_id, XdpMode::kGeneric, out);
  if (text.empty()) text = identify(ifname, query.hw_prog_id, XdpMode::kOffloaded, out);
  return text;
}

std::string remove_stale(const std::string& ifname) {
  AttachedXdp attached;
  if (std::string error = inspect(ifname, attached); !error.empty()) return error;
  if (attached.owner == XdpOwner::kNone) return {};
  if (attached.owner == XdpOwner::kForeign) {
    return ifname + ": the " + describe(attached) + " is attached and not ours; gradgate does not remove it. Stop its" +
           " owner, or remove it by " + detach_command(ifname, attached.mode);
  }
  const Fd program(bpf_prog_get_fd_by_id(attached.program_id));
  if (program.get() < 0) return failure(ifname, "open our stale " + describe(attached), errno);

  // With the old program's descriptor the kernel refuses if somebody attached another one since we looked.
  LIBBPF_OPTS(bpf_xdp_attach_opts, options, .old_prog_fd = program.get());
  const uint32_t mode_flag = attached.mode == XdpMode::kNative    ? XDP_FLAGS_DRV_MODE
                             : attached.mode == XdpMode::kGeneric ? XDP_FLAGS_SKB_MODE
                                                                  : XDP_FLAGS_HW_MODE;
  const int error =
      bpf_xdp_detach(static_cast<int>(if_nametoindex(ifname.c_str())), mode_flag | XDP_FLAGS_REPLACE, &options);
  if (error == 0) return {};
  std::string text = failure(ifname, "detach our stale " + describe(attached), -error);
  if (error == -EBUSY) {
    text += "; a bpf_link holds it: end the process that made the link (`bpftool link` names it), or unpin it";
  } else if (error == -EEXIST) {
    text += "; another program was attached at this moment: is a second gateway starting on the same interface?";
  }
  return text;
}

XdpMaps::~XdpMaps() {
  close();
}

XdpMaps::XdpMaps(XdpMaps&& other) noexcept {
  take(other);
}

XdpMaps& XdpMaps::operator=(XdpMaps&& other) noexcept {
  if (this != &other) {
    close();
    take(other);
  }
  return *this;
}

void XdpMaps::take(XdpMaps& other) {
  ifname_ = std::move(other.ifname_);
  config_fd_ = std::exchange(other.config_fd_, -1);
  drops_fd_ = std::exchange(other.drops_fd_, -1);
  verdicts_fd_ = std::exchange(other.verdicts_fd_, -1);
}

void XdpMaps::close() {
  for (int* fd : {&config_fd_, &drops_fd_, &verdicts_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

std::string XdpMaps::open(const std::string& ifname) {
  close();
  ifname_ = ifname;
  AttachedXdp attached;
  if (std::string error = inspect(ifname, attached); !error.empty()) return error;
  if (attached.owner == XdpOwner::kNone) return ifname + ": no XDP program is attached, ours was expected";
  if (attached.owner == XdpOwner::kForeign) return ifname + ": the attached " + describe(attached) + " is not ours";

  const Fd program(bpf_prog_get_fd_by_id(attached.program_id));
  if (program.get() < 0) return failure(ifname, "open the attached " + describe(attached), errno);
  std::array<uint32_t, 64> ids{};  // as many as a program may use (MAX_USED_MAPS)
  bpf_prog_info program_info{};
  program_info.nr_map_ids = ids.size();
  program_info.map_ids = reinterpret_cast<uintptr_t>(ids.data());
  uint32_t length = sizeof program_info;
  if (bpf_obj_get_info_by_fd(program.get(), &program_info, &length) != 0) {
    return failure(ifname, "list the maps of the attached " + describe(attached), errno);
  }

  // Value size and entries are compared too: a program left by another version counts other things.
  struct Wanted {
    const char* name;
    uint32_t value_bytes;
    uint32_t entries;
    int* fd;
  };
  const Wanted wanted[] = {{GG_XDP_CONFIG_MAP, sizeof(gg_xdp_config), 1, &config_fd_},
                           {GG_XDP_DROP_MAP, sizeof(uint64_t), GG_DROP_COUNT, &drops_fd_},
                           {GG_XDP_VERDICT_MAP, sizeof(uint64_t), GG_XDP_VERDICT_COUNT, &verdicts_fd_}};
  const uint32_t maps = std::min<uint32_t>(program_info.nr_map_ids, ids.size());
  for (uint32_t i = 0; i < maps; ++i) {
    Fd map(bpf_map_get_fd_by_id(ids[i]));
    if (map.get() < 0) return failure(ifname, "open a map of the attached " + describe(attached), errno);
    bpf_map_info info{};
    length = sizeof info;
    if (bpf_obj_get_info_by_fd(map.get(), &info, &length) != 0) return failure(ifname, "read a map's name", errno);
    for (const Wanted& want : wanted) {
      if (!name_matches(info.name, want.name) || *want.fd >= 0) continue;
      if (info.value_size != want.value_bytes || info.max_entries != want.entries) break;
      *want.fd = map.release();
      break;
    }
  }
  for (const Wanted& want : wanted) {
    if (*want.fd >= 0) continue;
    close();
    return ifname + ": the attached " + describe(attached) + " has no map " + want.name + " of this version's shape;" +
           " it comes from another version of gradgate: install gradgate.bpf.o and the gateway from the same build";
  }
  return {};
}

std::string XdpMaps::configure(const gg_xdp_config& config) {
  if (std::string error = check_config(ifname_, config); !error.empty()) return error;
  const uint32_t key = 0;
  if (bpf_map_update_elem(config_fd_, &key, &config, BPF_ANY) != 0) {
    return failure(ifname_, std::string("fill the map ") + GG_XDP_CONFIG_MAP, errno);
  }
  return {};
}

std::string XdpMaps::read_drops(Drops& out) const {
  return read_counters(ifname_, drops_fd_, GG_XDP_DROP_MAP, out);
}

std::string XdpMaps::read_verdicts(Verdicts& out) const {
  return read_counters(ifname_, verdicts_fd_, GG_XDP_VERDICT_MAP, out);
}

}  // namespace gradgate::dataplane
