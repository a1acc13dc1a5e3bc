# SPDX-License-Identifier: Apache-2.0
"""Where the accuracy guard's thresholds for a training that swings come from: the models of this
folder, trained in one process.

    python3 perf/accuracy/swings.py [--models tiny-mlp] [--optimizers momentum] [--batches 32,128]
        [--seeds 4] [--out perf/results/swings]

Gradients go through the delivery policies as deft would deliver them, from iteration 44 on, and the
guard's rule (shim/guard) looks at the cosines of successive sums. A table says for every policy how
accurate the trainings were and in how many the rule would have ended the plan, and when. Nothing of
deft runs here, and the rule sees whole gradients, where deft's guard sees windows of four
transfers: perf/accuracy/run.py shows what that does. Exit codes: 0 done; 2 wrong usage; 3 Python
lacks a module; 4 it failed.
"""

import collections
import os
import runpy
import statistics
import sys
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, machine, pages, records
from ..common.arguments import OneLineParser, check_output
from .run import EPOCHS, RATES, WARM_UP

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = ("tiny-mlp", "tiny-transformer")
OPTIMIZERS = ("momentum", "nesterov", "adam")
POLICIES = ("plain", "delay1", "delay1+predict", "merge2", "merge2late")
BETA = 0.9
BACK = 6             # updates: Correlation::kBack
WINDOW = 20          # updates: guard::Settings::swing_window, and the others of its thresholds
SWING, SWING_LOW = 0.7, 0.6
EARLIER = 0.1


def parse(arguments):
    parser = OneLineParser(label="swings", prog="perf/accuracy/swings.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--batches", default="32,128",
                        help="images a rank, of two: a list (32,128)")
    parser.add_argument("--seeds", type=int, default=4)
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


class Delivery:
    """What an update gets, and what a lane carries for it, from reduced gradients in their
    order."""

    def __init__(self, policy, optimizer, zeros):
        self.policy, self.optimizer, self.zeros = policy, optimizer, zeros
        self.kept, self.sums, self.iteration = [], [], -WARM_UP

    def next(self, gradient):
        """(what is delivered, the sum that was sent in this iteration or None)"""
        at, self.iteration = self.iteration, self.iteration + 1
        if at < 0 or self.policy == "plain":
            self.sums = [*self.sums[-2:], gradient]
            return gradient, gradient
        if self.policy.startswith("delay1"):
            late = self.sums[::-1] if at > 0 else []
            self.sums = [*(self.sums if at > 0 else [])[-2:], gradient]
            return (self.extrapolate(late) if late else self.zeros), gradient
        self.kept.append(gradient)
        # merged: an update of the sum before, where it is late, and of nothing else
        if at % 2 == 0:
            late, self.sums = self.sums, []
            return (late[0] if at > 0 and self.policy == "merge2late" else self.zeros), None
        whole, self.kept = self.kept[0] + self.kept[1], []
        self.sums = [whole]
        return (whole if self.policy == "merge2" else self.zeros), whole

    def extrapolate(self, late):
        """As DEFT_PREDICT=auto does."""
        if self.policy == "delay1" or len(late) < 2:
            return late[0]
        if self.optimizer == "momentum":
            return 3 * late[0] - 3 * late[1] + late[2] if len(late) > 2 else 2 * late[0] - late[1]
        return late[0] + BETA * (late[0] - late[1])


class Rule:
    """The guard's."""

    def __init__(self, limit):
        self.limit, self.before, self.cosines, self.fired = limit, collections.deque(
            maxlen=BACK), collections.deque(maxlen=WINDOW), None

    def look(self, total, iteration):
        if len(self.before) == BACK and self.fired is None:
            self.cosines.append([float(total @ old) / float(total.norm() * old.norm() + 1e-30)
                                 for old in (self.before[-1], self.before[0])])
            one, other = (sum(column) / WINDOW for column in zip(*self.cosines))
            if len(self.cosines) == WINDOW and one > self.limit and other < EARLIER:
                self.fired = iteration
        self.before.append(total)


