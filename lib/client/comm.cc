// SPDX-License-Identifier: Apache-2.0
// The C API over IoThread.
#include <algorithm>
#include <limits>

#include "client/gradgate.h"
#include "client/io_thread.h"

using gradgate::client::ClientError;
using gradgate::client::CommState;
using gradgate::client::IoThread;
using gradgate::client::Request;
namespace client = gradgate::client;
namespace core = gradgate::core;

static_assert(int{GG_DTYPE_BYTES} == int{GG_BYTES} && int{GG_DTYPE_FLOAT32} == int{GG_FLOAT32} &&
              int{GG_DTYPE_FLOAT16} == int{GG_FLOAT16} && int{GG_DTYPE_BFLOAT16} == int{GG_BFLOAT16} &&
              int{GG_DTYPE_INT32} == int{GG_INT32} && int{GG_OP_SUM} == int{GG_SUM} &&
              int{GG_OP_AVERAGE} == int{GG_AVERAGE});

struct gg_comm {
  std::shared_ptr<CommState> state;
  uint16_t rank = 0;
  uint16_t size = 1;
  std::unique_ptr<IoThread> io;
};

struct gg_request {
  std::shared_ptr<Request> request;
};

namespace {

/// Longer than a gateway's default of 5 min: its answer names the ranks that are missing, and must come first.
constexpr uint32_t kDefaultJoinTimeoutMs = 330'000;
constexpr int32_t kMaxGroupSize = 8192;  ///< what gateways take (lib/control/PROTOCOL.md)
constexpr uint32_t kNoLimit = UINT32_MAX;

thread_local std::string t_last_error;
thread_local std::string t_returned_error;

gg_result_t fail(CommState* state, gg_result_t code, const std::string& text) {
  t_last_error = text;
  if (state != nullptr) {
    std::lock_guard lock(state->mutex);
    state->last_error = text;
  }
  return code;
}

/// Runs `body`; no exception crosses the C boundary.
template <typename Body>
gg_result_t guarded(CommState* state, Body&& body) {
  try {
    return body();
  } catch (const ClientError& e) {
    return fail(state, e.code(), e.what());
  } catch (const std::exception& e) {
    return fail(state, GG_ERROR_SYSTEM, e.what());
  }
}

[[noreturn]] void reject(const std::string& text) {
  throw ClientError(GG_ERROR_ARGUMENT, text);
}

client::JoinRequest read_config(const gg_config_t* given, uint32_t& join_timeout_ms) {
  if (given == nullptr) reject("config is NULL");
  if (given->struct_bytes < sizeof(size_t) || given->struct_bytes > 4096)
    reject("config was not prepared by gg_config_init()");
  gg_config_t config{};  // what an older header did not have yet stays zero
  memcpy(&config, given, std::min(given->struct_bytes, sizeof config));

  const auto text = [](const char* value, const char* name) {
    if (value == nullptr || *value == '\0') reject(std::string("config.") + name + " is not set");
    return std::string(value);
  };
  client::JoinRequest request;
  client::parse_gateway(text(config.gateway, "gateway"), request.gateway_host, request.gateway_port);
  request.tenant = text(config.tenant, "tenant");
  request.token = text(config.token, "token");
  request.job = text(config.job, "job");
  request.group = config.group == nullptr ? "default" : text(config.group, "group");
  if (config.size < 1 || config.size > kMaxGroupSize)
    reject("config.size is " + std::to_string(config.size) + "; it must be from 1 to " + std::to_string(kMaxGroupSize));
  if (config.rank < 0 || config.rank >= config.size)
    reject("config.rank is " + std::to_string(config.rank) +
           "; it must be from 0 to size - 1 = " + std::to_string(config.size - 1));
  request.rank = static_cast<uint16_t>(config.rank);
  request.size = static_cast<uint16_t>(config.size);
  if (config.address != nullptr && *config.address != '\0')
    request.address = client::resolve_own_address(config.address);
  join_timeout_ms = config.join_timeout_ms == 0 ? kDefaultJoinTimeoutMs : config.join_timeout_ms;
  return request;
}

/// A join proves TCP; this proves the way of the gradients, before a training job waits on it.
void wait_until_answered(gg_comm& comm, std::unique_lock<std::mutex>& lock) {
  const client::Membership& membership = comm.io->worker().membership();
  CommState& state = *comm.state;
  const auto over = [&] { return state.answered || state.failure != GG_SUCCESS; };
  if (!state.changed.wait_for(lock, std::chrono::nanoseconds(membership.worker_timeout_ns), over)) {
    throw ClientError(GG_ERROR_UNREACHABLE,
                      "joined, but no answer to a UDP packet came from the gateway's " + membership.gateway_address +
                          " port " + std::to_string(membership.gateway_udp_port) + " to " +
                          comm.io->worker().request().address + " within " +
                          std::to_string(membership.worker_timeout_ns / core::kSecond) +
                          " s: is there a firewall, and is config.address on the network of the gateway's port?");
  }
  if (state.failure != GG_SUCCESS) throw ClientError(state.failure, state.failure_text);
}

std::unique_ptr<gg_comm> create(const gg_config_t* config) {
  uint32_t join_timeout_ms = 0;
  client::JoinRequest request = read_config(config, join_timeout_ms);
  const core::Nanoseconds deadline = client::monotonic_ns() + join_timeout_ms * core::kMillisecond;
  const core::Nanoseconds connect_deadline = std::min(deadline, client::monotonic_ns() + 10 * core::kSecond);
  client::HttpConnection connection =
      client::HttpConnection::connect(request.gateway_host, request.gateway_port, connect_deadline, -1);
  if (request.address.empty()) request.address = connection.local_address();
  client::UdpSocket socket(request.address);
  request.udp_port = socket.port();
  client::Joined joined = client::join(std::move(connection), request, deadline, -1);

  auto comm = std::make_unique<gg_comm>();
  comm->state = std::make_shared<CommState>();
  comm->rank = request.rank;
  comm->size = request.size;
  comm->io = std::make_unique<IoThread>(std::move(request), std::move(socket), std::move(joined), comm->state);
  std::unique_lock lock(comm->state->mutex);
  try {
    wait_until_answered(*comm, lock);
  } catch (...) {
    lock.unlock();  // the thread that is stopped now needs it
    throw;
  }
  return comm;
}

gg_result_t wait(Request& request, uint32_t timeout_ms) {
  CommState& state = *request.state;
  std::unique_lock lock(state.mutex);
  const auto done = [&] { return request.done; };
  if (timeout_ms == kNoLimit) {
    state.changed.wait(lock, done);
  } else if (!state.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), done)) {
    lock.unlock();
    return fail(&state, GG_ERROR_TIMEOUT,
                "the operation is not complete after " + std::to_string(timeout_ms) + " ms; it goes on");
  }
  if (request.result != GG_SUCCESS) t_last_error = state.failure_text;
  return request.result;
}

