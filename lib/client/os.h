// SPDX-License-Identifier: Apache-2.0
// Small pieces of the operating system that the client's files share.
#pragma once

#include <time.h>
#include <unistd.h>

#include <utility>

#include "core/types.h"

namespace gradgate::client {

inline core::Nanoseconds monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<core::Nanoseconds>(t.tv_sec) * core::kSecond + static_cast<core::Nanoseconds>(t.tv_nsec);
}

class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

/// An eventfd: one thread signals, others see it readable until it is cleared.
class WakeFd {
 public:
  WakeFd();  ///< throws ClientError
  int get() const { return fd_.get(); }
  void signal();
  void clear();

 private:
  UniqueFd fd_;
};

}  // namespace gradgate::client
