# SPDX-License-Identifier: Apache-2.0
"""Trains several small models one after the other with DistributedDataParallel, each with a process
group of its own.

Started by run.py, a process per rank; everything deft does, it does to an unmodified loop. Rank 0
appends a line of JSON per training to --out. With --warm-up N the first iterations are slowed down,
so that a plan is agreed on before iteration N however busy the machine is: results then depend on
the seed, not on timing. What deft's counters say about that is recorded.
"""

import importlib.util
import json
import os
import runpy
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from torch.nn.parallel import DistributedDataParallel

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common.arguments import OneLineParser
from ..jobs import ddp

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Small models get several buckets, as large ones have at DDP's own sizes.
BUCKET_BYTES = 24 * 1024
# The plan is made from the first ten iterations or so; then the job rests while the ranks prepare
# it.
PACE_S, REST_AFTER, REST_S = 0.03, 16, 1.5


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


counters = load(os.path.join(ROOT, "tools", "python", "deft.py"), "deft")


def tumors():
    """scikit-learn's breast cancer data, standardised: 30 measures of a cell nucleus, benign or
    malignant."""
    data = load_breast_cancer()
    order = numpy.random.RandomState(569).permutation(len(data.target))
    measures = data.data[order]
    measures = (measures - measures.mean(axis=0)) / measures.std(axis=0)
    inputs = torch.tensor(measures, dtype=torch.float32)
    labels = torch.tensor(data.target[order], dtype=torch.int64)
    return inputs[:-169], labels[:-169], inputs[-169:], labels[-169:]


def make(model):
    """(network, data) of a model's name."""
    if model == "tumor-mlp":
        return nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                             nn.Linear(128, 2)), tumors()
    return ddp.make_model(model), ddp.load_data(torch.device("cpu"))


def right(network, inputs, labels):
    """Share of right answers. Every rank looks at all of them: replicas are equal, and nothing
    is sent."""
    network.eval()
    with torch.no_grad():
        share = (network(inputs).argmax(dim=1) == labels).float().mean().item()
    network.train()
    return share


def train(work, warm_up):
    """One training; what goes into its line."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(work["seed"])
    network, (inputs, labels, test_inputs, test_labels) = make(work["model"])
    job = DistributedDataParallel(network, bucket_cap_mb=BUCKET_BYTES / 2 ** 20)
    optimizer = ddp.make_optimizer(work["optimizer"], job.parameters(), work["lr"])
    losses, accuracies, times, iteration = [], [], [], 0
    before = counters.stats()
    for epoch in range(work["epochs"]):
        total, plan = 0.0, ddp.batches(len(inputs), work["batch"], work["seed"], epoch, rank, world)
        for indices in plan:
            start = time.perf_counter()
            total += ddp.update(job, optimizer, inputs[indices], labels[indices]).item()
            times.append(time.perf_counter() - start)
            iteration += 1
            if iteration <= warm_up:
                time.sleep(max(0.0, PACE_S - times[-1]) +
                           (REST_S if iteration == REST_AFTER else 0.0))
        losses.append(total / len(plan))
        accuracies.append(right(network, test_inputs, test_labels))
    stats = counters.stats()
    sums = [None] * world
    dist.all_gather_object(sums, (ddp.checksum(network), losses[-1]))
    result = {"accuracy": accuracies[-1], "epoch_accuracies": accuracies, "iterations": iteration,
              "epoch_losses": [round(value, 6) for value in losses],
              "checksum": f"{sums[0][0]:08x}", "replicas_equal": len({one[0] for one in sums}) == 1,
              "median_ms": 1e3 * sorted(times)[len(times) // 2]}
    if stats:  # they count over the whole process
        result["plan"] = {name: stats[name] - before[name]
                          for name in ("switched", "iterations", "delivered", "zeroed_calls",
                                       "dropped", "guard_decisions")}
    return result


def main():
    parser = OneLineParser(description="Trains what --work lists; run.py starts it.")
    parser.add_argument("--work", required=True,
                        help="JSON: a list of {model, optimizer, lr, seed, epochs, batch}")
    parser.add_argument("--out", required=True)
    parser.add_argument("--folder", required=True, help="where the ranks meet")
    parser.add_argument("--warm-up", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with open(options.work, encoding="utf-8") as file:
        works = json.load(file)
    for number, work in enumerate(works):
        dist.init_process_group("nccl", init_method=f"file://{options.folder}/store-{number}",
                                rank=rank, world_size=world)
        result = train(work, options.warm_up)
        if rank == 0:
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps({**work, **result}) + "\n")
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
