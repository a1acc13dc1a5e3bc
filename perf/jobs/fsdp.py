# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of ddp.py with FSDP2 (fully_shard): parameters, gradients and optimizer
state are sharded over the ranks of a group, gradients travel by reduce-scatter and parameters by
all-gather. With --replicas the groups are copies of each other, whose shards are summed by
all-reduce (HSDP).

Started as ddp.py is, whose data, model and results it has:

    torchrun --nproc-per-node 4 fsdp.py --replicas 2 --iterations 100 --json result.json
"""

import hashlib
import os
import statistics
import time

import ddp  # the folder of a script is where it imports from
import torch
import torch.distributed as dist

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:
    raise SystemExit(f"fsdp.py: PyTorch {torch.__version__} has no fully_shard; it needs 2.6 or "
                     "later") from None


def sharded_model(options, device, world):
    """The model, each of its layers a unit of its own."""
    torch.manual_seed(options.seed)
    model = ddp.make_model(options.model).to(device)
    if options.replicas > 1:
        mesh = init_device_mesh(device.type, (options.replicas, world // options.replicas),
                                mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def digest(model):
    """Of all parameters, whole: equal on ranks that have gathered the same shards."""
    value = hashlib.sha256()
    for parameter in model.parameters():
        value.update(parameter.full_tensor().detach().cpu().numpy().tobytes())
    return value.hexdigest()[:16]


def train(options, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    model = sharded_model(options, device, world)
    optimizer = ddp.make_optimizer(options.optimizer, model.parameters(), options.lr)
    images, labels, _, _ = ddp.load_data(device)
    times, losses, epoch, iteration = [], [], 0, 0
    while iteration < options.iterations:
        plan = ddp.batches(len(images), options.batch, options.seed, epoch, rank, world)
        plan = plan[:options.iterations - iteration]
        total = torch.zeros((), device=device)
        for indices in plan:
            start = time.perf_counter()
            loss = ddp.update(model, optimizer, images[indices], labels[indices])
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
            total += loss.detach()
            iteration += 1
        total /= len(plan)
        dist.all_reduce(total)
        losses.append(total.item() / world)
        epoch += 1
    digests = [None] * world
    dist.all_gather_object(digests, digest(model))
    timed = times[ddp.WARMUP_ITERATIONS:] or times
    return {
        "format": "fsdp-job", "version": 1, "settings": vars(options), "world_size": world,
        "device": device.type, "torch": torch.__version__, "epochs": epoch, "iterations": iteration,
        "loss": losses[-1], "epoch_losses": losses, "replicas_equal": len(set(digests)) == 1,
        "checksum": digests[0],
        "iteration_ms": {"median": statistics.median(timed), "n": len(timed),
                         "raw": [round(value, 2) for value in times]},
    }


def parse():
    parser = ddp.OneLineParser(description="Trains a small transformer on the digits data with "
                                           "FSDP2 over NCCL.")
    parser.add_argument("--model", choices=["transformer", "small", "tiny-transformer"],
                        default="transformer")
    parser.add_argument("--replicas", type=int, default=1, metavar="N",
                        help="N copies, each sharded over its part of the ranks (default 1)")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and iteration")
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "nesterov", "adam", "adamw"],
                        default="adam")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes the results there")
    options = parser.parse_args()
    for name in ("replicas", "iterations", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")
    if int(os.environ.get("WORLD_SIZE", "1")) % options.replicas:
        parser.error(f"--replicas {options.replicas} does not divide the number of ranks")
    return options


if __name__ == "__main__":
    ddp.run(parse(), train)
