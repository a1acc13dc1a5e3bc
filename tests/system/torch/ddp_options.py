# SPDX-License-Identifier: Apache-2.0
"""DDP's options on a small model, one after the other. Rank 0 writes what came out to the file
named by OUT: {"<option>": {"sums": [...], "losses": [...], "replicas": true}}. The same numbers
must come with every backend.

BACKEND (default nccl), OPTIONS (comma list, default all), CLOSING=destroy|plain (how the program
ends), ITERATIONS and PACE (seconds from one iteration to the next, so that a plan can be made
meanwhile).
"""

import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

ITERATIONS = int(os.environ.get("ITERATIONS", "4"))
PACE = float(os.environ.get("PACE", "0"))


class Branches(nn.Module):
    """Two heads, of which one forward pass uses one: the other's parameters are unused then."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(64, 700)
        self.left = nn.Linear(700, 512)
        self.right = nn.Linear(700, 512)

    def forward(self, inputs, left=True):
        hidden = torch.relu(self.trunk(inputs))
        return (self.left if left else self.right)(hidden)


def chain():
    return nn.Sequential(nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(),
                         nn.Linear(700, 10))


def run(name, rank, world):
    torch.manual_seed(7)
    options = {"gradient_as_bucket_view": {"gradient_as_bucket_view": True},
               "find_unused_parameters": {"find_unused_parameters": True},
               "static_graph": {"static_graph": True},
               "new_group": {"process_group": dist.new_group()} if name == "new_group"
               else {}}.get(name, {})
    model = Branches() if name in ("find_unused_parameters", "static_graph") else chain()
    ddp = DistributedDataParallel(model, bucket_cap_mb=1, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    for iteration in range(ITERATIONS):
        # a rest once the iteration is learned: ranks make a plan ready
        time.sleep(PACE * (50 if iteration == 16 else 1))
        optimizer.zero_grad(set_to_none=False)
        inputs = torch.randn(16, 64, generator=data)
        if name == "no_sync":
            with ddp.no_sync():
                ddp(torch.randn(16, 64, generator=data)).square().mean().backward()
        arguments = [iteration % 2 == 0] if name == "find_unused_parameters" else []
        loss = ddp(inputs, *arguments).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    copies = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(copies, flat)
    step = torch.tensor([rank + 1], dtype=torch.int32)
    dist.all_reduce(step)
    objects = [None] * world
    dist.all_gather_object(objects, (rank, name))
    dist.barrier()
    return {"sums": [parameter.double().sum().item() for parameter in model.parameters()],
            "losses": losses, "replicas": all(torch.equal(copy, flat) for copy in copies),
            "int32": step.item(), "objects": objects == [(peer, name) for peer in range(world)],
            "parameters": flat.numel()}


OPTIONS = ("default", "gradient_as_bucket_view", "find_unused_parameters", "static_graph",
           "no_sync", "new_group")


def main():
    torch.set_num_threads(1)
    dist.init_process_group(os.environ.get("BACKEND", "nccl"))
    rank, world = dist.get_rank(), dist.get_world_size()
    wanted = os.environ.get("OPTIONS")
    results = {name: run(name, rank, world) for name in (wanted.split(",") if wanted else OPTIONS)}
    if rank == 0:
        with open(os.environ["OUT"], "w", encoding="utf-8") as file:
            json.dump(results, file)
    if os.environ.get("CLOSING", "destroy") == "destroy":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
