# SPDX-License-Identifier: Apache-2.0
"""A DDP script as people write it for GPUs: it names cuda everywhere and asks nobody."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    device = torch.device(f"cuda:{local_rank}")
    model = DDP(torch.nn.Linear(20, 30).to(device), device_ids=[local_rank],
                output_device=local_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(5):
        inputs = torch.randn(8, 20, device=device)
        targets = torch.ones(8, 30).cuda(non_blocking=True)
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    total = torch.tensor([loss.item()], device="cuda")
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    dist.barrier(device_ids=[local_rank])
    if torch.cuda.current_device() != local_rank:
        raise SystemExit("set_device was forgotten")
    print(f"cuda script done: {total.to('cpu').item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
