# SPDX-License-Identifier: Apache-2.0
"""Every policy the library can carry out, and two it is compared with, measured beside the
simulator's prediction.

    python3 perf/policies/run.py --build build [--models vgg19,resnet101,gpt2]
        [--coverage 0.5,1,1.5,2,3] [--json FILE]

Replays the planner's models (perf/jobs/replay) on two hosts over unequal links. ByteScheduler and
US-Byte are stand-ins: the replay job sends the pieces of the planner's reconstruction itself, and a
layer's forward waits for its own gradient only, which an unmodified job cannot do. Exit codes: 0
done; 2 wrong usage; 3 the machine lacks something; 4 a run failed.
"""

import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, hosts, iterations, machine, pages, ranks, records
from ..common.arguments import OneLineParser, earlier_record

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WARM_UP = 5
# of its rate that a link sends at once after a rest. By default it is a quarter of a megabyte: an
# eighth of these gradients, so that a job whose links rest times them faster than they are.
BURST_MS = 1.0
# replayed gradients are no training: nothing to guard
LATE = {"DEFT_GRADIENTS": "trust", "DEFT_WARMUP": str(WARM_UP), "DEFT_GUARD": "off"}


def forced(plan):
    return {**LATE, "DEFT_PLAN": plan}


# name: (DEFT_MODE or None, settings, what `deft plan` is asked for: policy, max delay, max merge,
# --merge; of several the fastest counts)
POLICIES = {
    "plain": (None, {}, ("none", 0, 1)),            # NCCL's Socket transport on the fastest link
    "striped": ("observe", {}, ("none", 0, 1)),     # the job as it is, the plugin over all links
    "exact": ("exact", {}, ("best", 0, 1)),
    # Nothing is late by default where the optimizer is unknown; with both allowed, late or merged,
    # never both.
    "deft": ("deft", {**LATE, "DEFT_OPTIMIZER": "adam"}, ("best", 1, 1), ("best", 0, 2, "whole")),
    "deft-turns": ("deft", {**LATE, "DEFT_OPTIMIZER": "adam", "DEFT_MERGE": "turns"},
                   ("best", 1, 1), ("best", 0, 2)),
    # Both allowed at once: one update in a fraction of iterations. It has to cost little progress,
    # but not so little that two merged are as good as a fraction (a noise scale of 9).
    "deft-both": ("deft", {**LATE, "DEFT_OPTIMIZER": "adam", "DEFT_MAX_DELAY": "1",
                           "DEFT_MAX_MERGE": "2", "DEFT_NOISE_SCALE": "3",
                           "DEFT_AGE_PRICE": "0.15"}, ("best", 1, 2, "whole")),
    # DeFT's own queues
    "deft-queues": ("deft", {**forced("deft"), "DEFT_MAX_DELAY": "3", "DEFT_MAX_MERGE": "2"},
                    ("deft", 3, 2)),
    "delay1": ("deft", forced("delay1"), ("best", 1, 1)),
    "delay1-tail": ("deft", forced("delay1-tail"), ("best", 1, 1)),
    "delay2": ("deft", forced("delay2"), ("best", 2, 1)),
    "merge2": ("deft", forced("merge2"), ("best", 0, 2, "whole")),
    "merge2-delay1": ("deft", forced("merge2-delay1"), ("best", 1, 2)),
    "merge4": ("deft", forced("merge4"), ("best", 0, 4, "whole")),
    # its own interval, by the measured coverage rate
    "covap": ("covap", {**LATE, "DEFT_MAX_MERGE": "4"}, ("covap", 1, 4)),
    "covap2": ("covap", {**forced("covap2"), "DEFT_MAX_MERGE": "4"}, ("covap", 1, 2)),
    "covap4": ("covap", {**forced("covap4"), "DEFT_MAX_MERGE": "4"}, ("covap", 1, 4)),
    "covap8": ("covap", {**forced("covap8"), "DEFT_MAX_MERGE": "8"}, ("covap", 1, 8)),
    "bytescheduler": ("observe", {}, ("bytescheduler", 0, 1)),
    "us-byte": ("observe", {}, ("us-byte", 0, 1)),
}
STAND_INS = ("bytescheduler", "us-byte")


