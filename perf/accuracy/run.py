# SPDX-License-Identifier: Apache-2.0
"""What the delivery policies do to accuracy: the same trainings, plain and through deft, over
models, optimizers and seeds.

    python3 perf/accuracy/run.py --build build [--models tiny-mlp] [--optimizers momentum,adam]
        [--policies plain,delay1] [--seeds 5] [--out perf/results/accuracy]

Two ranks on the software device train small models on real data (train.py, unmodified
DistributedDataParallel). Each training is a line of OUT.jsonl; those that are there already are not
repeated, so a stopped matrix goes on where it was. OUT.md has the tables, OUT.svg the loss curves
of the first seed. Exit codes: 0 done; 2 wrong usage; 3 a part of the build is missing; 4 something
failed.
"""

import concurrent.futures
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, machine
from ..common.arguments import OneLineParser, check_output
from . import processes, report

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WARM_UP = 44    # iterations that every plan leaves synchronous
# The learning rate that is best, or near it, for the plain job.
RATES = {"tiny-mlp": {"sgd": 0.5, "momentum": 0.05, "nesterov": 0.05, "adam": 0.002,
                      "adamw": 0.002},
         "tumor-mlp": {"sgd": 0.2, "momentum": 0.02, "nesterov": 0.02, "adam": 0.001,
                       "adamw": 0.001},
         "tiny-transformer": {"sgd": 0.2, "momentum": 0.02, "nesterov": 0.02, "adam": 0.002,
                              "adamw": 0.002}}
EPOCHS = {"tiny-mlp": 14, "tumor-mlp": 20, "tiny-transformer": 12}
BATCH = {"tiny-mlp": 32, "tumor-mlp": 16, "tiny-transformer": 32}
OPTIMIZERS = {"momentum": "sgd:momentum=0.9", "adam": "adam", "sgd": "sgd",
              "nesterov": "sgd:momentum=0.9,nesterov=1", "adamw": "adamw"}
LATE = {"DEFT_MODE": "deft", "DEFT_GRADIENTS": "trust"}   # DDP sums nothing else here
# The plan of mode exact over two networks, named so that it comes whatever it gains. The job's own
# is slow, so that the other one, NCCL's Socket transport, carries the gradients: pieces as small as
# these models' are not cut.
EXACT = {**LATE, "DEFT_PLAN": "delay0", "DEFT_PREDICT": "none", "DEFT_LANES": "Socket",
         "DEFT_INTERFACES": "127.0.0.1@100mbit"}
# name: DEFT_* settings; None: without deft. covapN sends 1/N of the gradients: what coverage rates
# up to N need.
POLICIES = {
    "plain": None,
    "exact": EXACT,
    "delay1": {**LATE, "DEFT_PLAN": "delay1", "DEFT_PREDICT": "none"},
    "delay1+predict": {**LATE, "DEFT_PLAN": "delay1", "DEFT_PREDICT": "auto"},
    "merge2": {**LATE, "DEFT_PLAN": "merge2", "DEFT_PREDICT": "none"},
    "merge2turns": {**LATE, "DEFT_PLAN": "merge2", "DEFT_MERGE": "turns", "DEFT_PREDICT": "none"},
    "merge2late": {**LATE, "DEFT_PLAN": "merge2-delay1", "DEFT_PREDICT": "none"},
    "merge2late+predict": {**LATE, "DEFT_PLAN": "merge2-delay1", "DEFT_PREDICT": "auto"},
    "covap2": {**LATE, "DEFT_MODE": "covap", "DEFT_PLAN": "covap2"},
    "covap4": {**LATE, "DEFT_MODE": "covap", "DEFT_PLAN": "covap4"},
}
KEY = ("model", "optimizer", "policy", "seed")
TRIES = 3       # of a training whose plan came into force late


