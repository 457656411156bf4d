# SPDX-License-Identifier: Apache-2.0
"""One rank of a group."""

import collections
import operator
import os
import threading

from . import _library
from ._buffers import view
from ._library import byref, c_int, c_void_p, check, library

_OPS = {"sum": _library.SUM, "average": _library.AVERAGE}
# A wait is cut into pieces, so that Ctrl-C gets its turn.
_WAIT_PIECE_MS = 200


def _op(name):
    if name not in _OPS:
        raise ValueError('op is %r: it must be "sum" or "average"' % (name,))
    return _OPS[name]


def _milliseconds(seconds, name):
    if not 0 <= seconds <= 4_000_000:
        raise ValueError("%s is %r: it must be from 0 to 4000000 seconds" % (name, seconds))
    return int(seconds * 1000)


def _int32(number, name):
    """`number`, which ctypes would otherwise cut to 32 bits without a word."""
    number = operator.index(number)
    if not -(2**31) <= number < 2**31:
        raise ValueError("%s is %d: it must fit 32 bits" % (name, number))
    return number


class Work:
    """An operation that goes on in the background. Its buffers must not be touched until it is complete."""

    def __init__(self, request, buffers):
        self._request = request
        self._process = os.getpid()
        self._buffers = buffers  # memory that the library still uses

    def wait(self, timeout=None):
        """Waits until the operation is complete.

        Args:
            timeout: seconds; None: without limit (the gateway's call timeout still ends it).

        Raises:
            gradgate.Error: code "timeout": the operation goes on, its buffers are still in use. Other codes: it
                failed, on all ranks.
        """
        left = None if timeout is None else _milliseconds(timeout, "timeout")
        while True:
            piece = _WAIT_PIECE_MS if left is None else min(left, _WAIT_PIECE_MS)
            result = library.gg_wait(self._request, piece)
            if result != _library.TIMEOUT:
                self._buffers = None
                return check(result)
            if left is not None:
                left -= piece
                if left <= 0:
                    raise _library.Error("the operation is not complete after %g s; it goes on" % timeout, "timeout")

    def is_completed(self):
        """Whether the operation is over, well or not; wait() then returns or raises at once."""
        done = c_int()
        library.gg_test(self._request, byref(done))
        if done.value:
            self._buffers = None
        return bool(done.value)

    def __del__(self):
        if os.getpid() == self._process:  # a lock of the library may be held for ever in a fork
            library.gg_request_free(self._request)