def train(model_name, optimizer_name, policy, batch, seed):
    """(test accuracy in %, iteration in which the rule would have ended the plan or None)"""
    import torch

    from ..jobs import ddp
    torch.manual_seed(seed)
    model = ddp.make_model(model_name)
    optimizer = ddp.make_optimizer(optimizer_name, model.parameters(),
                                   RATES[model_name][optimizer_name])
    images, labels, test_images, test_labels = ddp.load_data(torch.device("cpu"))
    parameters = list(model.parameters())
    delivery = Delivery(policy, optimizer_name,
                        torch.zeros(sum(parameter.numel() for parameter in parameters)))
    low = policy.startswith("merge") or optimizer_name == "momentum"
    rule, iteration = Rule(SWING_LOW if low else SWING), 0
    # A larger batch has fewer iterations an epoch: as many epochs more, but for a quarter.
    for epoch in range(round(EPOCHS[model_name] * max(1.0, 0.75 * batch / 32))):
        for both in zip(*(ddp.batches(len(images), batch, seed, epoch, rank, 2)
                          for rank in range(2))):
            loss = sum(torch.nn.functional.cross_entropy(model(images[one]), labels[one])
                       for one in both) / 2
            gradient = torch.cat([part.reshape(-1)
                                  for part in torch.autograd.grad(loss, parameters)])
            delivered, sent = delivery.next(gradient)
            if sent is not None and iteration >= WARM_UP:
                rule.look(sent, iteration)
            at = 0
            for parameter in parameters:
                parameter.grad = delivered[at:at + parameter.numel()].view_as(parameter).clone()
                at += parameter.numel()
            optimizer.step()
            iteration += 1
    model.eval()
    with torch.no_grad():
        return 100 * (model(test_images).argmax(1) == test_labels).float().mean().item(), rule.fired


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    try:
        import sklearn  # noqa: F401
        import torch
    except ModuleNotFoundError as missing:
        print(f"swings: {sys.executable} has no module '{missing.name}'; remedy: "
              "/usr/bin/python3 perf/accuracy/swings.py, with Debian's python3-torch "
              "and python3-sklearn", file=sys.stderr)
        return exits.LACKING
    torch.set_num_threads(1)
    lines = ["| model, images a rank, optimizer | policy | test accuracy, "
             "% | the rule ends the plan | in iteration |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    raw, revision = [], machine.revision(ROOT)
    for model in options.models:
        for batch in options.batches:
            for optimizer in options.optimizers:
                for policy in POLICIES:
                    cells = [train(model, optimizer, policy, batch, seed)
                             for seed in range(1, options.seeds + 1)]
                    raw += [{"model": model, "batch": batch, "optimizer": optimizer,
                             "policy": policy, "seed": seed, "accuracy": accuracy, "ends_in": at,
                             "revision": revision} for seed, (accuracy, at) in enumerate(cells, 1)]
                    fired = [at for _, at in cells if at is not None]
                    lines.append(f"| {model}, {batch}, {optimizer} | {policy} | "
                                 f"{statistics.mean(one for one, _ in cells):.1f} | "
                                 f"{len(fired)} of {len(cells)} | "
                                 f"{statistics.median(fired) if fired else '-'} |")
                    print(lines[-1], flush=True)
    if options.out:
        records.write(options.out + ".json",
                      {"format": "deft-swings", "version": 1, "machine": machine.describe(),
                       "trainings": raw}, one_a_line=("trainings",))
        with open(options.out + ".md", "w", encoding="utf-8") as file:
            file.write(pages.wrapped(
                "# Trainings that swing, and the guard's rule for them\n\n"
                "`python3 perf/accuracy/swings.py` trains in one process, with the delivery "
                f"policies from iteration {WARM_UP} on and {options.seeds} seeds. The rule ends a "
                f"plan by two mean cosines over {WINDOW} updates. That of successive sums is above "
                f"{SWING} (merged, or SGD with momentum: {SWING_LOW}). That of sums {BACK} updates "
                f"apart is below {EARLIER}. Raw data are next to this file.\n\n"
                + "\n".join(lines) + "\n"))
    return 0


if __name__ == "__main__":
    exits.run("swings", main)
