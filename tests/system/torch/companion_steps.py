# SPDX-License-Identifier: Apache-2.0
"""What the companion measures of steps on a quadratic whose curvature is known, in one process: two
ranks' gradients are made here, each with noise of its own. Prints {"<kind>": [told, true, scale]},
where `true` is rate x curvature along the steps, of the gradients without noise.

sys.argv[1]: the folder of the package deft_companion.
"""

import gc
import json
import sys
import weakref

import torch

sys.path.insert(0, sys.argv[1])
from deft_companion import library as kinds  # noqa: E402
from deft_companion.steps import Steps  # noqa: E402

RANKS = 2
latest = []   # what measures, and its module
SHAPES = ((50, 40), (60,), (2, 3, 4, 5))


class Told:
    wants, layers, proof = kinds.PROOF, False, True

    def __init__(self, asks):
        self.said, self.asks = [], asks

    def note_steps(self, _module, rate_curvature, noise_scale):
        self.said.append((rate_curvature, noise_scale))
        return self.asks

    def stand_down(self, why):
        raise AssertionError(why)


class Module:
    number, watched, sets = 1, True, 1

    def __init__(self, parameters):
        self.iterations, self._refs = 0, [weakref.ref(parameter) for parameter in parameters]

    def live(self):
        return [parameter for parameter in (ref() for ref in self._refs) if parameter is not None]


class Bucket:
    """Of DistributedDataParallel: its memory stays, and has a rank's gradients before their sum."""

    looked_at = 0   # buckets

    def __init__(self, parameters):
        self._parameters, self.views, at = parameters, [], 7
        self.whole = torch.zeros(at + sum(map(torch.numel, parameters)))
        self.buffer = self.whole[at:]
        for parameter in parameters:
            self.views.append(self.whole.as_strided(parameter.shape, parameter.stride(), at))
            at += parameter.numel()

    def parameters(self):
        return self._parameters

    def comes(self, watched, place, shares):
        """One rank's, before the sum."""
        for view, share in zip(self.views, shares):
            view.copy_(share)
        if watched.takes_shares:
            Bucket.looked_at += 1
            watched.shares_come(place, self, self.buffer)

    def has(self, gradients):
        for view, gradient in zip(self.views, gradients):
            view.copy_(gradient)


def otherwise(gradient):
    """It has the same place in memory and other strides, as that of a depthwise convolution over
    channels_last has."""
    strides = [1 if size == 1 else stride
               for size, stride in zip(gradient.shape, gradient.stride())]
    return gradient.as_strided(gradient.shape, strides)


def measure(make, noise, curvature, factor=lambda optimizer, parameter: 1.0, steps=60,
            meanwhile=lambda iteration, parameters, optimizer: None, asks=1, first=18,
            shapes=SHAPES, sharpness=None, falls=None, views=True):
    """What is told, and what is true; `factor`: what Adam's second moment makes of the rate.
    `meanwhile`: what the job does right before a step; `first`: of the steps that are compared.
    `falls`: the iteration from which on curvature is a tenth, and gradients go on from there.
    `views`: gradients are in the memory of the buckets."""
    torch.manual_seed(3)
    kinds._found[:] = [Told(asks)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[2].data = parameters[2].data.to(memory_format=torch.channels_last)
    sharpness = sharpness or [curvature * torch.rand(shape) for shape in shapes]
    offsets = [torch.zeros(shape) for shape in shapes]
    optimizer, module = make(parameters), Module(parameters)
    watched, over, under = Steps(module, RANKS), 0.0, 0.0
    buckets = Bucket(parameters[:2]), Bucket(parameters[2:])
    latest[:] = watched, module
    for iteration in range(steps):
        if iteration == falls:
            offsets = [0.9 * h * p.detach() for p, h in zip(parameters, sharpness)]
            sharpness = [0.1 * h for h in sharpness]
        shares = [[(noise * torch.randn_like(p)).addcmul_(h, p.detach()).add_(b).div_(RANKS)
                   for p, h, b in zip(parameters, sharpness, offsets)] for _ in range(RANKS)]
        sums = [sum(of_ranks) for of_ranks in zip(*shares)]
        for place, (bucket, part) in enumerate(zip(buckets, (slice(2), slice(2, None)))):
            bucket.comes(watched, place, shares[0][part])
            bucket.has(sums[part])
        for p, view in zip(parameters, [*buckets[0].views, *buckets[1].views]):
            p.grad = otherwise(view if views else torch.empty_like(p).copy_(view))
        meanwhile(iteration, parameters, optimizer)
        before = [p.detach().clone() for p in parameters]
        watched.step_begins(optimizer)
        optimizer.step()
        module.iterations += 1
        if first <= iteration < (falls or first + 32):
            for p, w, h in zip(parameters, before, sharpness):
                step = p.detach() - w
                over += float((step * h * step).sum())
                under += float((step * step / factor(optimizer, p)).sum())
    rate = optimizer.param_groups[0]["lr"]
    said = kinds.library().said
    assert not said or said[0][0] == -1
    return [said[-1][0], float(rate) * over / max(under, 1e-30), said[-1][1]] if said else []


def of_adam(optimizer, parameter):
    state, group = optimizer.state[parameter], optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    step = float(state["step"])
    root = (state["exp_avg_sq"] / (1 - beta2 ** step)).sqrt() + group["eps"]
    return (1 - beta1) / (1 - beta1 ** step) / root


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, 0.05, **options)


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.3, weight_decay=0)


