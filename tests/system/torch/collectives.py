# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed against its arithmetic. Run as a rank; any backend, by
BACKEND (default nccl)."""

import os

import torch
import torch.distributed as dist

BACKEND = os.environ.get("BACKEND", "nccl")
ALL_TYPES = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64)


def equal(found, expected, what):
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    if found.shape != expected.shape or not torch.equal(found.double(), expected.double()):
        raise AssertionError(f"rank {dist.get_rank()}: {what}: {found} is not {expected}")


def raises(kinds, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kinds as error:
        return str(error)
    raise AssertionError(f"{function} did not refuse")


def all_reduce(rank, world):
    ranks = torch.arange(1, world + 1)
    operations = {dist.ReduceOp.SUM: ranks.sum(), dist.ReduceOp.PRODUCT: ranks.prod(),
                  dist.ReduceOp.MAX: ranks.max(), dist.ReduceOp.MIN: ranks.min()}
    for kind in ALL_TYPES:
        for operation, result in operations.items():
            for count in (1, 1031):
                tensor = torch.full((count,), rank + 1).to(kind)
                dist.all_reduce(tensor, op=operation)
                equal(tensor, torch.full((count,), int(result)), f"all_reduce {kind} {operation}")
    tensor = torch.tensor([True, False, rank == 0, rank != 0])
    dist.all_reduce(tensor)
    equal(tensor, torch.tensor([True, False, True, world > 1]), "all_reduce bool")
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    equal(tensor, torch.full((5,), (world - 1) / 2), "all_reduce average")
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor, op=torch.distributed.distributed_c10d._make_nccl_premul_sum(0.5))
    equal(tensor, torch.full((3,), 0.5 * ranks.sum()), "all_reduce premultiplied")
    works = [(dist.all_reduce(each, async_op=True), each)
             for each in [torch.ones(1000) for _ in range(20)]]
    for work, each in works:
        work.wait()
        assert work.is_completed()
        equal(each, torch.full((1000,), float(world)), "all_reduce async")
    assert "BAND" in raises(ValueError, dist.all_reduce, torch.ones(1, dtype=torch.int32),
                            op=dist.ReduceOp.BAND)
    raises(ValueError, dist.all_reduce, torch.ones(4, 4).t()[1:])
    empty = torch.empty(0)
    dist.all_reduce(empty)


def broadcast_and_reduce(rank, world):
    for root in range(world):
        tensor = torch.full((7,), float(rank))
        dist.broadcast(tensor, root)
        equal(tensor, torch.full((7,), float(root)), "broadcast")
        tensor = torch.full((7,), float(rank + 1))
        dist.reduce(tensor, root)
        if rank == root:
            equal(tensor, torch.full((7,), world * (world + 1) / 2), "reduce")


def gathers(rank, world):
    parts = [torch.empty(2, 3) for _ in range(world)]
    dist.all_gather(parts, torch.full((2, 3), float(rank)))
    equal(torch.stack(parts), torch.arange(float(world)).view(-1, 1, 1).expand(world, 2, 3),
          "all_gather")
    whole = torch.empty(3 * world)
    dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
    equal(whole, torch.arange(float(world)).repeat_interleave(3), "all_gather_into_tensor")
    target = torch.empty(4)
    dist.reduce_scatter(target, [torch.full((4,), float(peer + rank)) for peer in range(world)])
    equal(target, torch.full((4,), float(rank * world + world * (world - 1) / 2)), "reduce_scatter")
    dist.reduce_scatter_tensor(target, torch.arange(4.0 * world))
    equal(target, world * torch.arange(4.0 * rank, 4.0 * rank + 4), "reduce_scatter_tensor")
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank + 1) * 100})
    assert [one["rank"] for one in objects] == list(range(world)), objects
    boxed = [{"from": 1}] if rank == 0 else [None]
    dist.broadcast_object_list(boxed, 0)
    assert boxed[0] == {"from": 1}
    pieces = [torch.empty(2) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), pieces, dst=0)
    if rank == 0:
        equal(torch.stack(pieces), torch.arange(float(world)).view(-1, 1).expand(world, 2),
              "gather")
    dist.scatter(target, [torch.full((4,), float(peer)) for peer in range(world)] if rank == 0
                 else None, src=0)
    equal(target, torch.full((4,), float(rank)), "scatter")


def exchanges(rank, world):
    outputs = [torch.empty(3) for _ in range(world)]
    dist.all_to_all(outputs, [torch.full((3,), float(10 * rank + peer)) for peer in range(world)])
    equal(torch.stack(outputs)[:, 0], torch.tensor([10.0 * peer + rank for peer in range(world)]),
          "all_to_all")
    whole = torch.empty(2 * world)
    dist.all_to_all_single(whole, torch.arange(2.0 * world) + 100 * rank)
    equal(whole, torch.cat([torch.arange(2.0) + 2 * rank + 100 * peer for peer in range(world)]),
          "all_to_all_single")
    tensor = torch.full((1025,), float(rank))
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
        equal(tensor, torch.full((1025,), 5.0), "recv")
    elif rank == 1:
        received = torch.empty(1025)
        dist.recv(received, 0)
        equal(received, torch.zeros(1025), "recv")
        dist.isend(torch.full((1025,), 5.0), 0).wait()
    after, before = (rank + 1) % world, (rank - 1) % world
    received = torch.empty(100000)
    operations = [dist.P2POp(dist.isend, torch.full((100000,), float(rank)), after),
                  dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    equal(received, torch.full((100000,), float(before)), "batch_isend_irecv")
    raises((ValueError, RuntimeError), dist.send, tensor, rank)


def groups(rank, world):
    halves = [list(range(0, world, 2)), list(range(1, world, 2))]
    made = [dist.new_group(half) for half in halves]
    mine = made[rank % 2]
    members = halves[rank % 2]
    tensor = torch.full((9,), float(rank))
    dist.all_reduce(tensor, group=mine)
    equal(tensor, torch.full((9,), float(sum(members))), "all_reduce in a group")
    everyone = dist.new_group()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=everyone)
    equal(tensor, torch.full((2,), float(world)), "all_reduce in a second world")
    dist.barrier(group=mine)
    dist.destroy_process_group(mine)
    several = [torch.full((count,), float(rank)) for count in (3, 5)]
    if hasattr(dist, "all_reduce_coalesced"):
        dist.all_reduce_coalesced(several)
        equal(several[1], torch.full((5,), world * (world - 1) / 2), "all_reduce_coalesced")
    dist.barrier()


def main():
    dist.init_process_group(BACKEND)
    rank, world = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == BACKEND and dist.is_nccl_available()
    for check in (all_reduce, broadcast_and_reduce, gathers, exchanges, groups):
        check(rank, world)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: all collectives are right", flush=True)


if __name__ == "__main__":
    main()
