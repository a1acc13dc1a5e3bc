# SPDX-License-Identifier: Apache-2.0
"""Trainings that take a turn while layers wait for their own gradients: what is around them
changes, or something comes between. As layer_kinds.py, which runs them."""

import gc
import os
import sys
import threading
import time
from unittest import mock

import layer_changes
import layer_kinds as kinds
import torch
import torch.distributed as dist
from layer_changes import TURN, turns
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.dlpack import from_dlpack

# What is around them.

def leave_the_others(job):
    """As an elastic job does when a host is lost: each goes on alone."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    job.model._update_process_group(groups[kinds.RANK])


def convert(inner):
    """By swapping each parameter for another, there and back."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        inner.double()
        inner.load_state_dict({name: value * 0.5 for name, value in inner.state_dict().items()})
        inner.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def convert_apart(job):
    """DistributedDataParallel does not bear that, so there is another one afterwards."""
    inner, job.model = job.model.module, None
    gc.collect()
    convert(inner)
    job.model = DistributedDataParallel(inner, process_group=job.group, bucket_cap_mb=0.003)


def by_hand(group):
    """Without DistributedDataParallel."""
    job = kinds.Job(group, kinds.network, kinds.adam, {})
    model, job.model = job.model.module, None
    gc.collect()

    def step(iteration):
        points, labels = next(job.batches)
        job.optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size()
        job.optimizer.step()
        if iteration == TURN:
            convert(model)
    return job, step


def sums_under_way():
    module = sys.modules.get("deft_companion.layers")
    return list(module.layers.sums) if module else []


# What comes between.

class Unsent:
    """Of a sum of which a plan has yet to send some while backward runs."""

    def wait(self, broken_off=False):
        if Forks.forking:
            raise RuntimeError("a sum is waited for too early")


class Forks(torch.autograd.Function):
    """In the middle of backward, as a thread that loads data does."""

    forking = False

    @staticmethod
    def forward(ctx, tensor, job):
        ctx.job = job
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.job.iteration > TURN and ctx.job.iteration % 4 == 0:
            Forks.forking = True
            worker = os.fork()
            if worker == 0:
                os._exit(0)
            Forks.forking = False
            code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            ctx.job.seen.append(torch.tensor(code))
        return gradient, None


class Passes(nn.Module):
    """By what `act` does with it."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, points):
        return self.act(points)


def fork_inside(job):
    module = sys.modules.get("deft_companion.left_sums")
    if module:
        mock.patch.object(module, "take", lambda *_: Unsent()).start()
    job.model.module.insert(2, Passes(lambda points: Forks.apply(points, job)))


def counts(job, iteration):
    job.iteration = iteration
    job.plain(iteration)


class Slow:
    """The work of a sum, for which another thread waits at length."""

    def __init__(self, work, begun):
        self._work, self._begun = work, begun

    def wait(self):
        self._begun.set()
        time.sleep(0.2)
        self._work.wait()


def read_aside(job):
    """By another thread, while forward begins in this one."""
    begun, copies = threading.Event(), []
    for one in sums_under_way():
        one.work = Slow(one.work, begun)
    if not sums_under_way():
        begun.set()
    thread = threading.Thread(target=lambda: copies.append(job.kept[0].detach().clone()))
    thread.start()
    begun.wait()
    job.seen.append(job.loss().detach())
    thread.join()
    job.seen.extend(copies)


class Dwells(torch.autograd.Function):
    """A backward that lasts until it is told to end."""

    inside, leave = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        Dwells.inside.set()
        Dwells.leave.wait()
        return gradient


def beside(job, iteration):
    """Another thread is in a backward of its own."""
    if iteration <= TURN or iteration % 3:
        job.plain(iteration)
        return
    Dwells.inside.clear()
    Dwells.leave.clear()
    own = torch.ones(4, requires_grad=True)
    thread = threading.Thread(target=lambda: Dwells.apply(own).sum().backward())
    thread.start()
    Dwells.inside.wait()
    job.plain(iteration)
    Dwells.leave.set()
    thread.join()
    job.seen.append(own.grad)


# On a GPU's streams, of which a stand-in tells.

class Stream:
    def __init__(self):
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


MAIN, ASIDE = Stream(), Stream()


class Fork(nn.Module):
    """A part of it runs on another stream, which waits for the first one before anything runs."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = nn.Linear(12, 12), nn.Linear(12, 12), kinds.network()
        self.on = MAIN

    def forward(self, points):
        found = torch.tanh(self.one(points))
        self.on = ASIDE if getattr(self, "forks", False) else MAIN
        found = found + self.other(points)
        self.on = MAIN
        return self.last(found)


