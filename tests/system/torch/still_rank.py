# SPDX-License-Identifier: Apache-2.0
"""A training under DistributedDataParallel in which rank 1 stands still for ever behind some
iteration: under the plan for layers that wait, where there is one. The others go on, as far as they
come. TIMEOUT: the process group's, in seconds."""

import os
import time
from datetime import timedelta

import layer_kinds as kinds
import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=float(os.environ["TIMEOUT"]))
PLANNED = int(os.environ.get("PLANNED", "0"))   # iterations under the plan before
ASKED = 4


def main():
    torch.set_num_threads(1)
    dist.init_process_group("nccl", timeout=TIMEOUT)
    job = kinds.Job(dist.group.WORLD, kinds.network, kinds.adam, {})
    # Rank 0 says now and then which iteration is the last that both make.
    store, iteration, last = dist.distributed_c10d._get_default_store(), 0, None
    while iteration != last:
        time.sleep(0.015)
        job.plain(iteration)
        iteration += 1
        if last is not None or iteration % ASKED != 0:
            continue
        if iteration == 2000:
            raise SystemExit("no plan came")
        if kinds.RANK == 0:
            seen = iteration >= 60 and kinds.planned() >= PLANNED
            store.set(str(iteration), str(iteration + ASKED if seen else 0))
        last = int(store.get(str(iteration))) or None
    print("stands still", flush=True)
    if kinds.RANK == 1:
        time.sleep(3600)
    for iteration in range(last, last + 5):
        job.plain(iteration)
    print("went on", flush=True)


if __name__ == "__main__":
    main()