def priced(policy):
    """How `deft plan` is to compare plans: as mode deft does, or by time where a plan is named."""
    settings = POLICIES[policy][1]
    if POLICIES[policy][0] != "deft" or "DEFT_PLAN" in settings:
        return ["--objective", "iteration",
                *([] if policy == "delay1-tail" else ["--no-mixed-ages"])]
    return [word for option, name in (("--noise-scale", "DEFT_NOISE_SCALE"),
                                      ("--age-price", "DEFT_AGE_PRICE"))
            if name in settings for word in (option, settings[name])]


def parse(arguments):
    parser = OneLineParser(label="policies", prog="perf/policies/run.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--models", default="vgg19,resnet101,gpt2",
                        help="of the planner's models (deft sim --profile model:NAME)")
    parser.add_argument("--coverage", default="0.5,1,1.5,2,3",
                        help="time to transfer on all links over time to compute (a list)")
    parser.add_argument("--links", default="400mbit+200mbit",
                        help="rates of the links, joined by '+'")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--compute", type=float, default=40.0,
                        help="milliseconds of compute an iteration is scaled to (40)")
    parser.add_argument("--iterations", type=int, default=80,
                        help="of one run (80); the last --window are looked at")
    parser.add_argument("--window", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=120.0,
                        help="seconds one run may take (120)")
    parser.add_argument("--json", help="write figures and raw samples to this file; "
                                       "cells that are there already are kept")
    options = parser.parse_args(arguments)
    options.policies = options.policies.split(",")
    for name in options.policies:
        if name not in POLICIES:
            parser.error(f"--policies: '{name}' is none of {', '.join(POLICIES)}")
    try:
        options.coverage = [float(value) for value in options.coverage.split(",")]
        options.rates = options.links.split("+")
        if any(hosts.rate_bits(rate) is None for rate in options.rates):
            parser.error("--links: a coverage rate needs links with a rate")
    except (ValueError, hosts.SetupError) as error:
        parser.error(str(error))
    if (min(options.coverage) <= 0 or options.compute <= 0
        or not 0 < options.window < options.iterations):
        parser.error("--coverage, --compute and --window must be above 0, "
                     "--iterations above --window")
    options.before = earlier_record(parser, "--json", options.json, "cells")
    different = differences(options) if options.before and options.before["cells"] else []
    if different:
        parser.error(f"--json {options.json}: its cells were measured otherwise "
                     f"({'; '.join(different)}); name another file")
    return options


def shared(options):
    """What all cells of a file have in common."""
    return {"links": options.links, "compute_ms": options.compute, "iterations": options.iterations,
            "window": options.window, "burst_ms": BURST_MS}


def differences(options):
    """What the cells of an earlier record do not share with those that would be put beside them."""
    def words(name, theirs, ours):
        return [] if theirs == ours else [f"{name} {theirs}, not {ours}"]
    found = [words(name, options.before.get(name), value)
             for name, value in shared(options).items()]
    here, there = machine.describe(), options.before.get("machine", {})
    return sum(found + [words(name, there.get(name), here[name]) for name in ("cpu", "cpus")], [])


