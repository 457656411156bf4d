/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradgate.h: collectives of a training job through a gradient gateway, in the manner of NCCL.
 *
 *   gg_config_t config;
 *   gg_config_init(&config);
 *   config.gateway = "10.1.0.1:9470"; config.tenant = "lab"; config.token = "..."; config.job = "gpt";
 *   config.rank = 0; config.size = 4;
 *   gg_comm_t comm;
 *   if (gg_comm_init(&comm, &config) != GG_SUCCESS) { puts(gg_last_error(NULL)); return 1; }
 *   gg_all_reduce(comm, gradients, gradients, count, GG_DTYPE_FLOAT32, GG_OP_AVERAGE, NULL);
 *   gg_comm_finalize(comm, 10000);
 *   gg_comm_destroy(comm);
 *
 * Rules:
 * - Every rank of a group makes the same calls in the same order. Ranks that do not, all get GG_ERROR_GROUP_FAILED
 *   with a text that names both calls.
 * - Counts are in elements, not bytes. A call of 0 elements is a call. One call has at most 4294967295 elements,
 *   counted over all ranks for gg_reduce_scatter and gg_all_gather. Buffers may have any alignment.
 * - A communicator may be used by several threads; calls take effect in the order in which they were made.
 * - After GG_ERROR_GROUP_FAILED, GG_ERROR_UNREACHABLE or GG_ERROR_ABORTED a communicator returns that error for every
 *   call until it is destroyed. No function hangs.
 */
#ifndef GRADGATE_H
#define GRADGATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GG_API __attribute__((visibility("default")))

typedef enum {
  GG_SUCCESS = 0,
  GG_ERROR_ARGUMENT = 1,     /* an argument is wrong; nothing was done */
  GG_ERROR_UNREACHABLE = 2,  /* the gateway does not answer */
  GG_ERROR_REFUSED = 3,      /* the gateway refused the join: token, rank, size, memory */
  GG_ERROR_TIMEOUT = 4,      /* the time given is over; the operation goes on */
  GG_ERROR_GROUP_FAILED = 5, /* the group has failed on all ranks: mismatch, lost member, timeout of a call */
  GG_ERROR_ABORTED = 6,      /* gg_comm_abort or gg_comm_destroy */
  GG_ERROR_SYSTEM = 7        /* a system call failed */
} gg_result_t;

typedef enum {
  GG_DTYPE_BYTES = 0, /* gg_broadcast and gg_all_gather only */
  GG_DTYPE_FLOAT32 = 1,
  GG_DTYPE_FLOAT16 = 2,
  GG_DTYPE_BFLOAT16 = 3,
  GG_DTYPE_INT32 = 4
} gg_dtype_t;

/* Sums are taken in rank order whatever the timing, 16-bit types in float32: the same input gives the same bits. */
typedef enum { GG_OP_SUM = 1, GG_OP_AVERAGE = 2 } gg_op_t;

typedef struct gg_comm* gg_comm_t;
typedef struct gg_request* gg_request_t;

typedef struct {
  size_t struct_bytes; /* set by gg_config_init: lets the library grow the struct */
  const char* gateway; /* "host:port" of the gateway's control address */
  const char* tenant;
  const char* token;
  const char* job;
  const char* group;        /* NULL: "default" */
  int32_t rank;             /* 0 <= rank < size */
  int32_t size;             /* ranks of the group */
  uint32_t join_timeout_ms; /* how long to wait for the other ranks; 0: 330000 */
  const char* address;      /* own IPv4 address or interface name for gradients; NULL: the one that reaches `gateway` */
} gg_config_t;

typedef struct {
  uint64_t calls;            /* collectives completed */
  uint64_t chunks;           /* their chunks */
  uint64_t bytes_sent;       /* UDP payload bytes */
  uint64_t bytes_received;   /* UDP payload bytes */
  uint64_t packets_sent;     /* packets, acknowledgements included */
  uint64_t packets_received; /* packets */
  uint64_t packets_lost;     /* sent, and declared lost */
  uint64_t frames_resent;    /* chunks and control frames sent again after a loss */
  uint64_t packets_dropped;  /* received and not accepted: duplicates, strangers, malformed */
  uint64_t gateway_restarts; /* times that the communicator joined again */
} gg_stats_t;

static inline void gg_config_init(gg_config_t* config) {
  memset(config, 0, sizeof *config);
  config->struct_bytes = sizeof *config;
  config->rank = -1;
}

