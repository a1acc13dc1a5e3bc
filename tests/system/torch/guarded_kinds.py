# SPDX-License-Identifier: Apache-2.0
"""Trainings under a late plan, one after another, each over a communicator of its own: one that
bears it, and others that do not.

OUT: rank 0 writes {"<kind>": {"planted": n, "iterations": n, "in_force": [...], "executed": [...],
"losses": [...]}} there, the lists by rank but for the losses, which are rank 0's. KINDS: a comma
list. PACE: seconds from one iteration to the next (0.02).
"""

import json
import os
import time

import deft
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training_kinds import average, network, samples

PACE = float(os.environ.get("PACE", "0.02"))
PATIENCE = 1500   # iterations until a plan
CALM = 24         # iterations under it before anything is planted
AFTERWARDS = 32


def everywhere(value):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


class Training:
    """DDP, SGD. `rate`: at first; `planted`: what it is multiplied by later."""

    def __init__(self, group, rate, momentum=0.0, planted=1):
        self.model = DistributedDataParallel(network(), process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate, momentum=momentum)
        self.batches, self.factor, self.losses = samples(dist.get_rank(), 256), planted, []
        self.draw = torch.Generator().manual_seed(7 + dist.get_rank())

    def step(self):
        time.sleep(PACE)
        points, labels = next(self.batches)
        # Some labels are wrong, so that no rate brings the loss to nothing.
        labels = torch.where(torch.rand(len(labels), generator=self.draw) < 0.3,
                             torch.randint(5, labels.shape, generator=self.draw), labels)
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(points), labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def plant(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= self.factor


# Plain bears them all. A delay by one halves the rate that SGD without momentum bears, and takes
# nearly all of it with momentum.
KINDS = {"calm": {"rate": 1.2}, "rate": {"rate": 1.2, "planted": 2},
         "delay": {"rate": 0.5, "momentum": 0.9}}


def run(kind):
    torch.manual_seed(3)
    group, before = dist.new_group(), deft.stats()
    training, planted = Training(group, **KINDS[kind]), None
    for _ in range(PATIENCE):
        training.step()
        here = float(deft.stats()["switched"] > before["switched"])
        if average(torch.tensor([here]), dist.group.WORLD).item() == 1:
            break
    if kind != "delay":   # which the plan itself ruins
        for _ in range(CALM):
            training.step()
        training.plant()
    planted = len(training.losses)
    for _ in range(AFTERWARDS):
        training.step()
    time.sleep(0.2)   # until deft has looked once more
    now = deft.stats()
    told = {"planted": planted, "iterations": len(training.losses), "losses": training.losses,
            "in_force": everywhere(now["in_force"] - before["in_force"]),
            "executed": everywhere(now["executed_calls"] - before["executed_calls"])}
    dist.destroy_process_group(group)
    return told


def main():
    torch.set_num_threads(1)
    dist.init_process_group("nccl")
    results = {kind: run(kind) for kind in os.environ.get("KINDS", ",".join(KINDS)).split(",")}
    if dist.get_rank() == 0:
        with open(os.environ["OUT"], "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
