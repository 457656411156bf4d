# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the end-to-end tests: `from e2e_rank import *` in a script that e2e.start_ranks() runs."""
import hashlib
import json
import os
import time

import numpy

import gradgate

OPTIONS = json.loads(os.environ["E2E_RANK"])
RANK, SIZE = OPTIONS["rank"], OPTIONS["size"]
SITES = OPTIONS["site_of_rank"]  # site id by rank


def say(event, **what):
    """One line for e2e.Rank.said()."""
    print("SAY " + json.dumps({"event": event, **what}), flush=True)


def join(**changes):
    named = {name: OPTIONS[name] for name in ("gateway", "tenant", "token", "job", "group", "rank", "size")}
    return gradgate.Communicator(**{"join_timeout": 60.0, **named, **changes})


def error_of(function):
    """{"code", "text", "seconds"} of the gradgate.Error that function() must raise."""
    begin = time.monotonic()
    try:
        function()
    except gradgate.Error as error:
        return {"code": error.code, "text": str(error), "seconds": time.monotonic() - begin}
    raise AssertionError("no error")


def digest(array):
    return hashlib.blake2b(memoryview(array).cast("B") if array.size else b"", digest_size=16).hexdigest()


class Numpy:
    """float32, float16 and int32 as numpy has them."""

    def __init__(self, name):
        self.dtype = numpy.dtype(name)

    def random(self, seed, count):
        generator = numpy.random.Generator(numpy.random.PCG64(seed))
        if self.dtype == numpy.int32:
            return generator.integers(-2**31, 2**31, count, dtype=numpy.int32)
        return (generator.random(count, dtype=numpy.float32) * 8 - 4).astype(self.dtype)

    def sum(self, arrays, divisor):
        """reduce.h: 16 bits in float32, rounded once; one array without a divisor as it is."""
        if len(arrays) == 1 and divisor == 1:
            return arrays[0]
        wide = self.dtype if self.dtype == numpy.int32 else numpy.dtype(numpy.float32)
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total += array.astype(wide, copy=False)
        if divisor != 1 and wide == numpy.int32:
            total = numpy.trunc(total / divisor).astype(numpy.int32)
        elif divisor != 1:
            total /= numpy.float32(divisor)
        return total.astype(self.dtype)

    def zeros(self, count):
        return numpy.zeros(count, self.dtype)

    def bits(self, array):
        return array.view(numpy.uint8 if array.dtype.itemsize == 1 else f"uint{8 * array.dtype.itemsize}")


class BFloat16:
    """PyTorch's."""

    def __init__(self):
        import torch
        self.torch = torch

    def random(self, seed, count):
        values = numpy.random.Generator(numpy.random.PCG64(seed)).random(count, dtype=numpy.float32) * 8 - 4
        return self.torch.from_numpy(values).to(self.torch.bfloat16)

    def sum(self, arrays, divisor):
        if len(arrays) == 1 and divisor == 1:
            return arrays[0]
        total = arrays[0].float()
        for array in arrays[1:]:
            total = total + array.float()
        return (total / divisor if divisor != 1 else total).to(self.torch.bfloat16)

    def zeros(self, count):
        return self.torch.zeros(count, dtype=self.torch.bfloat16)

    def bits(self, array):
        return array.contiguous().view(self.torch.int16).numpy()


def element_type(name):
    return BFloat16() if name == "bfloat16" else Numpy(name)


def expected_sum(kind, arrays, op="sum"):
    """The sum over all ranks, bit for bit: rank order inside a site, then site order (DESIGN section 5)."""
    divisor = SIZE if op == "average" else 1
    sites = sorted(set(SITES))
    if len(sites) == 1:
        return kind.sum(arrays, divisor)
    partials = [kind.sum([arrays[rank] for rank in range(SIZE) if SITES[rank] == site], 1) for site in sites]
    return kind.sum(partials, divisor)


def check(kind, what, got, expected):
    got, expected = kind.bits(got), kind.bits(expected)
    if numpy.array_equal(got, expected):
        return
    wrong = numpy.flatnonzero(got != expected)
    first = int(wrong[0])
    raise AssertionError(f"{what}: {len(wrong)} of {len(got)} elements are wrong, first [{first}]: "
                         f"{int(got[first]):#x} instead of {int(expected[first]):#x}")


def every_kind(comm, dtype, count, seed):
    """Every collective once with `count` elements (a part has `count` too), checked against the bits it must have.
    Returns a digest of all results."""
    kind = element_type(dtype)
    mine = lambda rank, salt, n: kind.random([seed, salt, rank], n)  # noqa: E731
    whole = lambda salt, n: [mine(rank, salt, n) for rank in range(SIZE)]  # noqa: E731
    copy = lambda x: x.copy() if isinstance(x, numpy.ndarray) else x.clone()  # noqa: E731
    name = f"{dtype} of {count}"
    total = hashlib.blake2b(digest_size=16)

    def keep(what, got, expected):
        check(kind, f"{what} {name}", got, expected)
        total.update(kind.bits(got).tobytes())

    for salt, op in enumerate(("sum", "average")):
        arrays = whole(salt, count)
        keep(f"all_reduce {op}", comm.all_reduce(copy(arrays[RANK]), op), expected_sum(kind, arrays, op))
        arrays = whole(10 + salt, count * SIZE)
        out = comm.reduce_scatter(kind.zeros(count), arrays[RANK], op)
        keep(f"reduce_scatter {op}", out, expected_sum(kind, arrays, op)[RANK * count:(RANK + 1) * count])
        for root in range(SIZE):
            arrays = whole(20 + salt, count)
            got = comm.reduce(copy(arrays[RANK]), root, op)
            wanted = expected_sum(kind, arrays, op) if RANK == root else arrays[RANK]
            check(kind, f"reduce {op} to {root} {name}", got, wanted)
    parts = whole(30, count)
    out = comm.all_gather(kind.zeros(count * SIZE), parts[RANK])
    gathered = numpy.concatenate(parts) if isinstance(parts[0], numpy.ndarray) else kind.torch.cat(parts)
    keep("all_gather", out, gathered)
    for root in range(SIZE):
        parts = whole(40 + root, count)
        keep(f"broadcast from {root}", comm.broadcast(copy(parts[RANK]), root), parts[root])
    comm.barrier()
    return total.hexdigest()
