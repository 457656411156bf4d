// SPDX-License-Identifier: Apache-2.0
#include "client/io_thread.h"

#include <errno.h>

namespace gradgate::client {
namespace {

constexpr core::Nanoseconds kLeaveTimeout = 5 * core::kSecond;

}  // namespace

IoThread::IoThread(JoinRequest request, UdpSocket socket, Joined joined, std::shared_ptr<CommState> state)
    : state_(std::move(state)),
      worker_(std::move(request), std::move(socket), std::move(joined), *this, monotonic_ns()),
      thread_([this] { run(); }) {}

IoThread::~IoThread() {
  abort();
  stop();
}

gg_result_t IoThread::submit(std::shared_ptr<Request> request) {
  std::lock_guard lock(state_->mutex);
  if (state_->failure != GG_SUCCESS) return state_->failure;
  // A full list was signalled when it became non-empty.
  if (submitted_.empty()) wake_.signal();
  submitted_.push_back(std::move(request));
  return GG_SUCCESS;
}

void IoThread::abort() {
  std::lock_guard lock(state_->mutex);
  abort_ = true;
  wake_.signal();
}

void IoThread::stop() {
  {
    std::lock_guard lock(state_->mutex);
    stopping_ = true;
    wake_.signal();
  }
  if (thread_.joinable()) thread_.join();
}

bool IoThread::drain_and_leave(core::Nanoseconds timeout_ns) {
  {
    std::unique_lock lock(state_->mutex);
    state_->finalizing = true;
    wake_.signal();
    const auto over = [this] { return state_->drained || state_->failure != GG_SUCCESS; };
    if (!state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns), over)) return false;
    if (state_->failure != GG_SUCCESS) return true;
  }
  stop();
  worker_.leave(monotonic_ns() + kLeaveTimeout);
  return true;
}

void IoThread::run() {
  bool answered = false;
  for (;;) {
    wait_for_work();
    const core::Nanoseconds now = monotonic_ns();
    if (fds_[0].revents != 0) wake_.clear();
    take_submissions(now);
    worker_.run(&fds_[1], buffers_, now);

    std::unique_lock lock(state_->mutex);
    if (worker_.answered() && !answered) {
      answered = state_->answered = true;
      state_->changed.notify_all();
    }
    if (state_->finalizing && submitted_.empty() && outstanding_.empty() && worker_.drained() && !state_->drained) {
      state_->drained = true;
      state_->changed.notify_all();
    }
    const bool aborted = abort_ && state_->failure == GG_SUCCESS && !(state_->drained && stopping_);
    const bool leave = worker_.failed() || stopping_ || aborted;
    lock.unlock();
    if (aborted) worker_failed(GG_ERROR_ABORTED, "the communicator was aborted");
    if (leave) return;
  }
}

void IoThread::wait_for_work() {
  fds_.clear();
  fds_.push_back({wake_.get(), POLLIN, 0});
  worker_.add_poll_fds(fds_);
  const core::Nanoseconds deadline = worker_.next_deadline();
  const core::Nanoseconds now = monotonic_ns();
  const core::Nanoseconds wait = deadline <= now ? 0 : deadline - now;
  const timespec timeout{static_cast<time_t>(wait / core::kSecond), static_cast<long>(wait % core::kSecond)};
  if (ppoll(fds_.data(), fds_.size(), deadline == core::kNever ? nullptr : &timeout, nullptr) <= 0) {
    for (pollfd& fd : fds_) fd.revents = 0;
  }
}

void IoThread::take_submissions(core::Nanoseconds now) {
  {
    std::lock_guard lock(state_->mutex);
    taken_.swap(submitted_);
  }
  for (std::shared_ptr<Request>& request : taken_) {
    core::Operation* operation = &request->operation;
    outstanding_.emplace(operation, std::move(request));
    worker_.submit(*operation, now);
  }
  taken_.clear();
}

void IoThread::operation_done(core::Operation& operation) {
  const auto found = outstanding_.find(&operation);
  if (found == outstanding_.end()) return;
  std::lock_guard lock(state_->mutex);
  ++state_->calls;
  state_->chunks += worker_.chunks(operation);
  found->second->done = true;
  outstanding_.erase(found);
  state_->changed.notify_all();
}

void IoThread::worker_failed(gg_result_t code, const std::string& text) {
  std::lock_guard lock(state_->mutex);
  state_->failure = code;
  state_->failure_text = state_->last_error = text;
  for (const auto& [operation, request] : outstanding_) {
    request->done = true;
    request->result = code;
  }
  for (const auto& request : submitted_) {
    request->done = true;
    request->result = code;
  }
  // The worker's core still points to outstanding operations, but it is not called any more.
  submitted_.clear();
  state_->changed.notify_all();
}

}  // namespace gradgate::client
