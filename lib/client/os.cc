// SPDX-License-Identifier: Apache-2.0
#include "client/os.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "client/error.h"

namespace gradgate::client {

ClientError system_error(const std::string& text, int error) {
  return {GG_ERROR_SYSTEM, text + ": " + strerror(error)};
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_.get() < 0) throw system_error("cannot create an eventfd", errno);
}

void WakeFd::signal() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof one);
}

void WakeFd::clear() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(fd_.get(), &count, sizeof count);
}

}  // namespace gradgate::client
