# SPDX-License-Identifier: Apache-2.0
"""What scripts of today do with their process groups. CASE: groups, suspend, pairs. Prints which
kind of group PyTorch has made, and "done"."""

import os

import torch
import torch.distributed as dist


def total(group, value):
    tensor = torch.full((3,), float(value))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def groups(rank, world):
    """The device is named, so that communicators are made at once; groups of some ranks."""
    everyone = dist.group.WORLD
    assert total(everyone, rank + 1) == world * (world + 1) / 2
    for members in ([0], [0, 1], list(range(world)), [world - 1]):
        group = dist.new_group(members)
        if rank in members:
            assert total(group, rank + 1) == sum(member + 1 for member in members), members
            assert dist.get_process_group_ranks(group) == members
    assert total(everyone, 1) == world


def suspend(rank, world):
    """The communicator's memory is given up between two iterations."""
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert total(None, 1) == world
    for _ in range(2):
        assert backend.memory_stats()["gpu_mem_suspended"] == 0
        backend.suspend()
        assert backend.memory_stats()["gpu_mem_suspended"] == 1
        try:
            total(None, 1)
        except RuntimeError as error:
            assert "invalid usage" in str(error), error
        else:
            raise AssertionError("a suspended communicator was used")
        backend.resume()
        assert total(None, rank + 1) == world * (world + 1) / 2


def pairs(rank, world):
    after, before = (rank + 1) % world, (rank - 1) % world
    received = torch.empty(70000)
    sending = dist.isend(torch.full((70000,), float(rank)), after) if rank % 2 == 0 else None
    dist.recv(received, before)
    if sending is None:
        dist.send(torch.full((70000,), float(rank)), after)
    else:
        sending.wait()
    assert received.eq(before).all()


def main():
    case = os.environ["CASE"]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if case == "groups" else None
    dist.init_process_group(os.environ.get("BACKEND", "nccl"), device_id=device)
    print("group", type(dist.group.WORLD).__name__, flush=True)
    globals()[case](dist.get_rank(), dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main()
