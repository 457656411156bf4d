// SPDX-License-Identifier: Apache-2.0
// What the BPF tests share: a loaded object, and a network namespace with a veth pair in which this process lives.
#pragma once

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace gradgate::test {

/// Why BPF tests cannot run here; empty if they can.
inline std::string bpf_unavailable() {
  const bpf_insn program[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
  const int fd = bpf_prog_load(BPF_PROG_TYPE_XDP, "probe", "Apache-2.0", program, 2, nullptr);
  if (fd < 0) return std::string("cannot load an XDP program (needs root or CAP_BPF): ") + std::strerror(errno);
  close(fd);
  return {};
}

class BpfObject {
 public:
  explicit BpfObject(const char* path) : object_(bpf_object__open_file(path, nullptr)) {
    if (object_ != nullptr && bpf_object__load(object_) != 0) {
      bpf_object__close(object_);
      object_ = nullptr;
    }
  }
  ~BpfObject() { bpf_object__close(object_); }
  BpfObject(const BpfObject&) = delete;
  BpfObject& operator=(const BpfObject&) = delete;

  bool loaded() const { return object_ != nullptr; }
  int program() const { return bpf_program__fd(bpf_object__next_program(object_, nullptr)); }
  int map(const char* name) const { return bpf_object__find_map_fd_by_name(object_, name); }

  /// The program's verdict on `packet`, -1 when the kernel refuses to run it.
  int run(const std::vector<uint8_t>& packet) const {
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = packet.data(),
                .data_size_in = static_cast<uint32_t>(packet.size()), .repeat = 1);
    return bpf_prog_test_run_opts(program(), &options) == 0 ? static_cast<int>(options.retval) : -1;
  }

 private:
  bpf_object* object_;
};

/// Moves the process into a fresh network namespace with the veth pair va - vb, both up; back and gone at the end.
class VethNamespace {
 public:
  VethNamespace() : home_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    if (unshare(CLONE_NEWNET) != 0) {
      error_ = std::string("cannot make a network namespace: ") + std::strerror(errno);
    } else if (std::system("ip link add va mtu 3498 type veth peer name vb mtu 3498 && ip link set va up &&"
                           " ip link set vb up") != 0) {
      error_ = "cannot make a veth pair";
    }
  }
  ~VethNamespace() {
    if (setns(home_, CLONE_NEWNET) != 0) std::abort();
    close(home_);
  }
  VethNamespace(const VethNamespace&) = delete;
  VethNamespace& operator=(const VethNamespace&) = delete;

  /// Why there is none; empty if all is well.
  const std::string& error() const { return error_; }

 private:
  int home_;
  std::string error_;
};

/// Attaches `program` natively to `ifname`; false with errno set otherwise. It goes with the namespace.
inline bool attach(const char* ifname, int program, uint32_t mode = XDP_FLAGS_DRV_MODE) {
  return bpf_xdp_attach(static_cast<int>(if_nametoindex(ifname)), program, mode, nullptr) == 0;
}

}  // namespace gradgate::test