def parse(arguments):
    parser = OneLineParser(label="accuracy", prog="perf/accuracy/run.py",
                           description="Accuracy of delivery policies over models, "
                                       "optimizers and seeds.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--models", default=",".join(RATES))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--guard", default="strict", choices=["strict", "warn", "off"])
    parser.add_argument("--parallel", type=int, default=2,
                        help="jobs at once (2); results do not depend on it")
    parser.add_argument("--out", default=os.path.join(ROOT, "perf", "results", "accuracy"),
                        help="path without extension")
    parser.add_argument("--report", action="store_true",
                        help="run nothing: write the tables and the curves of what is there")
    parser.add_argument("--timeout", type=float, default=1500,
                        help="seconds one job (a policy, an optimizer) may take")
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="Python that has torch and sklearn")
    options = parser.parse_args(arguments)
    for name, known in (("models", RATES), ("optimizers", OPTIMIZERS), ("policies", POLICIES)):
        chosen = [item.strip() for item in getattr(options, name).split(",")]
        for item in chosen:
            if item not in known:
                parser.error(f"--{name}: '{item}' is none of {', '.join(known)}")
        setattr(options, name, chosen)
    if options.seeds < 1 or options.parallel < 1:
        parser.error("--seeds and --parallel must be at least 1")
    options.build = os.path.abspath(options.build)
    options.out = os.path.abspath(options.out)
    try:
        os.makedirs(os.path.dirname(options.out), exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.filename}: {error.strerror}")
    for extension in (".jsonl", ".md", ".svg"):
        check_output(parser, "--out", options.out + extension)
    return options


def parts_of(build):
    """The files of the build that the jobs need."""
    return {"deft": os.path.join(build, "tools", "deft"),
            "library": os.path.join(build, "packaging", "libnccl-net-deft.so"),
            "nccl": os.path.join(build, "softdev", "nccl", "libnccl.so.2"),
            "cuda": os.path.join(build, "softdev", "cuda", "libcuda.so.1")}


def pinned(line):
    """Did the plan come into force at the iteration it was to, so that the result depends on the
    seed alone? Exact's may at any: it changes nothing, and only has to be there."""
    plan = line.get("plan", {})
    if POLICIES[line["policy"]] is None:
        return True
    if line["policy"] == "exact":
        return plan.get("delivered", 0) > 0
    # The last iteration is under way when the counters are read.
    return bool(plan.get("guard_decisions")) or plan.get("iterations",
                                                         0) in (line["iterations"] - WARM_UP - 1,
                                                                line["iterations"] - WARM_UP)