class Communicator:
    """One rank of a group of training processes behind one or more gradient gateways.

    Creating it joins the group and waits until all ranks have joined. Every rank makes the same calls in the same
    order; where ranks differ, every rank gets an Error that names both calls. Calls may come from several threads.

    Args:
        gateway: "host:port", the control address of the data centre's own gateway.
        tenant: name of the tenant at the gateway.
        token: the tenant's secret.
        job: name of the training job.
        group: name of the group inside the job.
        rank: 0 <= rank < size.
        size: ranks of the group, in all data centres together.
        join_timeout: seconds to wait for the other ranks.
        address: own IPv4 address or interface name for gradients; None: the one that reaches `gateway`.

    Raises:
        gradgate.Error: the gateway is unreachable or refuses the rank, or ranks did not come in time.
    """

    def __init__(
        self, gateway, tenant, token, job, group="default", *, rank, size, join_timeout=330.0, address=None
    ):
        self._handle = None
        self._pending = collections.deque()  # Work that may still use memory, oldest first
        self._lock = threading.Lock()
        self._before_close = []
        config = _library.Config()
        config.struct_bytes = _library.ctypes.sizeof(config)
        texts = {"gateway": gateway, "tenant": tenant, "token": token, "job": job, "group": group, "address": address}
        for name, text in texts.items():
            if not isinstance(text, str) and not (text is None and name == "address"):
                raise TypeError("%s is a %s: it must be a str" % (name, type(text).__name__))
            if text is not None and "\0" in text:
                raise ValueError("%s contains a NUL character" % name)
            setattr(config, name, None if text is None else text.encode())
        config.rank = _int32(rank, "rank")
        config.size = _int32(size, "size")
        config.join_timeout_ms = max(1, _milliseconds(join_timeout, "join_timeout"))
        handle = c_void_p()
        check(library.gg_comm_init(byref(handle), byref(config)))
        self._handle = handle
        self._process = os.getpid()
        self._rank, self._size = rank, size

    @property
    def rank(self):
        """Own rank."""
        return self._rank

    @property
    def size(self):
        """Ranks of the group."""
        return self._size

    def _submit(self, function, arguments, buffers):
        request = c_void_p()
        with self._lock:
            if self._handle is None:
                raise _library.Error("the communicator is closed", "argument")
            if os.getpid() != self._process:  # the thread that would do the work is not here: it would never end
                raise _library.Error("the communicator was made before a fork(): make one in each process", "argument")
            check(function(self._handle, *arguments, byref(request)))
            work = Work(request, buffers)
            while self._pending and self._pending[0].is_completed():
                self._pending.popleft()
            self._pending.append(work)
        return work

    def _check_parts(self, whole, part, whole_name, part_name):
        if whole.dtype != part.dtype:
            raise TypeError("%s and %s have different dtypes" % (whole_name, part_name))
        if whole.count != part.count * self._size:
            raise ValueError(
                "%s has %d elements and %s %d: it must have %d times as many, one part for each rank"
                % (whole_name, whole.count, part_name, part.count, self._size)
            )

    def all_reduce(self, x, op="sum", async_op=False):
        """Replaces x[i] by the sum or average over all ranks of x[i], in place.

        Sums are taken in rank order, 16-bit types in float32: all ranks and all runs get the same bits.

        Args:
            x: numpy array or CPU tensor of any shape, the same number of elements on every rank; float32, float16,
                bfloat16 (PyTorch only) or int32; C-contiguous and writable.
            op: "sum" or "average".
            async_op: return at once, with a Work to wait for.

        Returns:
            x, or a Work.

        Raises:
            ValueError, TypeError: x is not as above; the text says what would be right.
            gradgate.Error: the group has failed.
        """
        v = view(x)
        arguments = (v.pointer, v.pointer, v.count, v.dtype, _op(op))
        work = self._submit(library.gg_all_reduce, arguments, v)
        if async_op:
            return work
        work.wait()
        return x

    def reduce_scatter(self, output, input, op="sum"):
        """output[i] = sum or average over all ranks of input[rank * n + i], n being the elements of `output`.

        Args:
            output: array or tensor of n elements; dtype and layout as in all_reduce.
            input: array or tensor of n * size elements of the same dtype. `output` may be a view of its own part.
            op: "sum" or "average".

        Returns: output. Raises: as all_reduce.
        """
        out, source = view(output, "output"), view(input, "input", writable=False)
        self._check_parts(source, out, "input", "output")
        arguments = (source.pointer, out.pointer, out.count, out.dtype, _op(op))
        self._submit(library.gg_reduce_scatter, arguments, (out, source)).wait()
        return output

    def all_gather(self, output, input):
        """output[r * n + i] = input[i] of rank r, n being the elements of `input`.

        Args:
            output: array or tensor of n * size elements, of any dtype of fixed size; layout as in all_reduce.
            input: array or tensor of n elements of the same dtype. It may be a view of its own part of `output`.

        Returns: output. Raises: as all_reduce.
        """
        out, source = view(output, "output", summed=False), view(input, "input", writable=False, summed=False)
        self._check_parts(out, source, "output", "input")
        arguments = (source.pointer, out.pointer, source.count, out.dtype)
        self._submit(library.gg_all_gather, arguments, (out, source)).wait()
        return output

    def broadcast(self, x, root=0):
        """Replaces x by that of rank `root`, in place.

        Args:
            x: array or tensor of the same number of elements on every rank, of any dtype of fixed size; layout as in
                all_reduce.
            root: 0 <= root < size.

        Returns: x. Raises: as all_reduce.
        """
        v = view(x, summed=False)
        self._submit(library.gg_broadcast, (v.pointer, v.count, v.dtype, _int32(root, "root")), v).wait()
        return x

    def reduce(self, x, root=0, op="sum"):
        """As all_reduce, but only rank `root` gets the result; x of the others stays as it is. Returns: x."""
        v = view(x)
        arguments = (v.pointer, v.pointer, v.count, v.dtype, _op(op), _int32(root, "root"))
        self._submit(library.gg_reduce, arguments, v).wait()
        return x

    def barrier(self):
        """Waits until every rank has called it."""
        self._submit(library.gg_barrier, (), None).wait()

    def stats(self):
        """What the communicator did so far.

        Returns:
            dict of int: calls, chunks, bytes_sent, bytes_received (of UDP payload), packets_sent, packets_received,
            packets_lost, frames_resent, packets_dropped, gateway_restarts.
        """
        if self._handle is None:
            raise _library.Error("the communicator is closed", "argument")
        stats = _library.Stats()
        check(library.gg_comm_stats(self._handle, byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_}

    def close(self, timeout=30.0):
        """Waits until all calls are complete on all ranks, leaves the group and frees everything.

        Args:
            timeout: seconds; afterwards what is outstanding is aborted, and Error with code "timeout" raised.
        """
        if self._handle is None:
            return
        try:
            check(library.gg_comm_finalize(self._handle, _milliseconds(timeout, "timeout")))
        finally:
            self._destroy()

    def abort(self):
        """Ends all calls, outstanding and later ones, with an Error of code "aborted", in all threads."""
        if self._handle is not None:
            check(library.gg_comm_abort(self._handle))

    def _destroy(self):
        if os.getpid() != self._process:  # a fork has the memory, but not the thread that could be stopped
            self._handle = None
            return
        # Threads that wait for requests are told first, and end.
        library.gg_comm_abort(self._handle)
        for callback in self._before_close:
            callback()
        with self._lock:
            handle, self._handle = self._handle, None
            library.gg_comm_destroy(handle)
            self._pending.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.close()
        elif self._handle is not None:
            self._destroy()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self._destroy()
