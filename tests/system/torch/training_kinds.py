# SPDX-License-Identifier: Apache-2.0
"""Trainings whose large sums are not all what a gradient is, small and one after the other, each
over a communicator of its own.

OUT: rank 0 writes {"<kind>": {"digest": "...", "equal": true, "iterations": n}} there. KINDS: a
comma list (default: all). ITERATIONS (40) and PACE (seconds from one to the next, 0.02).
UNTIL_PLANNED=1: goes on until deft has a plan in force, five iterations more, and has no digest.
"""

import contextlib
import copy
import hashlib
import io
import json
import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ITERATIONS = int(os.environ.get("ITERATIONS", "40"))
PACE = float(os.environ.get("PACE", "0.02"))
UNTIL_PLANNED = os.environ.get("UNTIL_PLANNED") == "1"
PATIENCE = 1500   # iterations until a plan
WIDTH = 48


def network(inputs=12, outputs=5):
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
                         nn.Linear(WIDTH, outputs))


class Sums:
    """All-reduces through buffers that stay, as a caching allocator or a CUDA graph gives them."""

    def __init__(self, group):
        self.group, self.buffers = group, {}

    def __call__(self, tensor, key):
        buffer = self.buffers.setdefault(key, torch.empty(tensor.shape))
        buffer.copy_(tensor)
        dist.all_reduce(buffer, group=self.group)
        return buffer.clone()


class Shared(torch.autograd.Function):
    """Sums what goes forward through it, or what comes back, over the ranks."""

    @staticmethod
    def forward(ctx, tensor, sums, key, forward):
        ctx.sums, ctx.key, ctx.forward = sums, key, forward
        return sums(tensor, key) if forward else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient if ctx.forward else ctx.sums(gradient, ctx.key), None, None, None


class Gathered(torch.autograd.Function):
    """The features of all ranks; their gradients are summed for whoever made them."""

    @staticmethod
    def forward(ctx, features, sums):
        ctx.sums = sums
        pieces = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, features.contiguous(), group=sums.group)
        return torch.stack(pieces)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.sums(gradient, "features")[dist.get_rank()], None


def samples(rank, count=16, inputs=12):
    """A stream of batches of this rank: points, and which of five corners each is nearest to."""
    corners = torch.randn(5, inputs, generator=torch.Generator().manual_seed(11))
    draw = torch.Generator().manual_seed(50 + rank)
    while True:
        labels = torch.randint(5, (count,), generator=draw)
        yield corners[labels] + 0.4 * torch.randn(count, inputs, generator=draw), labels


def average(tensor, group):
    dist.all_reduce(tensor, group=group)
    return tensor / dist.get_world_size()


def same_start(model, group):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0, group=group)
    return model


# Each kind: function(group) -> (one iteration, the parameters).

def heavy_ball(group):
    """Nothing but DDP, at a rate that is well for plain."""
    model = DistributedDataParallel(network(), process_group=group)
    optimizer, batches = torch.optim.SGD(model.parameters(), 0.05,
                                         momentum=0.9), samples(dist.get_rank())

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
    return step, list(model.parameters())


def by_hand(group):
    """No DDP: every gradient is averaged by itself, asynchronously; an accuracy now and then."""
    model = same_start(network(), group)
    optimizer, batches = torch.optim.Adam(model.parameters(), 1e-3), samples(dist.get_rank())

    def step(iteration):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        works = [dist.all_reduce(parameter.grad, group=group, async_op=True)
                 for parameter in reversed(list(model.parameters()))]
        for work in works:
            work.wait()
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if iteration % 7 == 6:
            average((model(points).argmax(1) == labels).float().mean().reshape(1), group)
    return step, list(model.parameters())


def averaged(group):
    """Every rank trains alone; every second time the parameters themselves are averaged, in one
    buffer."""
    model = same_start(network(), group)
    parameters = list(model.parameters())
    optimizer, batches, flat = torch.optim.Adam(parameters,
                                                2e-3), samples(dist.get_rank()), Sums(group)

    def step(iteration):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        if iteration % 2:
            mean = flat(nn.utils.parameters_to_vector(parameters).detach(),
                        "all") / dist.get_world_size()
            nn.utils.vector_to_parameters(mean, parameters)
    return step, parameters


def averager(group):
    """The same by PyTorch's own averager."""
    model = same_start(network(), group)
    optimizer, batches = torch.optim.Adam(model.parameters(), 2e-3), samples(dist.get_rank())
    mean = PeriodicModelAverager(period=2, warmup_steps=0, process_group=group)

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
        mean.average_parameters(model.parameters())
    return step, list(model.parameters())


def divided(group):
    """Tensor parallelism: activations are summed forward and their gradients backward; no
    weight's gradient is sent."""
    sums, batches = Sums(group), samples(0)
    first, last = nn.Linear(12, WIDTH), nn.Linear(WIDTH, 5)
    torch.manual_seed(70 + dist.get_rank())
    halves = [(nn.Linear(WIDTH, 20 + 4 * layer), nn.Linear(20 + 4 * layer, WIDTH, bias=False))
              for layer in range(2)]
    parameters = [*first.parameters(), *last.parameters()]
    own = [parameter for pair in halves for half in pair for parameter in half.parameters()]
    optimizer = torch.optim.Adam(parameters + own, 1e-3)

    def step(_):
        points, labels = next(batches)
        hidden = first(points)
        for layer, (into, out) in enumerate(halves):
            part = out(torch.tanh(into(Shared.apply(hidden, sums, ("back", layer), False))))
            hidden = hidden + Shared.apply(part, sums, ("forth", layer), True)
        optimizer.zero_grad()
        cross_entropy(last(hidden), labels).backward()
        optimizer.step()
    return step, parameters