struct Arguments {
  uint8_t kind;
  int dtype;
  int op;
  int64_t root = 0;
  uint64_t elements;  ///< of the whole call
  const void* input;
  void* output;
  bool input_used = true;
  bool output_used = true;
};

void check(const gg_comm& comm, const Arguments& a) {
  if (a.kind != GG_BARRIER) {
    if (a.dtype < GG_BYTES || a.dtype >= GG_DTYPE_COUNT) reject("dtype " + std::to_string(a.dtype) + " is unknown");
    if (a.op != GG_OP_NONE && a.op != GG_OP_SUM && a.op != GG_OP_AVERAGE)
      reject("op " + std::to_string(a.op) + " is unknown: GG_OP_SUM and GG_OP_AVERAGE are known");
    if (a.op != GG_OP_NONE && a.dtype == GG_DTYPE_BYTES)
      reject("bytes cannot be summed: GG_DTYPE_BYTES is for gg_broadcast and gg_all_gather");
  }
  if (a.root < 0 || a.root >= comm.size)
    reject("root is " + std::to_string(a.root) + "; it must be from 0 to size - 1 = " + std::to_string(comm.size - 1));
  if (a.elements > std::numeric_limits<uint32_t>::max())
    reject("a call of " + std::to_string(a.elements) +
           " elements (counted over all ranks) is too large; the limit is 4294967295: make several calls");
  if (a.elements > 0 && a.input_used && a.input == nullptr) reject("the send buffer is NULL");
  if (a.elements > 0 && a.output_used && a.output == nullptr) reject("the recv buffer is NULL");
}

