# SPDX-License-Identifier: Apache-2.0
"""PyTorch: tensors in place, DistributedDataParallel's hook. Ranks are processes, as in a training."""

import multiprocessing
import traceback

import pytest

torch = pytest.importorskip("torch")


def run_rank(body, ranks, rank, results):
    try:
        results.put((rank, body(ranks, rank), None))
    except BaseException:  # to be shown by the parent
        results.put((rank, None, traceback.format_exc()))


def spawn(ranks, body):
    """Runs body(ranks, rank) in a process for each rank; returns the results by rank."""
    # Not fork: autograd's threads do not survive it.
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=run_rank, args=(body, ranks, rank, results), daemon=True) for rank in range(ranks.size)
    ]
    for process in processes:
        process.start()
    try:
        outcomes = sorted(results.get(timeout=120) for _ in processes)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    for rank, _, error in outcomes:
        assert error is None, "rank %d: %s" % (rank, error)
    return [result for _, result, _ in outcomes]


def tensors(ranks, rank):
    with ranks.communicator(rank) as comm:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
            x = torch.full((3, 5), rank + 1).to(dtype)
            assert comm.all_reduce(x) is x
            assert torch.equal(x, torch.full((3, 5), 3).to(dtype)), dtype
        x = torch.tensor([rank, 7], dtype=torch.int64)
        comm.broadcast(x, root=1)
        assert x.tolist() == [1, 7]
        with pytest.raises(ValueError, match="x is not contiguous: pass x.contiguous()"):
            comm.all_reduce(torch.zeros(3, 5).t())
        with pytest.raises(ValueError, match="x is on meta"):
            comm.all_reduce(torch.zeros(3, device="meta"))
        comm.barrier()


def test_tensors(gateway):
    spawn(gateway(2), tensors)


def model_and_data(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 8)), torch.randn(32, 64), torch.randn(32, 8)


def train(ranks, rank, fail_at=None):
    """A few steps of DDP in which the ranks are connected by gateways only."""
    import gradgate.torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    comm = ranks.communicator(rank)
    model, x, y = model_and_data(rank)  # the ranks start with different parameters
    gradgate.torch.broadcast_parameters(comm, model)
    # Small buckets, so that several are under way at once.
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    ddp.register_comm_hook(comm, gradgate.torch.ddp_comm_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(5):
        if step == fail_at and rank == 1:
            comm.abort()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
    assert comm.stats()["calls"] > 15
    comm.close()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def test_ddp_gives_all_ranks_the_same_bits_every_time(gateway):
    first = spawn(gateway(3), train)
    assert first[0] == first[1] == first[2]
    again = spawn(gateway(3, 0.02), train)
    assert again == first


def test_ddp_agrees_with_averaging_by_hand(gateway):
    ranks = 2
    models, data = [], []
    for rank in range(ranks):
        model, x, y = model_and_data(rank)
        models.append(model)
        data.append((x, y))
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for _ in range(5):
        for model, optimizer, (x, y) in zip(models, optimizers, data):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
        for same in zip(*(model.parameters() for model in models)):
            mean = sum(p.grad for p in same) / ranks
            for p in same:
                p.grad.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
    trained = spawn(gateway(ranks), train)[0]
    for p, bits in zip(models[0].parameters(), trained):
        got = torch.frombuffer(bytearray(bits), dtype=torch.float32).reshape(p.shape)
        torch.testing.assert_close(got, p.detach(), rtol=1e-4, atol=1e-6)


def train_until_failure(ranks, rank):
    with pytest.raises(RuntimeError) as e:
        train(ranks, rank, fail_at=2)
    return str(e.value)


def test_failure_reaches_backward_with_its_text(gateway):
    texts = spawn(gateway(2), train_until_failure)
    assert "rank 1 at site fake is gone" in texts[0]
    assert "the communicator was aborted" in texts[1]
