# SPDX-License-Identifier: Apache-2.0
"""Trainings whose gradients travel by reduce-scatter, one after the other: FSDP2 over all ranks,
and HSDP, which sums the shards of two halves by all-reduce.

OUT: rank 0 writes {"<kind>": {"digest": "...", "equal": true, "losses": [...]}} there. KINDS: a
comma list (default: all). ITERATIONS (120) and PACE (seconds from one to the next, 0.01).
"""

import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ITERATIONS = int(os.environ.get("ITERATIONS", "120"))
PACE = float(os.environ.get("PACE", "0.01"))
WIDTH = 96


class Block(nn.Module):
    """Wide enough that a shard is as large as a gradient that plans take."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.out(torch.tanh(self.into(hidden)))


def mesh_of(kind, world):
    if kind == "fsdp2":
        return init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))


def run(kind, rank, world):
    torch.manual_seed(5)
    mesh = mesh_of(kind, world)
    model = nn.Sequential(nn.Linear(12, WIDTH), Block(), nn.Linear(WIDTH, 5))
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    draw = torch.Generator().manual_seed(50 + rank)
    losses = []
    for _ in range(ITERATIONS):
        time.sleep(PACE)
        points = torch.randn(16, 12, generator=draw)
        labels = points[:, :5].argmax(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Whole parameters: every rank must come to the same ones.
    whole = [parameter.full_tensor().detach() for parameter in model.parameters()]
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in whole)).hexdigest()
    every = [None] * world
    dist.all_gather_object(every, digest)
    return {"digest": digest, "equal": len(set(every)) == 1, "losses": losses}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    kinds = os.environ.get("KINDS", "fsdp2,hsdp").split(",")
    results = {kind: run(kind, rank, world) for kind in kinds}
    if rank == 0:
        with open(os.environ["OUT"], "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