/* "0.1.0" */
GG_API const char* gg_version(void);

/* What a code means, in a few words. Static storage. */
GG_API const char* gg_error_string(gg_result_t result);

/*
 * Text of the last error of `comm`; with NULL, of the calling thread's last failed call on any communicator (a failed
 * gg_comm_init leaves no communicator). "" if there was none. The text belongs to the calling thread and is valid
 * until it calls gg_last_error again.
 */
GG_API const char* gg_last_error(gg_comm_t comm);

/* Joins the group and waits until all `size` ranks have joined. On an error *comm is NULL. */
GG_API gg_result_t gg_comm_init(gg_comm_t* comm, const gg_config_t* config);

/*
 * Waits until everything that was submitted is complete on all ranks, then leaves the group. The communicator takes
 * no more calls. GG_ERROR_TIMEOUT: not complete after timeout_ms; may be called again, or destroyed.
 */
GG_API gg_result_t gg_comm_finalize(gg_comm_t comm, uint32_t timeout_ms);

/* Makes every outstanding and later call on `comm` return GG_ERROR_ABORTED, in all threads. Destroy it afterwards. */
GG_API gg_result_t gg_comm_abort(gg_comm_t comm);

/*
 * Frees the communicator, aborting what is outstanding; when it returns, no buffer is touched any more. No other
 * thread may be inside a call on it. Requests stay valid until they are freed. NULL is allowed.
 */
GG_API gg_result_t gg_comm_destroy(gg_comm_t comm);

GG_API gg_result_t gg_comm_stats(gg_comm_t comm, gg_stats_t* stats);

/*
 * Collectives. With request == NULL they return when the result is there. Otherwise *request is set (to NULL on an
 * error) and they return at once: buffers must stay valid, `send` unchanged and `recv` untouched, until the request is
 * complete.
 */

/* recv[i] = op over all ranks of send[i]. send == recv is allowed. */
GG_API gg_result_t gg_all_reduce(gg_comm_t comm, const void* send, void* recv, size_t count, gg_dtype_t dtype,
                                 gg_op_t op, gg_request_t* request);

/* recv[i] = op over all ranks of send[rank * recv_count + i]. `send` has recv_count * size elements.
 * recv == send + rank * recv_count is allowed. */
GG_API gg_result_t gg_reduce_scatter(gg_comm_t comm, const void* send, void* recv, size_t recv_count, gg_dtype_t dtype,
                                     gg_op_t op, gg_request_t* request);

/* recv[r * send_count + i] = send[i] of rank r. `recv` has send_count * size elements.
 * send == recv + rank * send_count is allowed. */
GG_API gg_result_t gg_all_gather(gg_comm_t comm, const void* send, void* recv, size_t send_count, gg_dtype_t dtype,
                                 gg_request_t* request);

/* buffer[i] = buffer[i] of rank root. */
GG_API gg_result_t gg_broadcast(gg_comm_t comm, void* buffer, size_t count, gg_dtype_t dtype, int32_t root,
                                gg_request_t* request);

/* At rank root: recv[i] = op over all ranks of send[i]; recv is not used elsewhere. send == recv is allowed. At other
 * ranks complete when `send` may be written again; whether the group agreed shows at their next call. */
GG_API gg_result_t gg_reduce(gg_comm_t comm, const void* send, void* recv, size_t count, gg_dtype_t dtype, gg_op_t op,
                             int32_t root, gg_request_t* request);

/* Complete when every rank has called it. */
GG_API gg_result_t gg_barrier(gg_comm_t comm, gg_request_t* request);

/*
 * Waits for a request at most timeout_ms (UINT32_MAX: without limit). Returns its result, or GG_ERROR_TIMEOUT: then it
 * goes on, and its buffers are still in use. Waiting again on a completed request returns the same.
 */
GG_API gg_result_t gg_wait(gg_request_t request, uint32_t timeout_ms);

/* Sets *done; returns the request's result if it is done, else GG_SUCCESS. Does not wait. */
GG_API gg_result_t gg_test(gg_request_t request, int* done);

/* Frees the handle, once. An operation that is not complete goes on, and its buffers must stay valid until the
 * communicator is finalized or destroyed. NULL is allowed. */
GG_API void gg_request_free(gg_request_t request);

#ifdef __cplusplus
}
#endif
#endif
