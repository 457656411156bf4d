# SPDX-License-Identifier: Apache-2.0
"""PyTorch in place: a communication hook for DistributedDataParallel.

    comm = gradgate.Communicator("10.1.0.1:9470", "lab", token, "gpt", rank=rank, size=size)
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(comm, gradgate.torch.ddp_comm_hook)

DistributedDataParallel needs a process group for its own bookkeeping. If the ranks are in one (gloo), nothing else is
needed. If they cannot reach each other, give each process a group of its own (`init_process_group("gloo",
store=torch.distributed.HashStore(), rank=0, world_size=1)`), and call `broadcast_parameters` first.
"""

import queue
import threading
import weakref

import torch
import torch.distributed as dist

from ._library import Error
from .communicator import Communicator


class _Waiter:
    """A thread that completes a communicator's futures in the order of its calls."""

    def __init__(self):
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gradgate-waiter", daemon=True)
        self._thread.start()

    def add(self, work, tensor):
        done = torch.futures.Future()

        def outcome(future):
            # An exception raised here, unlike one given to set_exception(), reaches DDP's C++ side with its text.
            value = future.value()
            if isinstance(value, Exception):
                raise value
            return value

        result = done.then(outcome)
        self._queue.put((work, tensor, done))
        return result

    def stop(self):
        self._queue.put(None)
        if threading.current_thread() is not self._thread:  # the garbage collector runs in any thread
            self._thread.join()

    def _run(self):
        for work, tensor, done in iter(self._queue.get, None):
            try:
                work.wait()
                done.set_result(tensor)
            except Error as error:
                done.set_result(error)


_waiters = weakref.WeakKeyDictionary()
_waiters_lock = threading.Lock()


def _waiter(comm):
    with _waiters_lock:
        waiter = _waiters.get(comm)
        if waiter is None:
            waiter = _waiters[comm] = _Waiter()
            comm._before_close.append(waiter.stop)
        return waiter


def ddp_comm_hook(comm: Communicator, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all ranks through the gateway, in place, while backward goes on.

    For `DistributedDataParallel.register_comm_hook(comm, gradgate.torch.ddp_comm_hook)`. The division by the number
    of ranks is the gateway's, so that all ranks get the same bits.

    Args:
        comm: of as many ranks as the training has, in the same order of buckets on all of them.
        bucket: its buffer is a 1-D CPU tensor of float32, float16, bfloat16 or int32.

    Returns:
        Future of the averaged buffer (the bucket's own, not a copy). Where the group fails, waiting for it, and so
        `backward()`, raises the gateway's text.
    """
    tensor = bucket.buffer()
    work = comm.all_reduce(tensor, op="average", async_op=True)
    return _waiter(comm).add(work, tensor)


def broadcast_parameters(comm: Communicator, module: torch.nn.Module, root: int = 0) -> None:
    """Gives every rank the parameters and buffers of rank `root`, in place.

    Args:
        comm: of all ranks of the training.
        module: with the same parameters and buffers, in the same order and on the CPU, on every rank.
        root: 0 <= root < comm.size.

    Raises: as `Communicator.broadcast`.
    """
    with torch.no_grad():
        for tensor in list(module.parameters()) + list(module.buffers()):
            if tensor.is_contiguous():
                comm.broadcast(tensor, root)
            else:
                tensor.copy_(comm.broadcast(tensor.contiguous(), root))
