# SPDX-License-Identifier: Apache-2.0
"""What the modes and the policies do to the loss at equal time: models, optimizers, batches,
learning rates and seeds, each training in one process.

    ninja -C build perf/accuracy/decisions
    /usr/bin/python3 perf/accuracy/sweep.py [--models digits,cnn] [--optimizers momentum,adam]
        [--batches 32,256] [--rates 3] [--seeds 5] [--minutes M] [--out perf/results/sweep]

Which plan a mode takes, what that plan asks of the job's steps and when its guard ends it are the
library's own answers (decisions.cpp); the companion measures the steps. OUT.jsonl gets a line for
each training. Those that are there are not repeated, so a stopped sweep goes on where it was.
OUT.md has the tables, OUT.html the pictures. Exit codes: 0 done; 2 wrong usage; 3 something is not
installed or built; 4 it failed.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, machine
from ..common.arguments import OneLineParser, check_output
from . import decisions, delivery, one_process, report, sweep_report
from .run import OPTIMIZERS

MODELS = ("digits", "cnn", "text", "resnet20")
COVERAGES = (1.0, 1.6)
DEFT = {"DEFT_MODE": "deft"}
# name: (settings, the planner's policy or null: the library's own choice)
MODES = {
    "exact": ({"DEFT_MODE": "exact", "DEFT_LAYERWISE": "auto"}, None),
    "deft": (DEFT, None),
    "deft, delay cap 1": ({**DEFT, "DEFT_MAX_DELAY": "1"}, None),
    "deft, merge cap 2": ({**DEFT, "DEFT_MAX_MERGE": "2"}, None),
    "DeFT's policy": (DEFT, "deft"),
    "COVAP's policy": (DEFT, "covap"),
    "US-Byte's policy": (DEFT, "us-byte"),
    "ByteScheduler's policy": (DEFT, "bytescheduler"),
    "DeAR's policy": (DEFT, "dear"),
}
CELL = ("model", "optimizer", "batch", "rate", "seed")
FACTORS = (1.0, 0.5, 0.25)   # of the largest rate that plain bears
BORNE = 1.25                 # times the least loss, after as many iterations


def parse(arguments):
    parser = OneLineParser(label="sweep", prog="perf/accuracy/sweep.py",
                           description="Loss at equal time, by modes and policies.")
    parser.add_argument("--build", default=os.path.join(one_process.ROOT, "build"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--batches", default="32,256", help="samples a rank, of two (32,256)")
    parser.add_argument("--rates", type=int, default=3, help="the largest, half of it, ... (3)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, help="begin no training after so many")
    parser.add_argument("--out", default=os.path.join(one_process.ROOT, "perf", "results", "sweep"),
                        help="path without extension")
    parser.add_argument("--report", action="store_true", help="train nothing: write the pages")
    parser.add_argument("--find-rates", action="store_true",
                        help="print the largest rates that plain bears, and nothing else")
    options = parser.parse_args(arguments)
    for name, known in (("models", MODELS), ("optimizers", tuple(OPTIMIZERS)),
                        ("batches", ("32", "256"))):
        chosen = getattr(options, name).split(",")
        for item in chosen:
            if item not in known:
                parser.error(f"--{name}: '{item}' is none of {', '.join(known)}")
        setattr(options, name, chosen)
    options.batches = [int(item) for item in options.batches]
    if options.seeds < 1 or not 1 <= options.rates <= len(FACTORS):
        parser.error(f"--seeds must be at least 1, --rates 1 to {len(FACTORS)}")
    for extension in (".jsonl", ".md", ".html"):
        check_output(parser, "--out", options.out + extension)
    return options


def equal_time(answer, plain_ms, iterations, warm_up):
    """So many iterations take as long as that many of plain."""
    faster = plain_ms / answer["plan"]["predicted"]["iteration_s"] / 1e3
    return warm_up + (iterations - warm_up) * faster


class Sweep:
    def __init__(self, options):
        self.options, self.path = options, options.out + ".jsonl"
        self.lines = report.read(self.path)
        if not options.report:
            report.cut_torn_line(self.path)
        self.done = {self.key(line) for line in self.lines if line["what"] == "training"}
        self.answers, self.until = {}, None
        if options.minutes:
            self.until = time.monotonic() + 60 * options.minutes
        self.trained = 0

    @staticmethod
    def key(line):
        return (*(line[name] for name in CELL), line["delivery"], line["guarded"])

    def keep(self, line):
        self.lines.append(line)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def answers_of(self, model, optimizer):
        """{(mode, coverage): ([answers, one after another], plain's iteration in ms)}"""
        if (model, optimizer) in self.answers:
            return self.answers[model, optimizer]
        from . import workloads
        workload = workloads.WORKLOADS[model]
        _, profile = decisions.buckets_of(workload.make(), workload.data()[0][:4])
        asked, found = decisions.Decisions(self.options.build), {}
        for coverage in COVERAGES:
            with_transfers = decisions.with_coverage(profile, coverage)
            for mode, (settings, policy) in MODES.items():
                answers = asked.plans(with_transfers,
                                      {**settings, "DEFT_OPTIMIZER": OPTIMIZERS[optimizer]}, policy)
                for answer in answers:
                    answer["residual"] = policy == "covap"
                    if policy is not None:   # as its paper has it: nothing is predicted
                        answer["factors"], answer["bound"] = [], None
                    answer["delivery"] = delivery.identity(answer)
                found[mode, coverage] = answers
        self.answers[model, optimizer] = found
        self.note_plans(model, optimizer, found)
        return found

    def note_plans(self, model, optimizer, found):
        """What the report needs of them."""
        lines = [{"what": "plan", "model": model, "optimizer": optimizer, "mode": mode,
                  "coverage": coverage,
                  "tries": [{"delivery": one["delivery"], "bound": one["bound"],
                             "prediction": one["prediction"],
                             **{name: one["plan"]["predicted"][name]
                                for name in ("iteration_s", "baseline_s", "updates_per_iteration",
                                             "max_delay", "max_merge", "late")}}
                            for one in answers]}
                 for (mode, coverage), answers in found.items()]
        known = [line for line in self.lines if line["what"] == "plan"]
        for line in lines:
            if line not in known:
                self.keep(line)

    def cells(self):
        """The most telling ones first: all models, at the largest rate, by one seed."""
        from . import workloads
        for seed in range(1, self.options.seeds + 1):
            for factor in FACTORS[:self.options.rates]:
                for batch in self.options.batches:
                    for model in self.options.models:
                        for optimizer in self.options.optimizers:
                            largest = workloads.WORKLOADS[model].rates.get((optimizer, batch))
                            if largest is not None:
                                yield {"model": model, "optimizer": optimizer, "batch": batch,
                                       "rate": largest * factor, "seed": seed}

    def works(self, cell):
        """Plain, then what differs from it in what is delivered."""
        from . import workloads
        from .price import WARM_UP
        found = self.answers_of(cell["model"], cell["optimizer"])
        iterations = workloads.WORKLOADS[cell["model"]].iterations
        limits, chosen = {}, {}

        def note(delivered, guarded, answer, baseline):
            key = delivered, guarded
            limits[key] = max(limits.get(key, iterations),
                              equal_time(answer, baseline, iterations, WARM_UP))
            chosen[key] = answer

        for answers in found.values():
            for answer in answers:
                if answer["delivery"] == "plain":
                    note("plain", False, answer, 1e3 * answer["plan"]["predicted"]["baseline_s"])
        yield {**cell, "delivery": "plain", "guarded": False,
               "limit": round(limits["plain", False])}
        measured = next(line["rate_curvature"] for line in self.lines
                        if line["what"] == "training" and line["delivery"] == "plain" and
                        all(line[name] == cell[name] for name in CELL))
        for (mode, _), answers in found.items():
            answer = sweep_report.taken(answers, measured)
            if answer["delivery"] != "plain":
                guarded = MODES[mode][1] is None
                note(answer["delivery"], guarded, answer,
                     1e3 * answer["plan"]["predicted"]["baseline_s"])
        for (delivered, guarded), answer in chosen.items():
            if delivered != "plain":
                settings = {**DEFT, "DEFT_OPTIMIZER": OPTIMIZERS[cell["optimizer"]]}
                yield {**cell, "delivery": delivered, "guarded": guarded,
                       "limit": round(limits[delivered, guarded]), "answer": answer,
                       "settings": settings if guarded else None}

    def over(self):
        return self.until is not None and time.monotonic() > self.until

    def run(self):
        from .replay import Training
        revision = machine.revision(one_process.ROOT)
        cells = list(self.cells())
        for number, cell in enumerate(cells, 1):
            for work in self.works(cell):
                if self.key(work) in self.done:
                    continue
                if self.over():
                    return
                record = Training(work, self.options.build).run()
                kept = {name: work[name] for name in (*CELL, "delivery", "guarded", "limit")}
                self.keep({"what": "training", **kept, **record, "revision": revision})
                self.done.add(self.key(work))
                self.trained += 1
                last = record["points"][-1] if record["points"] else "ruined"
                named = " ".join(str(cell[name]) for name in CELL)
                print(f"cell {number} of {len(cells)}: {named} {work['delivery']}: {last}, "
                      f"{record['cpu_s']} s", flush=True)


def find_rates(options):
    """Factors of 2 up from a small rate, until the loss is no longer near the least."""
    from . import workloads
    from .replay import Training
    for model in options.models:
        workload = workloads.WORKLOADS[model]
        for optimizer in options.optimizers:
            for batch in options.batches:
                rate = 0.0005 if optimizer.startswith("adam") else 0.0125
                rate *= 4 if optimizer == "sgd" else 1
                losses = {}
                while not losses or losses[rate / 2] <= BORNE * min(losses.values()):
                    record = Training({"model": model, "optimizer": optimizer, "batch": batch,
                                       "rate": rate, "seed": 1, "limit": workload.iterations}).run()
                    near = [point[2] for point in record["points"][-3:]]
                    fine = record["ruined_at"] is None and all(one == one for one in near)
                    losses[rate] = sum(near) / len(near) if fine else float("inf")
                    print(f"{model} {optimizer} {batch}: {rate:g} {losses[rate]:.4f}", flush=True)
                    rate *= 2
                limit = BORNE * min(losses.values())
                borne = max(one for one, loss in losses.items() if loss <= limit)
                print(f"{model} ({optimizer!r}, {batch}): {borne:g}", flush=True)


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    if not one_process.can_train("sweep"):
        return exits.LACKING
    from . import workloads
    program = os.path.join(options.build, decisions.PROGRAM)
    if not os.path.exists(program) and not (options.report or options.find_rates):
        print(f"sweep: {program} is missing; remedy: ninja -C {options.build} "
              f"{decisions.PROGRAM}", file=sys.stderr)
        return exits.LACKING
    try:
        if options.find_rates:
            find_rates(options)
            return exits.MET
        sweep = Sweep(options)
        if not options.report:
            sweep.run()
        sweep_report.write(options.out, sweep.lines, {
            "iterations": {model: workloads.WORKLOADS[model].iterations for model in MODELS},
            "command": "python3 perf/accuracy/sweep.py"})
    except workloads.Missing as error:
        print(f"sweep: {error}", file=sys.stderr)
        return exits.LACKING
    except report.NoTraining as error:
        print(f"sweep: {error}", file=sys.stderr)
        return exits.USAGE
    print(f"{options.out}.md, .html and .jsonl written")
    return exits.MET


if __name__ == "__main__":
    exits.run("sweep", main)
