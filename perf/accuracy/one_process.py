# SPDX-License-Identifier: Apache-2.0
"""What price.py and swings.py share: trainings of two ranks in one process, and their page."""

import itertools
import os
import sys

from ..common import exits, machine, pages, records
from ..common.arguments import OneLineParser, check_output
from .run import EPOCHS

MODELS = ("tiny-mlp", "tiny-transformer")
OPTIMIZERS = ("momentum", "nesterov", "adam")
BETA = 0.9
RANKS = 2
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def parse(label, description, arguments, models, batches, seeds):
    """`models`, `batches`, `seeds`: what they are by default."""
    parser = OneLineParser(label=label, prog=f"perf/accuracy/{label}.py", description=description)
    parser.add_argument("--models", default=models)
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--batches", default=batches,
                        help=f"images a rank, of two: a list ({batches})")
    parser.add_argument("--seeds", type=int, default=seeds)
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


def cases(options):
    """(model, batch, optimizer)"""
    return itertools.product(options.models, options.batches, options.optimizers)


def can_train(label):
    """Else it is said what is missing."""
    try:
        import sklearn  # noqa: F401
        import torch
    except ModuleNotFoundError as missing:
        print(f"{label}: {sys.executable} has no module '{missing.name}'; remedy: "
              f"/usr/bin/python3 perf/accuracy/{label}.py, with Debian's python3-torch "
              "and python3-sklearn", file=sys.stderr)
        return False
    torch.set_num_threads(1)
    return True


def iterations(model_name, batch, seed, images):
    """Each rank's images, of so many. A larger batch has fewer iterations an epoch: as many epochs
    more, but for a quarter."""
    from ..jobs import ddp
    for epoch in range(round(EPOCHS[model_name] * max(1.0, 0.75 * batch / 32))):
        yield from zip(*(ddp.batches(images, batch, seed, epoch, rank, RANKS)
                         for rank in range(RANKS)))


def accuracy(model, images, labels):
    """In %."""
    import torch
    model.eval()
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


def factors(optimizer):
    """Of DEFT_PREDICT=auto, for sums that are late by one (decisions.cpp has the library's own,
    which a test holds to these): [(delay, and gradients in the sum, the one before and the one
    before that), (what each counts)]."""
    lead = (1 + BETA, -BETA, 0.0)
    before, whole = lead, lead
    if optimizer == "momentum":
        before, whole = (2.0, -1.0, 0.0), (3.0, -3.0, 1.0)
    return [((1, 1, 0, 0), (1.0, 0.0, 0.0)), ((1, 1, 1, 0), before), ((1, 1, 1, 1), whole)]


def extrapolated(optimizer, late, before, first):
    """What DEFT_PREDICT=auto makes of the latest sums."""
    now, previous, earlier = factors(optimizer)[-1][1]
    return now * late + previous * before + earlier * first


def run(label, options, head, cells, text):
    """Prints the table as it comes, and writes what is asked for. `cells`: of each (what is raw of
    it, its line); `text`: above the table. The exit code."""
    exits.on_signals()
    if not can_train(label):
        return exits.LACKING
    raw, lines, revision = [], list(head), machine.revision(ROOT)
    print("\n".join(lines), flush=True)
    for of_cell, line in cells:
        raw += [{**one, "revision": revision} for one in of_cell]
        lines.append(line)
        print(line, flush=True)
    if options.out:
        records.write(options.out + ".json",
                      {"format": "deft-" + label, "version": 1, "machine": machine.describe(),
                       "trainings": raw}, one_a_line=("trainings",))
        with open(options.out + ".md", "w", encoding="utf-8") as file:
            file.write(pages.wrapped(text + "\n\n" + "\n".join(lines) + "\n"))
    return 0
