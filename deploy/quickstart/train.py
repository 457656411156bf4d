#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT, data-parallel, with gloo or through gradgate gateways. One process is one rank.

    train.py --backend gradgate --gateway 10.1.0.1:9470 --tenant lab --token … --rank 0 --size 4
    train.py --backend gloo --store /tmp/store --rank 0 --size 4

DistributedDataParallel insists on a torch process group, and of workers at different sites no one reaches another by
IP, so no torch backend can form one. With gradgate every rank therefore has a process group of its own, of size 1, over
an in-memory store; what must cross ranks (initial parameters, gradients, the loss shown) goes through gradgate's own
communicator, the gradients by gradgate.torch.ddp_comm_hook. Both backends use the same bucket sizes. DDP fixes the
order of its buckets after the first step from the order in which gradients came; a single-threaded backward pass over
the same model gives the same order on every rank.

The same seed gives the same parameters, data order and bits.
"""
import argparse
import glob
import hashlib
import json
import math
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64
VOCABULARY = 256  # bytes
WIDTH, LAYERS, HEADS = 288, 6, 6
BATCH = 4  # sequences per rank and step
LEARNING_RATE, WARM_UP_STEPS, CLIP = 1e-3, 5, 1.0
BUCKET_MB = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads[0], heads[1], heads[2]
        scores = query @ key.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        mixed = torch.softmax(scores + mask, dim=-1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Logits (batch, CONTEXT, VOCABULARY) of the next byte, from bytes (batch, CONTEXT) as int64."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if last else 0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def load_text():
    """The licences that every Debian has (base-files), and Perl's documentation where it is installed, as bytes."""
    paths = sorted(glob.glob("/usr/share/common-licenses/*")) + sorted(glob.glob("/usr/share/perl/5*/**/*.pod", recursive=True))
    parts, seen = [], set()
    for path in paths:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            continue
        if content not in seen:  # GPL is a link to GPL-3
            seen.add(content)
            parts.append(content)
    text = b"\n".join(parts)
    if len(text) < 100_000:
        sys.exit(f"train.py: only {len(text)} bytes of text in /usr/share/common-licenses; is base-files installed?")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class GlooBackend:
    """A torch process group over all ranks; DDP's built-in all-reduce."""

    def __init__(self, options):
        dist.init_process_group("gloo", store=dist.FileStore(options.store, options.size), rank=options.rank,
                                world_size=options.size)
        self.size = options.size

    def prepare(self, model):
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, broadcast_buffers=False)

    def mean(self, tensor):
        dist.all_reduce(tensor)
        return tensor / self.size

    def close(self):
        dist.barrier()
        dist.destroy_process_group()


class GradgateBackend:
    """See the head of this file."""

    def __init__(self, options):
        import gradgate
        from gradgate.torch import ddp_comm_hook

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.hook = ddp_comm_hook
        self.communicator = gradgate.Communicator(gateway=options.gateway, tenant=options.tenant, token=options.token,
                                                  job=options.job, group="dp", rank=options.rank, size=options.size)

    def prepare(self, model):
        for parameter in model.parameters():
            self.communicator.broadcast(parameter.data, root=0)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, broadcast_buffers=False)
        wrapped.register_comm_hook(self.communicator, self.hook)
        return wrapped

    def mean(self, tensor):
        self.communicator.all_reduce(tensor, op="average")
        return tensor

    def close(self):
        self.communicator.barrier()
        self.communicator.close()
        dist.destroy_process_group()


def parameters_digest(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(options, backend):
    torch.manual_seed(options.seed)
    text = load_text()
    model = GPT()
    count = sum(parameter.numel() for parameter in model.parameters())
    wrapped = backend.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))
    # Its own generator: the data depends on seed and rank alone, not on what else draws random numbers.
    order = torch.Generator().manual_seed(options.seed * 1_000_003 + options.rank)
    losses, seconds = [], []
    if options.rank == 0:
        print(f"{count / 1e6:.1f} M parameters, {len(text) / 1e6:.1f} MB of text, {options.size} ranks, "
              f"{BATCH * CONTEXT * options.size} tokens a step, backend {options.backend}", flush=True)
    for step in range(options.steps):
        begin = time.monotonic()
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=order)
        window = torch.stack([text[start:start + CONTEXT + 1] for start in starts.tolist()]).long()
        logits = wrapped(window[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), window[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(backend.mean(loss.detach().reshape(1).clone()).item())
        seconds.append(time.monotonic() - begin)
        if options.rank == 0:
            tokens = BATCH * CONTEXT * options.size / seconds[-1]
            print(f"step {step + 1:4d}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s/step  {tokens:.0f} tokens/s", flush=True)
    return {"backend": options.backend, "rank": options.rank, "size": options.size, "seed": options.seed,
            "parameters": count, "gradient_bytes_per_step": 4 * count, "losses": losses, "step_seconds": seconds,
            "sha256": parameters_digest(model)}


def main():
    parser = argparse.ArgumentParser(description="Trains a small GPT, data-parallel; one process is one rank.")
    parser.add_argument("--backend", choices=("gloo", "gradgate"), default="gradgate")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--store", help="gloo: a file that all ranks share; must not exist before")
    parser.add_argument("--gateway", help="gradgate: ADDRESS:PORT of this site's gateway")
    parser.add_argument("--tenant", default="lab")
    parser.add_argument("--token", default="")
    parser.add_argument("--job", default="gpt")
    parser.add_argument("--out", help="JSON file for losses, times and the parameters' SHA-256")
    options = parser.parse_args()
    needed = "store" if options.backend == "gloo" else "gateway"
    if getattr(options, needed) is None:
        parser.error(f"--backend {options.backend} needs --{needed}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    backend = (GlooBackend if options.backend == "gloo" else GradgateBackend)(options)
    result = train(options, backend)
    backend.close()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