def tool(parts, *arguments):
    done = subprocess.run([parts.deft, *arguments], capture_output=True, text=True, timeout=120,
                          check=False)
    if done.returncode:
        raise ranks.RunFailed(f"deft {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Model:
    """A model of the planner's at its own size; the measured job is smaller and slower by fixed
    factors."""

    def __init__(self, name, parts, folder, options):
        self.name, self.parts, self.options = name, parts, options
        self.path = os.path.join(folder, f"{name}.json")
        self._folder = folder
        tool(parts, "plan", "--profile", f"model:{name}", "--links", "10GbE", "--ranks", "2",
             "--policy", "none", "--save-profile", self.path)
        with open(self.path, encoding="utf-8") as file:
            self.profile = json.load(file)
        self.compute_ms = self.profile["forward_ms"] + self.profile["backward_ms"]
        self.bytes = sum(bucket["bytes"] for bucket in self.profile["buckets"])

    def scales(self, coverage, gbit):
        """(time, size) so that compute takes --compute and all gradients take `coverage` times
        that at `gbit`."""
        wanted = coverage * self.options.compute / 1e3 * gbit * 1e9 / 8
        return self.options.compute / self.compute_ms, wanted / self.bytes

    def links(self, gbit, scales):
        """The links as the full-size model would see them: one, since the plugin stripes every
        message over all."""
        path = os.path.join(self._folder, "links.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"links": [{"name": "all", "gbit_per_s": gbit * scales[0] / scales[1]}]},
                      file)
        return path

    def plan(self, policy, gbit, scales, out=None):
        """Milliseconds the simulator predicts for the scaled job, and their bound."""
        return min(self._plan(asked, policy, gbit, scales, out) for asked in POLICIES[policy][2:])

    def _plan(self, asked, policy, gbit, scales, out):
        name, delay, merge, how = (*asked, "turns")[:4]
        text = tool(self.parts, "plan", "--profile", self.path, "--links", self.links(gbit, scales),
                    "--ranks", "2", "--policy", name, "--max-delay", str(delay), "--max-merge",
                    str(merge), "--merge", how, "--json", *priced(policy),
                    *(["--barrier", "layer"] if policy in STAND_INS else []),
                    *(["--out", out] if out else []))
        predicted = json.loads(text)["predicted"]
        return tuple(predicted[name] * 1e3 * scales[0] for name in ("iteration_s", "bound_s"))


def bound_of_kind(profile, compute_ms, coverage, late, updates):
    """Milliseconds below which no plan is that has so many updates an iteration and so much of the
    bytes late: compute, what the links take for the updates, and what is fresh at the end of
    backward. The fresh bytes are those that backward begins with."""
    scale = compute_ms / (profile["forward_ms"] + profile["backward_ms"])
    total = sum(bucket["bytes"] for bucket in profile["buckets"])
    least = max(compute_ms, updates * coverage * compute_ms)
    if updates < 1 or late >= 1:
        return least
    fresh, before, costs = (1 - late) * total, 0, []
    for bucket in profile["buckets"]:
        sent = min(max(fresh - before, 0), bucket["bytes"])
        costs.append(sent / total * coverage * compute_ms)
        before += bucket["bytes"]
    ends = [scale * bucket["ready_ms"] + sum(costs[k:])
            for k, bucket in enumerate(profile["buckets"]) if costs[k] > 0]
    last = max([scale * profile["backward_ms"], *ends])
    return max(least, scale * profile["forward_ms"] + last)


def cell(model, coverage, policy, network, parts, options, gbit, lanes):
    """One run beside its prediction."""
    fast = max(range(len(lanes)), key=lanes.__getitem__)
    scales = model.scales(coverage, gbit)
    with tempfile.TemporaryDirectory(prefix="deft-policies-") as folder:
        schedule = os.path.join(folder, "schedule.json") if policy in STAND_INS else None
        predicted, bound = model.plan(policy, lanes[fast] if policy == "plain" else gbit, scales,
                                      schedule)

        def command(results, scratch):
            return [parts.replay, "--profile", model.path, "--time-scale", repr(scales[0]),
                    "--size-scale", repr(scales[1]), "--iterations", str(options.iterations),
                    "--alone", "6", "--id-file", os.path.join(scratch, "id"), "--json", results,
                    *(["--schedule", schedule] if schedule else ["--look"])]
        mode, settings = POLICIES[policy][:2]
        run = ranks.run(network, parts, command, mode, settings,
                        [fast] if policy == "plain" else None, options.timeout)
    times = run.results["iteration_ms"]["raw"]
    took, plan = iterations.typical(times[-options.window:],
                                    iterations.period_of(run.plan)), run.plan
    # The simulator knows nothing of how late this machine's kernels end: it is asked about the
    # compute that was wanted.
    return {"model": model.name, "coverage": coverage, "policy": policy, "iteration_ms": took,
            "predicted_ms": predicted, "error": took / predicted - 1,
            "alone_ms": run.results["alone_ms"]["median"], "compute_ms": run.results["compute_ms"],
            "gradient_bytes": run.results["gradient_bytes"], "raw_gbit": lanes, "raw_ms": times,
            "state": plan.get("state", ""), "reason": plan.get("reason", ""),
            "chosen": plan.get("policy", ""), "planned_ms": plan.get("predicted_ms"),
            "bound_ms": bound,
            "kind_ms": bound_of_kind(model.profile, options.compute, coverage, plan["late"],
                                     plan["updates_per_iteration"])
            if plan.get("late") is not None else None,
            "updates_per_iteration": plan.get("updates_per_iteration"), "late": plan.get("late"),
            **counted(run.results, plan, options.window),
            "in_force": plan.get("state") == "running",
            "replicas_equal": run.results["replicas_equal"], "sent": run.sent,
            "load": round(os.getloadavg()[0], 2)}


def counted(results, plan, window):
    """What the job itself saw: updates an iteration, over whole periods at the end of the run, and
    the part of the last iteration's gradients that was not that iteration's sum."""
    period, zeros = iterations.period_of(plan), results["zero_gradients"]
    last = zeros[-max(window // period, 1) * period:]
    elements = results["gradient_bytes"] / 4
    return {"seen_updates": sum(not zero for zero in last) / len(last) if last else None,
            "seen_late": results["elements_not_the_sum"] / elements}


def needs_plan(policy):
    return POLICIES[policy][0] in ("deft", "covap")


def grid(cells):
    return {(one["model"], one["coverage"], one["policy"]): one for one in cells}


def relative(cells):
    """{policy: {coverage rate: iteration time over plain's, the median over models}}."""
    table, found = {}, grid(cells)
    for policy in POLICIES:
        for coverage in sorted({one["coverage"] for one in cells}):
            values = [one["iteration_ms"] / found[one["model"], coverage, "plain"]["iteration_ms"]
                      for one in cells
                      if (one["policy"], one["coverage"]) == (policy, coverage)
                      and (one["model"], coverage, "plain") in found]
            if values:
                table.setdefault(policy, {})[f"{coverage:g}"] = round(statistics.median(values), 4)
    return table


def seen(cells):
    """The table of what the jobs got, beside what their plans had promised."""
    shown = [one for one in cells if one["in_force"] and one.get("seen_updates") is not None
             and POLICIES[one["policy"]][0] == "deft"
             and (one["late"] or one["updates_per_iteration"] < 1)]
    if not shown:
        return []
    text = ["## What the updates got", "",
            "Of plans that were late or merged, at the end of the run. No plan with as many "
            "updates and as much that is late is faster than the bound, by the compute that was "
            "wanted and the rates of plain TCP. Late is the part of the "
            "last iteration's gradients that was not that iteration's sum, and updates are the "
            "iterations with any: seen by the job, and in brackets as the plan said.", "",
            "| model | coverage | policy | ms | bound | over it | late | updates an iteration |",
            "|---|---|---|---|---|---|---|---|"]
    for one in sorted(shown, key=lambda one: (one["model"], one["coverage"])):
        bound = one.get("kind_ms") or one["bound_ms"]
        text.append(f"| {one['model']} | {one['coverage']:g} | {one['policy']} "
                    f"| {one['iteration_ms']:.1f} | {bound:.1f} "
                    f"| {100 * (one['iteration_ms'] / bound - 1):+.1f} % "
                    f"| {100 * one['seen_late']:.1f} % ({100 * one['late']:.1f} %) "
                    f"| {one['seen_updates']:.3f} ({one['updates_per_iteration']:.3f}) |")
    return [*text, ""]


def markdown(document):
    cells, found = document["cells"], grid(document["cells"])
    rates = sorted({one["coverage"] for one in cells})
    text = ["# Policies, measured next to the simulator", "",
            "`python3 perf/policies/run.py` runs perf/jobs/replay on two hosts over "
            f"{document['links']}. Compute is scaled to {document['compute_ms']:g} ms, and "
            "gradients to the coverage rate: time to transfer on all links over time to compute. "
            f"The machine has {document['machine']['cpu']}, {document['machine']['cpus']} cores.",
            "",
            "A cell has the median iteration in ms; of a plan with a period, the mean over its "
            "median period. Behind it stands how far the simulator's prediction is off (measured "
            "/ predicted - 1). The prediction knows rates of plain TCP and the model, nothing of "
            "this machine. `*`: the plan was not in force. bytescheduler and us-byte are stand-ins "
            "that need a changed framework.", ""]
    for model in dict.fromkeys(one["model"] for one in cells):
        text += [f"## {model}", "",
                 "| policy | " + " | ".join(f"coverage {rate:g}" for rate in rates) + " |",
                 "|---|" + "---|" * len(rates)]
        for policy in POLICIES:
            if not any((model, rate, policy) in found for rate in rates):
                continue
            row = []
            for rate in rates:
                one = found.get((model, rate, policy))
                row.append("-" if one is None else f"{one['iteration_ms']:.1f} "
                                                   f"({100 * one['error']:+.0f} %)"
                           + ("*" if needs_plan(policy) and not one["in_force"] else ""))
            text.append(f"| {policy} | " + " | ".join(row) + " |")
        text.append("")
    text += seen(cells)
    text += against_stand_ins(cells, found, rates)
    errors = sorted(abs(one["error"]) for one in cells if not needs_plan(one["policy"])
                    or one["in_force"])
    if errors:
        text += ["", f"Prediction over {len(errors)} cells: "
                     f"median error {100 * statistics.median(errors):.1f} %, "
                     "90 % of them below "
                     f"{100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))]:.1f} %, "
                     f"largest {100 * errors[-1]:.1f} %.", ""]
    return "\n".join(text)


def against_stand_ins(cells, found, rates):
    if not any(one["policy"] in STAND_INS for one in cells):
        return []
    text = ["## DeFT against the stand-ins", "",
             "A cell is the iteration time of the better of ByteScheduler and US-Byte over that "
             "of mode deft; above 1 deft is faster. deft merges: an update may hold two "
             "iterations' gradients. deft-turns is `DEFT_MERGE=turns`.", "",
             "| model | " + " | ".join(f"coverage {rate:g}" for rate in rates) + " |",
             "|---|" + "---|" * len(rates)]
    for model in dict.fromkeys(one["model"] for one in cells):
        for policy in ("deft", "deft-turns"):
            row = []
            for rate in rates:
                ours = found.get((model, rate, policy))
                theirs = [found[model, rate, name]["iteration_ms"] for name in STAND_INS
                          if (model, rate, name) in found]
                row.append(f"{min(theirs) / ours['iteration_ms']:.2f}" if ours and theirs else "-")
            text.append(f"| {model}, {policy} | " + " | ".join(row) + " |")
    return text


def save(path, document):
    document["relative"] = relative(document["cells"])
    records.replace(path, document)
    with open(os.path.splitext(path)[0] + ".md", "w", encoding="utf-8") as file:
        file.write(pages.wrapped(markdown(document)))


def main():
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    document = {"format": "deft-policies", "version": 1, "machine": machine.describe(),
                **shared(options), "cells": []}
    if options.before:
        document["cells"] = options.before["cells"]
    failed, start = False, time.monotonic()
    try:
        parts = ranks.Parts(options.build, ROOT)
        if hosts.choose("namespaces")[0] == "userns":
            hosts.enter_user_namespace()
        with hosts.create(2, options.rates, "namespaces",
                          burst_ms=BURST_MS) as network, tempfile.TemporaryDirectory() as folder:
            for name in options.models.split(","):
                model = Model(name, parts, folder, options)
                for coverage in options.coverage:
                    missing = [policy for policy in options.policies
                               if (name, coverage, policy) not in grid(document["cells"])]
                    lanes = ranks.raw_gbit(network, parts) if missing else []
                    for policy in missing:
                        try:
                            one = cell(model, coverage, policy, network, parts, options, sum(lanes),
                                       lanes)
                        except ranks.RunFailed as error:
                            failed = True
                            print(f"{name} coverage {coverage:g} {policy}: failed: {error}",
                                  flush=True)
                            continue
                        document["cells"].append(one)
                        print(f"{name:10} {coverage:4g} {policy:14} {one['iteration_ms']:7.1f} ms, "
                              f"predicted {one['predicted_ms']:7.1f} ({100 * one['error']:+.0f} %) "
                              f"{one['state']} {one['chosen']} {one['reason']}", flush=True)
                        if options.json:
                            save(options.json, document)
    except hosts.SetupError as error:
        print(f"policies: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    if options.json:
        save(options.json, document)
    print(f"\n{len(document['cells'])} cells; {time.monotonic() - start:.0f} s")
    print(markdown(document))
    return exits.FAILED if failed else 0


if __name__ == "__main__":
    exits.run("policies", main)