def streams(job):
    for name in ("surroundings", "layers", "first_use"):
        module = sys.modules.get("deft_companion." + name)
        if module:
            mock.patch.object(module, "stream_of", lambda device: job.model.module.on,
                              create=True).start()


def forks_at_last(job, iteration):
    job.plain(iteration)
    job.model.module.forks = iteration >= TURN
    if iteration == TURN + 2:
        watched = "deft_companion.layers" in sys.modules
        job.seen.append(torch.tensor(ASIDE.waited_for == [MAIN] * watched))


# What forward is made in.

class Slopes(nn.Module):
    """Layers whose first use is in a transform."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = kinds.network()[:4], nn.Linear(12, 5)

    def forward(self, points):
        def energy(points):
            return self.inner(points).square().sum()
        return self.head(points + torch.func.grad(energy)(points))


class Adapts(nn.Module):
    """By a step along its own gradient (as MAML does)."""

    def __init__(self):
        super().__init__()
        self.inner = kinds.network()

    def forward(self, points):
        def energy(weights):
            return torch.func.functional_call(self.inner, weights, points).square().mean()
        weights = dict(self.inner.named_parameters())
        slopes = torch.func.grad(energy)(weights)
        weights = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        return torch.func.functional_call(self.inner, weights, points)


class Product(torch.autograd.Function):
    """By code that asks nobody, as an extension's may be."""

    @staticmethod
    def forward(ctx, points, weight):
        ctx.save_for_backward(points, weight)
        return points.mm(from_dlpack(torch._C._to_dlpack(weight)).t())

    @staticmethod
    def backward(ctx, gradient):
        points, weight = ctx.saved_tensors
        return gradient.mm(weight), gradient.t().mm(points)


class Applies(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(12, 12), kinds.network()

    def forward(self, points):
        return self.inner(Product.apply(points, self.first.weight) + self.first.bias)


# What fails.

class Fails:
    """The work of a sum that fails."""

    def __init__(self, work):
        self._work = work

    def wait(self):
        self._work.wait()
        raise RuntimeError("a test's")


def fail_sums():
    sums = sums_under_way()
    for one in sums:
        one.work = Fails(one.work)
    return len(sums)


def fails_once(job, iteration):
    """Weights are torn then, so the digest is of what was raised alone."""
    if iteration > TURN:
        return
    job.plain(iteration)
    if iteration < TURN:
        return
    failed, raised = fail_sums(), 0
    for _ in range(3):
        try:
            job.loss()
        except RuntimeError:
            raised += 1
    other = dist.new_group()
    job.plain(iteration)
    job.plain(iteration)
    again = fail_sums()
    dist.destroy_process_group(other)
    job.kept, job.optimizer = [], kinds.adam(nn.Linear(1, 1).parameters())
    job.seen = [torch.tensor([raised == (failed > 0), again == failed])]


def alone(kind):
    """What another one has put in the place of deft's functions goes."""
    def begin(group):
        mock.patch.stopall()
        return kind(group)
    return begin


KINDS = {
    "leaves": kinds.job(iterate=turns(leave_the_others)),
    "converts": kinds.job(iterate=turns(convert_apart)),
    "converts_by_hand": by_hand,
    "fails_once": kinds.job(iterate=fails_once),
    "streams": kinds.job(make_model=Fork, iterate=forks_at_last, prepare=streams,
                         bucket_cap_mb=25),
    "read_aside": kinds.job(iterate=turns(read_aside), bucket_cap_mb=25),
    "beside": kinds.job(iterate=beside),
    "transforms": kinds.job(make_model=Slopes),
    "adapts": kinds.job(make_model=Adapts),
    "applies": kinds.job(make_model=Applies),
    "forks_inside": kinds.job(iterate=counts, prepare=fork_inside),
    **layer_changes.KINDS,
}
if not hasattr(DistributedDataParallel, "_update_process_group"):
    del KINDS["leaves"]
if not hasattr(torch, "func"):
    del KINDS["transforms"], KINDS["adapts"]
if not hasattr(torch.utils, "swap_tensors"):
    del KINDS["converts"], KINDS["converts_by_hand"]

if __name__ == "__main__":
    kinds.KINDS = {name: alone(kind) for name, kind in KINDS.items()}
    kinds.main()
