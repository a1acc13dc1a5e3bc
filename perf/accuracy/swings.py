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
import runpy
import statistics
import sys
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits
from . import delivery, one_process
from .run import RATES, WARM_UP

POLICIES = ("plain", "delay1", "delay1+predict", "merge2", "merge2late")
BACK = 6             # updates: Correlation::kBack
WINDOW = 20          # updates: guard::Settings::swing_window, and the others of its thresholds
SWING, SWING_LOW = 0.7, 0.6
EARLIER = 0.1


class Delivery:
    """What an update gets, and what a lane carries for it, from reduced gradients in their
    order."""

    def __init__(self, policy, optimizer):
        merge = 2 if policy.startswith("merge") else 1
        delay = 0 if policy in ("plain", "merge2") else 1
        factors = one_process.factors(optimizer) if policy.endswith("+predict") else ()
        self.answer = delivery.generations(merge, delay, factors)
        self.carried, self.iteration, self.kept = None, -WARM_UP, []
        self.merge, self.plain = merge, policy == "plain"

    def next(self, gradient):
        """(what is delivered, the sum that was sent in this iteration or None)"""
        at, self.iteration = self.iteration, self.iteration + 1
        if at < 0 or self.plain:
            return gradient, gradient
        if self.carried is None:
            self.carried = delivery.Delivery(self.answer, [len(gradient)])
        self.kept.append(gradient)
        update, _ = self.carried.next(gradient)
        if len(self.kept) < self.merge:
            return update, None
        sent, self.kept = self.kept[0] if self.merge == 1 else self.kept[0] + self.kept[1], []
        return update, sent


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
    carried = Delivery(policy, optimizer_name)
    low = policy.startswith("merge") or optimizer_name == "momentum"
    rule = Rule(SWING_LOW if low else SWING)
    for iteration, both in enumerate(one_process.iterations(model_name, batch, seed,
                                                            len(images))):
        loss = sum(torch.nn.functional.cross_entropy(model(images[one]), labels[one])
                   for one in both) / 2
        gradient = torch.cat([part.reshape(-1)
                              for part in torch.autograd.grad(loss, parameters)])
        delivered, sent = carried.next(gradient)
        if sent is not None and iteration >= WARM_UP:
            rule.look(sent, iteration)
        at = 0
        for parameter in parameters:
            parameter.grad = delivered[at:at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        optimizer.step()
    return one_process.accuracy(model, test_images, test_labels), rule.fired


def cells(options):
    for model, batch, optimizer in one_process.cases(options):
        for policy in POLICIES:
            some = [train(model, optimizer, policy, batch, seed)
                    for seed in range(1, options.seeds + 1)]
            raw = [{"model": model, "batch": batch, "optimizer": optimizer, "policy": policy,
                    "seed": seed, "accuracy": accuracy, "ends_in": at}
                   for seed, (accuracy, at) in enumerate(some, 1)]
            fired = [at for _, at in some if at is not None]
            yield raw, (f"| {model}, {batch}, {optimizer} | {policy} | "
                        f"{statistics.mean(one for one, _ in some):.1f} | "
                        f"{len(fired)} of {len(some)} | "
                        f"{statistics.median(fired) if fired else '-'} |")


def main():
    options = one_process.parse("swings", __doc__.split("\n\n", maxsplit=1)[0], sys.argv[1:],
                                models=",".join(one_process.MODELS), batches="32,128", seeds=4)
    return one_process.run(
        "swings", options,
        ["| model, images a rank, optimizer | policy | test accuracy, "
         "% | the rule ends the plan | in iteration |", "|---|---|---|---|---|"], cells(options),
        "# Trainings that swing, and the guard's rule for them\n\n"
        "`python3 perf/accuracy/swings.py` trains in one process, with the delivery "
        f"policies from iteration {WARM_UP} on and {options.seeds} seeds. The rule ends a "
        f"plan by two mean cosines over {WINDOW} updates. That of successive sums is above "
        f"{SWING} (merged, or SGD with momentum: {SWING_LOW}). That of sums {BACK} updates "
        f"apart is below {EARLIER}. Raw data are next to this file.")


if __name__ == "__main__":
    exits.run("swings", main)