gg_result_t collective(gg_comm_t comm, const Arguments& a, gg_request_t* handle) {
  if (handle != nullptr) *handle = nullptr;
  if (comm == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "comm is NULL");
  CommState* state = comm->state.get();
  return guarded(state, [&]() -> gg_result_t {
    check(*comm, a);
    {
      std::lock_guard lock(state->mutex);
      if (state->finalizing) reject("the communicator is finalized and takes no more calls");
    }
    auto request = std::make_shared<Request>(comm->state);
    core::Operation& operation = request->operation;
    operation.kind = a.kind;
    operation.dtype = static_cast<uint8_t>(a.dtype);
    operation.op = static_cast<uint16_t>(a.op);
    operation.root = static_cast<uint16_t>(a.root);
    operation.elements = static_cast<uint32_t>(a.elements);
    operation.input = static_cast<const uint8_t*>(a.input);
    operation.output = static_cast<uint8_t*>(a.output);
    auto owned = handle != nullptr ? std::make_unique<gg_request>(gg_request{request}) : nullptr;
    if (const gg_result_t failure = comm->io->submit(request); failure != GG_SUCCESS) {
      std::lock_guard lock(state->mutex);
      t_last_error = state->failure_text;
      return failure;
    }
    if (handle == nullptr) return wait(*request, kNoLimit);
    *handle = owned.release();
    return GG_SUCCESS;
  });
}

}  // namespace

