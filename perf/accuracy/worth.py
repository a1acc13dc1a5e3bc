#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an iteration under a plan was worth, in the trainings of perf/results/accuracy.jsonl: where
the planner's prices of late and merged gradients come from (planner/model/progress.h).

    python3 perf/accuracy/worth.py [--lines perf/results/accuracy.jsonl]

Prints perf/results/worth.md: iterations under each policy until a training loss, over plain's until
the same loss, both from where the plan comes into force. For each training the median over its
epochs; then the median and the quartiles over seeds and models. Exit codes: 0 done; 2 wrong usage.
"""

import argparse
import json
import math
import os
import statistics

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "results")
SWITCH = 44              # iteration from which on the plans of accuracy.md are in force
LEFT_OUT = "tumor-mlp"   # has learned most of it before
POLICIES = ("delay1+predict", "delay1", "merge2", "merge2turns", "merge2late+predict", "covap2")
OPTIMIZERS = ("momentum", "nesterov", "adam", "adamw", "sgd")


def lowest(losses):
    """Logarithms of the least loss so far."""
    logs = [math.log(max(loss, 1e-9)) for loss in losses]
    return [min(logs[:end + 1]) for end in range(len(logs))]


def epoch_of(logs, wanted):
    """When plain had that loss, in epochs from the middle of its first; none: never."""
    for at, log in enumerate(logs):
        if log <= wanted and at > 0:
            above = logs[at - 1]
            return at - 1 + ((above - wanted) / (above - log) if above > log else 1)
    return None


def ratio(training, plain):
    """Iterations over plain's; none: no epoch can be compared."""
    before = SWITCH / (training["iterations"] / training["epochs"])
    logs, found = lowest(plain["epoch_losses"]), []
    for epoch in range(int(before) + 2, training["epochs"]):
        same = epoch_of(logs, math.log(max(training["epoch_losses"][epoch], 1e-9)))
        if same is not None and same + 0.5 - before > 0.5:
            found.append((epoch + 0.5 - before) / (same + 0.5 - before))
    return statistics.median(found) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--lines", default=os.path.join(RESULTS, "accuracy.jsonl"))
    with open(parser.parse_args().lines, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    plain = {(one["model"], one["optimizer"], one["seed"]): one
             for one in lines if one["policy"] == "plain"}
    print("# What an iteration under a plan is worth\n\n"
          "`python3 perf/accuracy/worth.py` compares training losses of `accuracy.jsonl`: digits, "
          "an MLP and a\ntransformer, five seeds. A figure is how many iterations a policy needs "
          "from where it is in force\nuntil a loss, over plain's: the median, and the quartiles.\n")
    print("| policy | " + " | ".join(OPTIMIZERS) + " | all but sgd |")
    print("|---" * (len(OPTIMIZERS) + 2) + "|")
    for policy in POLICIES:
        cells, together = [], []
        for optimizer in OPTIMIZERS:
            some = [ratio(one, plain[one["model"], optimizer, one["seed"]]) for one in lines
                    if (one["policy"], one["optimizer"]) == (policy, optimizer)
                    and one["model"] != LEFT_OUT]
            some = [one for one in some if one is not None]
            together += some if optimizer != "sgd" else []
            cells.append(figure(some))
        print(f"| {policy} | " + " | ".join([*cells, figure(together)]) + " |")


def figure(some):
    if len(some) < 4:
        return "-"
    low, middle, high = statistics.quantiles(some, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
