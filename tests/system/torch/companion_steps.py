# SPDX-License-Identifier: Apache-2.0
"""What the companion measures of steps on a quadratic whose curvature is known, in one process: two
ranks' gradients are made here, each with noise of its own. Prints {"<kind>": [told, true, scale]},
where `true` is rate x curvature along the steps, of the gradients without noise.

sys.argv[1]: the folder of the package deft_companion.
"""

import json
import sys

import torch

sys.path.insert(0, sys.argv[1])
from deft_companion import library as kinds  # noqa: E402
from deft_companion.steps import Steps  # noqa: E402

RANKS = 2
SHAPES = ((50, 40), (60,), (2, 3, 4, 5))


class Told:
    wants, layers, proof = kinds.PROOF, False, True

    def __init__(self):
        self.said = []

    def note_steps(self, _module, rate_curvature, noise_scale):
        self.said.append((rate_curvature, noise_scale))

    def stand_down(self, why):
        raise AssertionError(why)


class Module:
    number, watched, sets = 1, True, 1

    def __init__(self, parameters):
        self.iterations, self._parameters = 0, parameters

    def live(self):
        return self._parameters


class Bucket:
    def __init__(self, parameters, gradients):
        self._both = parameters, gradients

    def parameters(self):
        return self._both[0]

    def gradients(self):
        return self._both[1]


def measure(make, noise, curvature, factor=lambda optimizer, parameter: 1.0, steps=60):
    """What is told, and what is true; `factor`: what Adam's second moment makes of the rate."""
    torch.manual_seed(3)
    kinds._found[:] = [Told()]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    parameters[2].data = parameters[2].data.to(memory_format=torch.channels_last)
    sharpness = [curvature * torch.rand(shape) for shape in SHAPES]
    optimizer, module = make(parameters), Module(parameters)
    watched, over, under = Steps(module, RANKS), 0.0, 0.0
    for iteration in range(steps):
        shares = [[(noise * torch.randn_like(p)).addcmul_(h, p.detach()).div_(RANKS)
                   for p, h in zip(parameters, sharpness)] for _ in range(RANKS)]
        watched.share_comes(0, Bucket(parameters[:2], shares[0][:2]))
        watched.share_comes(1, Bucket(parameters[2:], shares[0][2:]))
        for p, *of_ranks in zip(parameters, *shares):
            p.grad = torch.empty_like(p).copy_(sum(of_ranks))
        before = [p.detach().clone() for p in parameters]
        watched.step_begins(optimizer)
        optimizer.step()
        module.iterations += 1
        if 18 <= iteration < 50:
            for p, w, h in zip(parameters, before, sharpness):
                step = p.detach() - w
                over += float((step * h * step).sum())
                under += float((step * step / factor(optimizer, p)).sum())
    rate = optimizer.param_groups[0]["lr"]
    said = kinds.library().said
    assert not said or said[0][0] == -1
    return [said[-1][0], rate * over / under, said[-1][1]] if said else []


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


def late(parameters):
    """A rate that falls to half behind the measurement."""
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
    step, steps = optimizer.step, [0]

    def counted():
        steps[0] += 1
        optimizer.param_groups[0]["lr"] = 0.05 if steps[0] < 55 else 0.025
        step()
    optimizer.step = counted
    return optimizer


if __name__ == "__main__":
    with_momentum = sgd(momentum=0.9)
    print(json.dumps({
        "quiet": measure(with_momentum, 0, 4),
        "noisy": measure(with_momentum, 3, 4),
        "flat": measure(with_momentum, 3, 0),
        "nesterov": measure(sgd(momentum=0.9, nesterov=True), 3, 4),
        "plain": measure(sgd(), 3, 4),
        "adam": measure(adam, 0.3, 4, of_adam),
        "slower": measure(late, 3, 4),
        "amsgrad": measure(lambda ps: torch.optim.Adam(ps, 0.02, amsgrad=True), 3, 4)}))