def run(options, running, optimizer, policy, works):
    """Trains what is listed, in one job of two ranks; the lines that came out, and why the rest
    did not."""
    with tempfile.TemporaryDirectory(prefix="deft-accuracy-") as folder:
        work, out = os.path.join(folder, "work.json"), os.path.join(folder, "out.jsonl")
        with open(work, "w", encoding="utf-8") as file:
            json.dump(works, file)
        settings = POLICIES[policy]
        # Before exact's plan the networks are measured, and the job is anew.
        slow = 0 if settings is None else 2 * WARM_UP if policy == "exact" else WARM_UP
        job = [options.python, os.path.join(ROOT, "softdev", "torch", "launch.py"),
               "--libs", os.path.join(options.build, "softdev"), "--ranks", "2",
               os.path.join(HERE, "train.py"), "--work", work, "--out", out, "--folder", folder,
               "--warm-up", str(slow)]
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("DEFT_", "NCCL_"))}
        environment.update({"NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                            "OPENBLAS_NUM_THREADS": "1"})
        if settings is not None:
            environment.update({"DEFT_INTERFACES": "lo", "DEFT_OPTIMIZER": OPTIMIZERS[optimizer],
                                "DEFT_WARMUP": str(WARM_UP),
                                "DEFT_MAX_MERGE": "4" if policy == "covap4" else "2",
                                "DEFT_GUARD": options.guard, **settings})
            parts = parts_of(options.build)
            job = [parts["deft"], "run", "--mode", settings["DEFT_MODE"], "--library",
                   parts["library"], "--", *job]
        else:
            environment["NCCL_NET_PLUGIN"] = "none"
        why, guard = "", []
        try:
            code, said, errors = running.run(job, environment, folder, options.timeout)
            why = ((errors or said)[-600:].strip() or f"exit code {code}") if code else ""
            guard = [line for line in errors.splitlines() if "accuracy guard" in line]
        except (processes.TooLong, OSError) as error:
            why = str(error)
        lines = report.read(out)
        for line in lines:
            line.update({"policy": policy, "guard": options.guard})
        return lines, why, guard


class Matrix:
    """The trainings that are done, and the file they go to."""

    def __init__(self, options):
        self.options, self.path = options, options.out + ".jsonl"
        self.running = processes.Processes()
        self.lines, self.lock, self.failed = report.read(self.path), threading.Lock(), False
        if not options.report:
            report.cut_torn_line(self.path)
        self.machine = machine.describe()

    def missing(self, optimizer, policy):
        known = {tuple(line[key] for key in KEY) for line in self.lines}
        return [{"model": model, "optimizer": optimizer, "lr": RATES[model][optimizer],
                 "seed": seed, "epochs": EPOCHS[model], "batch": BATCH[model]}
                for seed in range(1, self.options.seeds + 1) for model in self.options.models
                if (model, optimizer, policy, seed) not in known]

    def keep(self, lines):
        with self.lock, open(self.path, "a", encoding="utf-8") as file:
            for line in lines:
                line["cpu"] = self.machine["cpu"]
                self.lines.append(line)
                file.write(json.dumps(line) + "\n")

    def cell(self, optimizer, policy):
        """All that is missing of one policy and optimizer."""
        works = self.missing(optimizer, policy)
        for attempt in range(TRIES):
            if not works:
                break
            try:
                lines, why, guard = run(self.options, self.running, optimizer, policy, works)
            except processes.Stopped:
                return
            # Also a job that failed behind its last training, in the end of the process, is one
            # that failed.
            self.failed = self.failed or bool(why)
            good = [line for line in lines if pinned(line) or attempt == TRIES - 1]
            for line in good:
                line["pinned"] = pinned(line)
            self.keep(good)
            if self.running.stopped:
                return
            done = {(line["model"], line["seed"]) for line in good}
            works = [work for work in works if (work["model"], work["seed"]) not in done]
            mean = sum(line["accuracy"] for line in lines) / max(1, len(lines))
            print(f"{policy} {optimizer}: {len(good)} trainings, {100 * mean:.1f} %"
                  + (f", {len(lines) - len(good)} again: the plan came late"
                     if len(lines) > len(good) else "")
                  + (f"; failed: {why}" if why else "") +
                  "".join(f"\n  {line}" for line in guard[:2]), flush=True)
        self.failed = self.failed or bool(works)

    def fill(self):
        """All cells, some at a time. However it ends, no job is left."""
        cells = [(optimizer, policy) for optimizer in self.options.optimizers
                 for policy in self.options.policies]
        with concurrent.futures.ThreadPoolExecutor(self.options.parallel) as pool:
            try:
                for future in [pool.submit(self.cell, *one) for one in cells]:
                    future.result()
            except BaseException:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                self.running.stop()
                pool.shutdown(cancel_futures=True)
                raise


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    if not options.report:
        for path in parts_of(options.build).values():
            if not os.path.exists(path):
                print(f"accuracy: {path} is missing; remedy: ./dev build", file=sys.stderr)
                return exits.LACKING
    try:
        matrix = Matrix(options)
    except report.NoTraining as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return exits.USAGE
    if not options.report:
        matrix.fill()
    if not matrix.lines:
        print(f"accuracy: {matrix.path} has no training, so there is nothing to write",
              file=sys.stderr)
        return exits.FAILED
    report.write(options, matrix.lines,
                 {"models": RATES, "policies": list(POLICIES), "warm_up": WARM_UP, "epochs": EPOCHS,
                   "batch": BATCH})
    print(f"{options.out}.md, .svg and .jsonl written")
    return exits.FAILED if matrix.failed else 0


if __name__ == "__main__":
    exits.run("accuracy", main)
