# SPDX-License-Identifier: Apache-2.0
"""Where the margin of priced plans comes from (shim/control/plan_price.h): trainings in one
process, at several learning rates, with what the companion measures of their steps.

    python3 perf/accuracy/price.py [--models tiny-mlp] [--optimizers momentum] [--batches 8,32]
        [--seeds 2] [--out perf/results/price]

Gradients come late by one from iteration 52 on, as they are and as DEFT_PREDICT=auto extrapolates
them. A table has rate x curvature as companion/deft_companion/steps.py measured it before, and the
accuracies; bold is what has lost more than two points. Nothing else of deft runs here. Exit codes:
0 done; 2 wrong usage; 3 Python lacks a module; 4 it failed.
"""

import os
import runpy
import statistics
import sys
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits
from . import one_process
from .run import RATES

POLICIES = ("plain", "late", "predicted")
FACTORS = (0.2, 0.5, 1, 2, 4)   # of the rate that is best for the plain job
WARM_UP = 52                    # iterations; the companion's answer comes before
LOST = 2                        # points
# A quarter of where everything late by one diverges on a quadratic, with momentum 0.9
# (planner/stability.h): as it is, and as DEFT_PREDICT=auto delivers it.
BOUNDS = {"momentum": (0.025, 0.122), "nesterov": (0.062, 0.090), "adam": (0.025, 0.062)}


class Told:
    """What the companion says to the library."""

    proof = True

    def __init__(self):
        self.rate_curvature = self.why = None

    def note_steps(self, _module, rate_curvature, _noise_scale):
        self.rate_curvature = rate_curvature
        return 1

    def stand_down(self, why):
        self.why = why   # an error of the companion's goes no further


class Module:
    """As the companion knows one."""

    number, watched, sets = 1, True, 1

    def __init__(self, parameters):
        self.iterations, self.live = 0, lambda: parameters


class Bucket:
    """One for all gradients of a module: what is in its memory is a rank's, and then their sum."""

    def __init__(self, parameters):
        import torch
        self.parameters = lambda: parameters
        self.buffer = torch.empty(sum(parameter.numel() for parameter in parameters))

    def has(self, gradients):
        at = 0
        for gradient in gradients:
            self.buffer[at:at + gradient.numel()] = gradient.reshape(-1)
            at += gradient.numel()


def delivered(policy, optimizer, sums):
    """What the update gets, of the gradients so far."""
    if policy == "plain":
        return sums[-1]
    late, before, first = sums[-2], sums[-3], sums[-4]
    if policy == "late":
        return late
    return [one_process.extrapolated(optimizer, *sums) for sums in zip(late, before, first)]


def train(model_name, optimizer_name, rate, policy, batch, seed):
    """(test accuracy in %, rate x curvature)"""
    import torch
    from deft_companion import library
    from deft_companion.steps import Steps

    from ..jobs import ddp
    torch.manual_seed(seed)
    told = Told()
    library._found[:] = [told]
    model = ddp.make_model(model_name)
    parameters = list(model.parameters())
    optimizer = ddp.make_optimizer(optimizer_name, parameters, rate)
    images, labels, test_images, test_labels = ddp.load_data(torch.device("cpu"))
    module, sums = Module(parameters), []
    steps, bucket = Steps(module, 2), Bucket(parameters)
    for both in one_process.iterations(model_name, batch, seed, len(images)):
        shares = [torch.autograd.grad(
            torch.nn.functional.cross_entropy(model(images[one]), labels[one]) / 2, parameters)
            for one in both]
        bucket.has(shares[0])
        if steps.takes_shares:
            steps.shares_come(0, bucket, bucket.buffer)
        sums = [*sums[-3:], [sum(pair).contiguous() for pair in zip(*shares)]]
        late = module.iterations >= WARM_UP
        for parameter, gradient in zip(parameters, delivered(policy if late else "plain",
                                                             optimizer_name, sums)):
            parameter.grad = gradient.clone()
        bucket.has(sums[-1])
        if not late:
            steps.step_begins(optimizer)
        optimizer.step()
        module.iterations += 1
    if told.why or told.rate_curvature is None or told.rate_curvature < 0:
        raise RuntimeError(f"the steps were not measured: {told.why}")
    return one_process.accuracy(model, test_images, test_labels), told.rate_curvature


def row(cell, accuracies):
    """A line of the table: means over the seeds, and what has lost is bold."""
    measured = statistics.median(one for _, one in accuracies["plain"])
    means = {policy: statistics.mean(one for one, _ in some) for policy, some in accuracies.items()}
    texts = [f"{means['plain']:.1f}"]
    for policy, bound in zip(POLICIES[1:], BOUNDS[cell["optimizer"]]):
        text = f"{means[policy]:.1f}"
        text = f"**{text}**" if means[policy] < means["plain"] - LOST else text
        texts.append(text + (" x" if measured > bound else ""))
    return (f"| {cell['model']}, {cell['batch']}, {cell['optimizer']}, {cell['rate']:g} | "
            f"{measured:.2g} | " + " | ".join(texts) + " |")


def cells(options):
    for model, batch, optimizer in one_process.cases(options):
        for factor in FACTORS:
            rate = RATES[model][optimizer] * factor
            cell = {"model": model, "batch": batch, "optimizer": optimizer, "rate": rate}
            accuracies = {policy: [train(model, optimizer, rate, policy, batch, seed)
                                   for seed in range(1, options.seeds + 1)]
                          for policy in POLICIES}
            raw = [{**cell, "policy": policy, "seed": seed, "accuracy": accuracy,
                    "rate_curvature": measured} for policy, some in accuracies.items()
                   for seed, (accuracy, measured) in enumerate(some, 1)]
            yield raw, row(cell, accuracies)


def main():
    options = one_process.parse("price", __doc__.split("\n\n", maxsplit=1)[0], sys.argv[1:],
                                models="tiny-mlp", batches="8,32", seeds=2)
    sys.path.insert(0, os.path.join(one_process.ROOT, "companion"))
    return one_process.run(
        "price", options,
        ["| model, images a rank, optimizer, rate | rate x curvature | plain, % | late | "
         "predicted |", "|---|---|---|---|---|"], cells(options),
        "# What late gradients ask of the learning rate\n\n"
        f"`python3 perf/accuracy/price.py --models {','.join(options.models)} "
        f"--seeds {options.seeds}` trains in one process, with everything late by one from "
        f"iteration {WARM_UP} on. `late` is delivered as it is, `predicted` as `DEFT_PREDICT=auto` "
        "does. Rate x curvature is what the companion measured before, the median of the seeds; 0 "
        "is what is lost in noise. Bold: more than "
        f"{LOST} points under plain. x: rate x curvature is beyond the plan's bound, a quarter of "
        "where it diverges on a quadratic. Raw data are next to this file.")


if __name__ == "__main__":
    exits.run("price", main)