def slower(iteration, _parameters, optimizer):
    """A rate that falls to half behind the measurement."""
    if iteration == 54:
        optimizer.param_groups[0]["lr"] = 0.025


def rises(iteration, _parameters, optimizer):
    """A rate that begins with 0, for longer than a window."""
    optimizer.param_groups[0]["lr"] = 0.05 if iteration >= 20 else 0.0


def tensor(iteration, _parameters, optimizer):
    if iteration == 54:
        optimizer.param_groups[0]["lr"] = torch.tensor(0.05)


def breaks(iteration, parameters, _optimizer):
    if iteration == 30:
        parameters[0].grad[0, 0] = float("nan")


def bursts(iteration, parameters, _optimizer):
    """In the last step that is looked at."""
    if iteration == 47:
        parameters[1].grad[0] = float("inf")


def cuts(_iteration, parameters, _optimizer):
    """What is stepped is not what was summed, and nobody has said that the job clips."""
    for parameter in parameters:
        parameter.grad.mul_(0.5)


def rests(_iteration, _parameters, optimizer):
    optimizer.param_groups[0]["lr"] = 0.0


def uneven():
    """A large parameter that is nearly flat, wholly so where it begins, and small ones that are
    not: how many elements each of the sample stands for counts, and where they lie."""
    shapes = ((30, 30), (60,), (2, 3, 4, 5), (300, 40))
    sharpness = [torch.full(shape, 6.0) for shape in shapes[:3]] + [torch.full(shapes[3], 1.0)]
    sharpness[3][:30] = 0
    return measure(sgd(momentum=0.9), 3, 1, shapes=shapes, sharpness=sharpness)


def stands_down(iteration, _parameters, _optimizer):
    if iteration == 32:
        kinds.library().proof = False


def looks(**named):
    """At so many buckets."""
    Bucket.looked_at = 0
    measure(sgd(momentum=0.9), 3, 4, **named)
    return Bucket.looked_at


def kept():
    """How many parameters are still there when the job has let them go in the midst of it."""
    measure(sgd(momentum=0.9), 3, 4, steps=20)
    gc.collect()
    return len(latest[1].live())


if __name__ == "__main__":
    with_momentum = sgd(momentum=0.9)
    print(json.dumps({
        "quiet": measure(with_momentum, 0, 4),
        "noisy": measure(with_momentum, 3, 4),
        "flat": measure(with_momentum, 3, 0),
        "nesterov": measure(sgd(momentum=0.9, nesterov=True), 3, 4),
        "plain": measure(sgd(), 3, 4),
        "adam": measure(adam, 0.3, 4, of_adam),
        "slower": measure(with_momentum, 3, 4, meanwhile=slower),
        "depthwise": measure(with_momentum, 3, 4, shapes=(*SHAPES, (7, 1, 3, 3))),
        "rises": measure(with_momentum, 3, 4, meanwhile=rises, steps=75, first=37),
        "tensor": measure(with_momentum, 3, 4, meanwhile=tensor),
        "breaks": measure(with_momentum, 3, 4, meanwhile=breaks),
        "bursts": measure(sgd(), 3, 4, meanwhile=bursts),
        "rests": measure(with_momentum, 3, 4, meanwhile=rests, steps=135),
        "uneven": uneven(),
        "copies": measure(with_momentum, 3, 4, views=False),
        "cuts": measure(with_momentum, 0, 4, meanwhile=cuts, views=False, first=28),
        "falls": measure(with_momentum, 1, 4, falls=34),
        "amsgrad": measure(lambda ps: torch.optim.Adam(ps, 0.02, amsgrad=True), 3, 4),
        "looks": [looks(), looks(asks=0), looks(meanwhile=stands_down)],
        "kept": kept()}))