def contrasted(group):
    """Features of all ranks are compared with each other: their gradients are summed beside
    DDP's."""
    model = DistributedDataParallel(network(outputs=32), process_group=group)
    sums, batches = Sums(group), samples(dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(_):
        points, _labels = next(batches)
        views = nn.functional.normalize(model(torch.cat([points, points + 0.05])), dim=1)
        one, other = Gathered.apply(views, sums).chunk(2, dim=1)
        one, other = one.reshape(-1, 32), other.reshape(-1, 32)
        optimizer.zero_grad()
        cross_entropy(one @ other.T / 0.2, torch.arange(len(one))).backward()
        optimizer.step()
    return step, list(model.parameters())


def in_turns(group):
    """A generator and a discriminator, each under DDP with an optimizer of its own."""
    maker = DistributedDataParallel(network(8, 12), process_group=group)
    judge = DistributedDataParallel(network(12, 1), process_group=group)
    optimizers = [torch.optim.Adam(model.parameters(), 5e-4, betas=(0.5, 0.999))
                  for model in (maker, judge)]
    batches, draw = samples(dist.get_rank()), torch.Generator().manual_seed(90 + dist.get_rank())

    def step(_):
        real, _labels = next(batches)
        made = maker(torch.randn(len(real), 8, generator=draw))
        optimizers[1].zero_grad()
        (mse_loss(judge(real), torch.ones(len(real), 1)) +
         mse_loss(judge(made.detach()), torch.zeros(len(real), 1))).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge.requires_grad_(False)
        mse_loss(judge.module(made), torch.ones(len(real), 1)).backward()
        judge.requires_grad_(True)
        optimizers[0].step()
    return step, [*maker.parameters(), *judge.parameters()]


def low_rank(group):
    """PyTorch's PowerSGD: the factors P and Q are summed, Q is made of the summed P."""
    model = DistributedDataParallel(network(), process_group=group)
    state = powerSGD_hook.PowerSGDState(process_group=group, matrix_approximation_rank=2,
                                        start_powerSGD_iter=4)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer, batches = torch.optim.Adam(model.parameters(), 1e-3), samples(dist.get_rank())

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
    return step, list(model.parameters())


def accumulated(group):
    """A trainer: accumulation with a short last window, clipping, a schedule, evaluations, a
    checkpoint that is read again."""
    model = DistributedDataParallel(network(), process_group=group)
    optimizer, batches = torch.optim.AdamW(model.parameters(), 2e-3), samples(dist.get_rank())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(iteration):
        window = 1 if iteration % 8 == 7 else 3
        optimizer.zero_grad()
        for micro in range(window):
            points, labels = next(batches)
            with contextlib.nullcontext() if micro + 1 == window else model.no_sync():
                (cross_entropy(model(points), labels) / window).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if iteration % 8 == 7:
            average(torch.tensor([float(iteration), 1.0]), group)
            kept = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
            kept.seek(0)
            model.load_state_dict(torch.load(kept)["model"])
            dist.barrier(group=group)
    return step, list(model.parameters())


def evaluated(group):
    """A large table of counts is summed now and then; the loss decides about the rate; the best
    weights are put back."""
    model = DistributedDataParallel(network(), process_group=group)
    optimizer, batches = torch.optim.SGD(model.parameters(), 0.1,
                                         momentum=0.9), samples(dist.get_rank())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    best = [float("inf"), None]

    def step(iteration):
        points, labels = next(batches)
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        if iteration % 6 == 5:
            table = torch.zeros(5, 100)
            table[labels, model(points).argmax(1)] += 1
            dist.all_reduce(table, group=group)
            mean = average(loss.detach().reshape(1), group).item()
            plateau.step(mean)
            worse = (torch.tensor([float(mean > best[0])]) if dist.get_rank() == 0
                     else torch.zeros(1))
            dist.all_reduce(worse, group=group)
            if worse.item() > 0:
                model.load_state_dict(best[1])
            else:
                best[:] = mean, copy.deepcopy(model.state_dict())
    return step, list(model.parameters())


class Points(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 0:
            subprocess.run(["/bin/true"], check=True)
        return torch.full((12,), index / 32.0), index % 5


def forked(group):
    """Workers that are forked from a rank which has a communicator, and start programs
    themselves."""
    model = DistributedDataParallel(network(), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(Points(), 8, num_workers=1, persistent_workers=True)

    def forever():
        while True:
            yield from loader
    batches = forever()

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
    return step, list(model.parameters())


KINDS = {kind.__name__: kind for kind in (heavy_ball, by_hand, averaged, averager, divided,
                                          contrasted, in_turns, low_rank, accumulated, evaluated,
                                          forked)}


def iterations(group):
    """The numbers of the iterations; the same on all ranks."""
    if not UNTIL_PLANNED:
        yield from range(ITERATIONS)
        return
    import deft
    before = deft.stats()["switched"]
    since = None
    for iteration in range(PATIENCE):
        yield iteration
        here = average(torch.tensor([float(deft.stats()["switched"] > before)]), group).item() == 1
        since = iteration if here and since is None else since
        if since is not None and iteration >= since + 5:
            return


def run(kind):
    torch.manual_seed(3)
    group = dist.new_group()
    step, parameters = KINDS[kind](group)
    count = 0
    for iteration in iterations(group):
        time.sleep(PACE)
        step(iteration)
        count += 1
    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes()
                                     for parameter in parameters)).hexdigest()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, digest)
    dist.destroy_process_group(group)
    return {"digest": digest, "equal": len(set(every)) == 1, "iterations": count}


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
