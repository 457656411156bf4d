# SPDX-License-Identifier: Apache-2.0
"""The Python package against a gateway on loopback."""

import gc

import numpy
import pytest


def ramp(rank, count, dtype=numpy.float32):
    return (numpy.arange(count) % 13 + rank).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_numpy_collectives(gateway, dtype, count):
    size = 3

    def body(comm, rank):
        assert (comm.rank, comm.size) == (rank, size)
        total = sum(ramp(r, count, dtype) for r in range(size))
        x = ramp(rank, count, dtype)
        assert comm.all_reduce(x) is x
        numpy.testing.assert_array_equal(x, total)
        x = ramp(rank, count, dtype) * size
        comm.all_reduce(x, op="average")
        numpy.testing.assert_array_equal(x, total)

        whole = numpy.concatenate([ramp(rank + r, count, dtype) for r in range(size)])
        part = numpy.empty(count, dtype)
        assert comm.reduce_scatter(part, whole) is part
        numpy.testing.assert_array_equal(part, total + size * rank)

        gathered = numpy.empty((size, count), dtype)
        comm.all_gather(gathered, ramp(rank, count, dtype))
        numpy.testing.assert_array_equal(gathered, [ramp(r, count, dtype) for r in range(size)])

        x = ramp(rank, count, dtype)
        comm.reduce(x, root=1)
        numpy.testing.assert_array_equal(x, total if rank == 1 else ramp(rank, count, dtype))
        x = ramp(rank, count, dtype)
        comm.broadcast(x, root=2)
        numpy.testing.assert_array_equal(x, ramp(2, count, dtype))
        comm.barrier()
        assert comm.stats()["calls"] >= 7

    gateway(size)(body)


def test_any_dtype_is_moved(gateway):
    def body(comm, rank):
        for dtype in ("uint8", "int64", "float64", "bool", "complex64"):
            x = ramp(rank, 100, dtype)
            comm.broadcast(x, root=1)
            numpy.testing.assert_array_equal(x, ramp(1, 100, dtype))
            gathered = numpy.empty((2, 100), dtype)
            comm.all_gather(gathered, ramp(rank, 100, dtype))
            numpy.testing.assert_array_equal(gathered, [ramp(r, 100, dtype) for r in range(2)])

    gateway(2)(body)


def test_asynchronous_work_keeps_its_memory(gateway):
    def body(comm, rank):
        works, keep = [], []
        for i in range(50):
            x = numpy.full(1000, float(i + rank), numpy.float32)
            works.append(comm.all_reduce(x, async_op=True))
            if i % 2 == 0:
                keep.append((i, x))
            del x
        gc.collect()
        for work in reversed(works):
            work.wait(20)
            assert work.is_completed()
        for i, x in keep:
            numpy.testing.assert_array_equal(x, numpy.full(1000, 2.0 * i + 1))

    gateway(2, 0.02)(body)


def test_what_is_refused_says_what_would_be_right(gateway):
    def body(comm, rank):
        x = numpy.zeros((4, 4), numpy.float32)
        with pytest.raises(ValueError, match="x is not C-contiguous: pass numpy.ascontiguousarray"):
            comm.all_reduce(x.T[:, :2])
        x.flags.writeable = False
        with pytest.raises(ValueError, match="x is not writable: pass a copy"):
            comm.all_reduce(x)
        with pytest.raises(TypeError, match="x has dtype float64, which cannot be summed: float32, float16, bfloat16"):
            comm.all_reduce(numpy.zeros(4))
        with pytest.raises(TypeError, match="x is a list: it must be a numpy array or a CPU tensor"):
            comm.all_reduce([1.0])
        with pytest.raises(TypeError, match="x has dtype >f4: .* byte order"):
            comm.all_reduce(numpy.zeros(4, ">f4"))
        with pytest.raises(ValueError, match="op is 'max'"):
            comm.all_reduce(numpy.zeros(4, numpy.float32), op="max")
        with pytest.raises(ValueError, match="input has 3 elements and output 1: it must have 2 times as many"):
            comm.reduce_scatter(numpy.zeros(1, numpy.float32), numpy.zeros(3, numpy.float32))
        import gradgate

        with pytest.raises(gradgate.Error, match="root is 7; it must be from 0 to size - 1 = 1") as e:
            comm.broadcast(numpy.zeros(1, numpy.float32), root=7)
        assert e.value.code == "argument"
        comm.barrier()  # still of use

    gateway(2)(body)


def test_mismatch_is_one_clear_error_on_every_rank(gateway):
    import gradgate

    def body(comm, rank):
        with pytest.raises(gradgate.Error, match="all_reduce of [12]000 elements.*all_reduce of [12]000") as e:
            comm.all_reduce(numpy.zeros(1000 * (rank + 1), numpy.float32))
        assert e.value.code == "group_failed"
        comm.abort()
        raise KeyError  # leave without finalizing

    with pytest.raises(KeyError):
        gateway(2)(body)


def test_errors_at_joining(gateway):
    import gradgate

    ranks = gateway(2)
    with pytest.raises(gradgate.Error, match="the group has another size") as e:
        gradgate.Communicator(ranks.address, "lab", "secret", "test", rank=0, size=5)
    assert e.value.code == "refused"
    with pytest.raises(gradgate.Error, match="wrong token"):
        gradgate.Communicator(ranks.address, "lab", "guess", "test", rank=0, size=2)
    with pytest.raises(gradgate.Error, match="has not formed within join_timeout") as e:
        ranks.communicator(0, join_timeout=0.2)
    assert e.value.code == "timeout"
    with pytest.raises(gradgate.Error, match="Connection refused") as e:
        gradgate.Communicator("127.0.0.1:1", "lab", "secret", "test", rank=0, size=2)
    assert e.value.code == "unreachable"


def test_closed_communicator(gateway):
    import gradgate

    ranks = gateway(1)
    comm = ranks.communicator(0)
    comm.close()
    comm.close()
    with pytest.raises(gradgate.Error, match="the communicator is closed"):
        comm.barrier()
    assert gradgate.version().count(".") == 2
