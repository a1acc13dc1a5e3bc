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

from ..common import exits, machine, pages, records
from ..common.arguments import OneLineParser, check_output
from .run import EPOCHS, RATES

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = ("tiny-mlp", "tiny-transformer")
OPTIMIZERS = ("momentum", "nesterov", "adam")
POLICIES = ("plain", "late", "predicted")
FACTORS = (0.2, 0.5, 1, 2, 4)   # of the rate that is best for the plain job
WARM_UP = 52                    # iterations; the companion's answer comes before
BETA = 0.9
LOST = 2                        # points
# A quarter of where everything late by one diverges on a quadratic, with momentum 0.9
# (planner/stability.h): as it is, and as DEFT_PREDICT=auto delivers it.
BOUNDS = {"momentum": (0.025, 0.122), "nesterov": (0.062, 0.090), "adam": (0.025, 0.062)}


def parse(arguments):
    parser = OneLineParser(label="price", prog="perf/accuracy/price.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--models", default="tiny-mlp")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--batches", default="8,32",
                        help="images a rank, of two: a list (8,32)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", help="path without extension of a page of Markdown and of the raw "
                                      "data (default: none)")
    options = parser.parse_args(arguments)
    for name, known in (("models", MODELS), ("optimizers", OPTIMIZERS)):
        setattr(options, name, getattr(options, name).split(","))
        for item in getattr(options, name):
            if item not in known:
                parser.error(f"--{name}: '{item}' is none of {', '.join(known)}")
    try:
        options.batches = [int(item) for item in options.batches.split(",")]
    except ValueError:
        parser.error(f"--batches: a list of numbers, not '{options.batches}'")
    if options.seeds < 1 or min(options.batches) < 1:
        parser.error("--seeds and --batches must be at least 1")
    if options.out:
        for extension in (".md", ".json"):
            check_output(parser, "--out", options.out + extension)
    return options


class Told:
    """What the companion says to the library."""

    def __init__(self):
        self.rate_curvature = None

    def note_steps(self, _module, rate_curvature, _noise_scale):
        self.rate_curvature = rate_curvature
        return 1

    def stand_down(self, why):
        raise RuntimeError(why)


class Module:
    """As the companion knows one."""

    number, watched, sets = 1, True, 1

    def __init__(self, parameters):
        self.iterations, self.live = 0, lambda: parameters


class Bucket:
    """All gradients of one rank, over the number of ranks."""

    def __init__(self, parameters, gradients):
        self.parameters, self.gradients = lambda: parameters, lambda: gradients


def delivered(policy, optimizer, sums):
    """What the update gets, of the gradients so far."""
    if policy == "plain":
        return sums[-1]
    late, before, first = sums[-2], sums[-3], sums[-4]
    if policy == "late":
        return late
    return [3 * a - 3 * b + c if optimizer == "momentum" else a + BETA * (a - b)
            for a, b, c in zip(late, before, first)]


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
    steps = Steps(module, 2)
    for epoch in range(round(EPOCHS[model_name] * max(1.0, 0.75 * batch / 32))):
        for both in zip(*(ddp.batches(len(images), batch, seed, epoch, rank, 2)
                          for rank in range(2))):
            shares = [torch.autograd.grad(
                torch.nn.functional.cross_entropy(model(images[one]), labels[one]) / 2, parameters)
                for one in both]
            steps.share_comes(0, Bucket(parameters, [share.contiguous() for share in shares[0]]))
            sums = [*sums[-3:], [sum(pair).contiguous() for pair in zip(*shares)]]
            late = module.iterations >= WARM_UP
            for parameter, gradient in zip(parameters, delivered(policy if late else "plain",
                                                                 optimizer_name, sums)):
                parameter.grad = gradient.clone()
            if not late:
                steps.step_begins(optimizer)
            optimizer.step()
            module.iterations += 1
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        return 100 * accuracy, told.rate_curvature


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


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    try:
        import sklearn  # noqa: F401
        import torch
    except ModuleNotFoundError as missing:
        print(f"price: {sys.executable} has no module '{missing.name}'; remedy: "
              "/usr/bin/python3 perf/accuracy/price.py, with Debian's python3-torch "
              "and python3-sklearn", file=sys.stderr)
        return exits.LACKING
    sys.path.insert(0, os.path.join(ROOT, "companion"))
    torch.set_num_threads(1)
    lines = ["| model, images a rank, optimizer, rate | rate x curvature | plain, % | late | "
             "predicted |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    raw, revision = [], machine.revision(ROOT)
    for model in options.models:
        for batch in options.batches:
            for optimizer in options.optimizers:
                for factor in FACTORS:
                    rate = RATES[model][optimizer] * factor
                    cell = {"model": model, "batch": batch, "optimizer": optimizer, "rate": rate}
                    accuracies = {policy: [train(model, optimizer, rate, policy, batch, seed)
                                           for seed in range(1, options.seeds + 1)]
                                  for policy in POLICIES}
                    raw += [{**cell, "policy": policy, "seed": seed, "accuracy": accuracy,
                             "rate_curvature": measured, "revision": revision}
                            for policy, some in accuracies.items()
                            for seed, (accuracy, measured) in enumerate(some, 1)]
                    lines.append(row(cell, accuracies))
                    print(lines[-1], flush=True)
    if options.out:
        records.write(options.out + ".json",
                      {"format": "deft-price", "version": 1, "machine": machine.describe(),
                       "trainings": raw}, one_a_line=("trainings",))
        with open(options.out + ".md", "w", encoding="utf-8") as file:
            file.write(pages.wrapped(
                "# What late gradients ask of the learning rate\n\n"
                "`python3 perf/accuracy/price.py` trains in one process, with everything late by "
                f"one from iteration {WARM_UP} on and {options.seeds} seeds. `late` is delivered "
                "as it is, `predicted` as `DEFT_PREDICT=auto` does. Rate x curvature is what the "
                "companion measured before, the median of the seeds. Bold: more than "
                f"{LOST} points under plain. x: rate x curvature is beyond the plan's bound, a "
                "quarter of where it diverges on a quadratic. Raw data are next to this file.\n\n"
                + "\n".join(lines) + "\n"))
    return 0


if __name__ == "__main__":
    exits.run("price", main)