extern "C" {

const char* gg_version(void) {
  return GRADGATE_VERSION;
}

const char* gg_error_string(gg_result_t result) {
  switch (result) {
    case GG_SUCCESS:
      return "success";
    case GG_ERROR_ARGUMENT:
      return "wrong argument";
    case GG_ERROR_UNREACHABLE:
      return "gateway unreachable";
    case GG_ERROR_REFUSED:
      return "refused by the gateway";
    case GG_ERROR_TIMEOUT:
      return "timeout";
    case GG_ERROR_GROUP_FAILED:
      return "the group has failed";
    case GG_ERROR_ABORTED:
      return "aborted";
    case GG_ERROR_SYSTEM:
      return "system error";
  }
  return "unknown result code";
}

const char* gg_last_error(gg_comm_t comm) {
  if (comm == nullptr) {
    t_returned_error = t_last_error;
  } else {
    std::lock_guard lock(comm->state->mutex);
    t_returned_error = comm->state->last_error;
  }
  return t_returned_error.c_str();
}

gg_result_t gg_comm_init(gg_comm_t* comm, const gg_config_t* config) {
  if (comm == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "comm is NULL");
  *comm = nullptr;
  return guarded(nullptr, [&] {
    *comm = create(config).release();
    return GG_SUCCESS;
  });
}

gg_result_t gg_comm_finalize(gg_comm_t comm, uint32_t timeout_ms) {
  if (comm == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "comm is NULL");
  CommState* state = comm->state.get();
  return guarded(state, [&]() -> gg_result_t {
    if (!comm->io->drain_and_leave(timeout_ms * core::kMillisecond)) {
      return fail(state, GG_ERROR_TIMEOUT,
                  "not everything was complete on all ranks after " + std::to_string(timeout_ms) + " ms");
    }
    std::lock_guard lock(state->mutex);
    if (state->failure != GG_SUCCESS) t_last_error = state->failure_text;
    return state->failure;
  });
}

gg_result_t gg_comm_abort(gg_comm_t comm) {
  if (comm == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "comm is NULL");
  comm->io->abort();
  return GG_SUCCESS;
}

gg_result_t gg_comm_destroy(gg_comm_t comm) {
  delete comm;
  return GG_SUCCESS;
}

gg_result_t gg_comm_stats(gg_comm_t comm, gg_stats_t* stats) {
  if (comm == nullptr || stats == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "comm or stats is NULL");
  const client::Worker& worker = comm->io->worker();
  const core::LaneCounters& counters = worker.counters();
  *stats = {};
  stats->bytes_sent = worker.bytes_sent();
  stats->bytes_received = worker.bytes_received();
  stats->packets_sent = counters.packets_sent.get();
  stats->packets_received = counters.packets_received.get();
  stats->packets_lost = counters.packets_lost.get();
  stats->frames_resent = counters.frames_resent.get();
  stats->packets_dropped = worker.packets_dropped();
  stats->gateway_restarts = worker.restarts();
  std::lock_guard lock(comm->state->mutex);
  stats->calls = comm->state->calls;
  stats->chunks = comm->state->chunks;
  return GG_SUCCESS;
}

gg_result_t gg_all_reduce(gg_comm_t comm, const void* send, void* recv, size_t count, gg_dtype_t dtype, gg_op_t op,
                          gg_request_t* request) {
  return collective(comm,
                    {.kind = GG_ALL_REDUCE, .dtype = dtype, .op = op, .elements = count, .input = send, .output = recv},
                    request);
}

gg_result_t gg_reduce_scatter(gg_comm_t comm, const void* send, void* recv, size_t recv_count, gg_dtype_t dtype,
                              gg_op_t op, gg_request_t* request) {
  const uint64_t elements = comm != nullptr && recv_count <= UINT32_MAX ? recv_count * comm->size : recv_count;
  return collective(
      comm, {.kind = GG_REDUCE_SCATTER, .dtype = dtype, .op = op, .elements = elements, .input = send, .output = recv},
      request);
}

gg_result_t gg_all_gather(gg_comm_t comm, const void* send, void* recv, size_t send_count, gg_dtype_t dtype,
                          gg_request_t* request) {
  const uint64_t elements = comm != nullptr && send_count <= UINT32_MAX ? send_count * comm->size : send_count;
  return collective(
      comm,
      {.kind = GG_ALL_GATHER, .dtype = dtype, .op = GG_OP_NONE, .elements = elements, .input = send, .output = recv},
      request);
}

gg_result_t gg_broadcast(gg_comm_t comm, void* buffer, size_t count, gg_dtype_t dtype, int32_t root,
                         gg_request_t* request) {
  return collective(comm,
                    {.kind = GG_BROADCAST,
                     .dtype = dtype,
                     .op = GG_OP_NONE,
                     .root = root,
                     .elements = count,
                     .input = buffer,
                     .output = buffer},
                    request);
}

gg_result_t gg_reduce(gg_comm_t comm, const void* send, void* recv, size_t count, gg_dtype_t dtype, gg_op_t op,
                      int32_t root, gg_request_t* request) {
  return collective(comm,
                    {.kind = GG_REDUCE,
                     .dtype = dtype,
                     .op = op,
                     .root = root,
                     .elements = count,
                     .input = send,
                     .output = recv,
                     .output_used = comm != nullptr && root == comm->rank},
                    request);
}

gg_result_t gg_barrier(gg_comm_t comm, gg_request_t* request) {
  return collective(
      comm,
      {.kind = GG_BARRIER, .dtype = GG_BYTES, .op = GG_OP_NONE, .elements = 0, .input = nullptr, .output = nullptr},
      request);
}

gg_result_t gg_wait(gg_request_t request, uint32_t timeout_ms) {
  if (request == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "request is NULL");
  return wait(*request->request, timeout_ms);
}

gg_result_t gg_test(gg_request_t request, int* done) {
  if (request == nullptr || done == nullptr) return fail(nullptr, GG_ERROR_ARGUMENT, "request or done is NULL");
  Request& r = *request->request;
  std::lock_guard lock(r.state->mutex);
  *done = r.done ? 1 : 0;
  if (r.result != GG_SUCCESS) t_last_error = r.state->failure_text;
  return r.done ? r.result : GG_SUCCESS;
}

void gg_request_free(gg_request_t request) {
  delete request;
}

}  // extern "C"
