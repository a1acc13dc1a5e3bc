# SPDX-License-Identifier: Apache-2.0
"""Jobs that end in other ways than the good one; CASE says how."""

import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    case = os.environ["CASE"]
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    tensor = torch.ones(200000)
    for _ in range(5):
        dist.all_reduce(tensor)
    print("under way", flush=True)
    if case == "killed":
        # Rank 1 may be done with the calls above while rank 0 still waits for their last bytes: it
        # dies only once rank 0 is through them too, told by other means than those calls.
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("through", "1")
        else:
            store.wait(["through"])
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            dist.all_reduce(tensor, async_op=True).wait()
    if case == "killed-ddp":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
        for iteration in range(1000000):
            if rank == 1 and iteration == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(4, 300)).sum().backward()
    if case == "exception":
        if rank == 1:
            raise ValueError("rank 1 has had enough")
        while True:
            dist.all_reduce(tensor)
    if case == "exit-code":
        if rank == 1:
            sys.exit(7)
        while True:
            dist.all_reduce(tensor)
    if case == "unwaited":
        for _ in range(20):
            dist.all_reduce(tensor, async_op=True)
        return  # and no destroy_process_group
    if case == "destroyed":
        for _ in range(5):
            dist.all_reduce(tensor, async_op=True)
        dist.destroy_process_group()
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{os.environ['SECOND_PORT']}",
                                rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        dist.all_reduce(tensor)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
