// SPDX-License-Identifier: Apache-2.0
// The thread behind a communicator: takes operations from application threads, serves the worker's sockets.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/worker.h"

namespace gradgate::client {

/// What a communicator, its thread and its requests share; requests may outlive the communicator.
struct CommState {
  std::mutex mutex;
  std::condition_variable changed;
  // Under the mutex:
  gg_result_t failure = GG_SUCCESS;  ///< final
  std::string failure_text;
  std::string last_error;
  bool finalizing = false;
  bool drained = false;
  bool answered = false;  ///< Worker::answered()
  uint64_t calls = 0, chunks = 0;
};

struct Request {
  explicit Request(std::shared_ptr<CommState> comm_state) : state(std::move(comm_state)) {}
  const std::shared_ptr<CommState> state;
  core::Operation operation;  ///< the thread's once submitted
  // Under the mutex:
  bool done = false;
  gg_result_t result = GG_SUCCESS;
};

class IoThread final : private Worker::Owner {
 public:
  IoThread(JoinRequest request, UdpSocket socket, Joined joined, std::shared_ptr<CommState> state);
  ~IoThread() override;  ///< stops; what is outstanding is aborted

  /// Returns the communicator's failure if it has one, and then does not take the request.
  gg_result_t submit(std::shared_ptr<Request> request);
  /// Fails the communicator with GG_ERROR_ABORTED.
  void abort();
  /// Waits until everything is complete on all ranks, then stops and leaves. False: not within the time.
  bool drain_and_leave(core::Nanoseconds timeout_ns);

  const Worker& worker() const { return worker_; }

 private:
  void run();
  void take_submissions(core::Nanoseconds now);
  void wait_for_work();
  void stop();
  void operation_done(core::Operation& operation) override;
  void worker_failed(gg_result_t code, const std::string& text) override;

  const std::shared_ptr<CommState> state_;
  std::unordered_map<core::Operation*, std::shared_ptr<Request>>
      outstanding_;  ///< outlives the core that points to them
  Worker worker_;
  ReceiveBuffers buffers_;
  WakeFd wake_;
  std::vector<pollfd> fds_;
  std::vector<std::shared_ptr<Request>> taken_;
  // Under state_->mutex:
  std::vector<std::shared_ptr<Request>> submitted_;
  bool stopping_ = false;
  bool abort_ = false;
  std::thread thread_;
};

}  // namespace gradgate::client
