# SPDX-License-Identifier: Apache-2.0
"""Iteration time of jobs whose calls deft's tuner looks after, next to NCCL's own choice and the
best of all fixed choices.

    python3 perf/tuner/run.py --build build [--rate 1gbit] [--rounds 3] [--json FILE]
        [--nccl /path/libnccl.so.2]

Every round runs each case with each choice, one after the other on the same links. A figure is the
median over rounds. Exit codes: 0 all bars met; 1 one is not; 2 wrong usage; 3 the machine lacks
something; 4 a run failed.
"""

import os
import runpy
import statistics
import sys
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, hosts, machine, ranks, records
from ..common.arguments import OneLineParser, check_output

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LOSS = 1.02   # times the time with NCCL's own choice that the tuner may take
NEAR = 0.95   # of the speed of the best fixed choice that the tuner has to reach
GAUGE = 40   # iterations that tell how many a run needs
TUNER = {"DEFT_TUNER": "auto"}
OWN = {"DEFT_TUNER": "off"}
# What a user could set for the whole job instead.
FIXED = {f"{algorithm}/{protocol}{' 1 channel' if narrow else ''}":
         {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol, "DEFT_TUNER": "off",
          **({"NCCL_MAX_NCHANNELS": "1"} if narrow else {})}
         for algorithm in ("Ring", "Tree") for protocol in ("Simple", "LL")
         for narrow in (False, True)}
KIB = 1024
# Name: the calls of an iteration, and milliseconds of compute among them.
JOBS = {
    "DDP": ("allreduce:1048576,allreduce:4194304,allreduce:4194304,allreduce:65536", 20),
    "FSDP": ("allgather:1048576,allgather:1048576,reducescatter:1048576,allgather:1048576,"
             "reducescatter:1048576", 20),
}
SIZES = "4,64,1024,8192"


def parse(arguments):
    parser = OneLineParser(label="tuner", prog="perf/tuner/run.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rate", default="1gbit", help="of the link between the two hosts (1gbit)")
    parser.add_argument("--sizes", default=SIZES, help=f"KiB of a single call, a list ({SIZES})")
    parser.add_argument("--calls", default="allreduce,allgather,reducescatter",
                        help="a list of allreduce, allgather, reducescatter (all)")
    parser.add_argument("--jobs", default=",".join(JOBS), help="a list of DDP, FSDP (both)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0,
                        help="of one run without the tuner (3); its second half is looked at")
    parser.add_argument("--settle", type=float, default=20.0,
                        help="seconds that a run with the tuner takes longer (20)")
    parser.add_argument("--timeout", type=float, default=180.0)
    parser.add_argument("--nccl", help="NCCL's own libnccl.so.2 in place of the stand-in")
    parser.add_argument("--json", help="write figures and raw samples to this file")
    options = parser.parse_args(arguments)
    try:
        hosts.rate_bits(options.rate)
        sizes = [int(size) for size in options.sizes.split(",") if size]
    except (ValueError, hosts.SetupError) as error:
        parser.error(str(error))
    options.cases = {f"{call}, {size} KiB": (f"{call}:{size * KIB}", 0)
                     for call in options.calls.split(",") if call for size in sizes}
    for job in filter(None, options.jobs.split(",")):
        if job not in JOBS:
            parser.error(f"--jobs: '{job}' is none of {', '.join(JOBS)}")
        options.cases[job] = JOBS[job]
    check_output(parser, "--json", options.json)
    return options


def once(network, parts, options, case, settings, iterations, looked):
    """The median of the last iterations, and what the tuner has said."""
    calls, compute = case
    program = os.path.join(os.path.abspath(options.build), "perf", "tuner", "tuner_job")

    def command(results, folder):
        # Rank 0 alone writes; the hosts share the folder.
        return [program, calls, str(iterations), str(compute),
                os.path.join(folder, "id"), results]
    free = {"NCCL_ALGO": None, "NCCL_PAT_ENABLE": "0"} if parts.nccl else {}
    run = ranks.run(network, parts, command, mode="exact", settings={**free, **settings},
                    timeout=options.timeout)
    if run.results["wrong"]:
        raise ranks.RunFailed(f"{run.results['wrong']} elements are wrong")
    timed = [time for time in run.results["iteration_ms"] if time > 0]
    return statistics.median(timed[-looked:]), run.plan.get("tuning", {})


def fixed_for(name):
    """Trees are for sums alone, so elsewhere they would be the ring again."""
    sums = name.startswith("allreduce") or name == "DDP"
    return {one: settings for one, settings in FIXED.items() if sums or one.startswith("Ring")}


def measure(name, case, network, parts, options):
    choices = {"NCCL's own": OWN, "tuner": TUNER, **fixed_for(name)}
    samples = {choice: [] for choice in choices}
    said = []
    gauged, _ = once(network, parts, options, case, OWN, GAUGE, GAUGE // 2)
    iterations = max(GAUGE, int(options.seconds * 1e3 / gauged))
    for _ in range(options.rounds):
        for choice, settings in choices.items():
            longer = int(options.settle * 1e3 / gauged) if choice == "tuner" else 0
            time, tuning = once(network, parts, options, case, settings, iterations + longer,
                                iterations // 2)
            samples[choice].append(round(time, 4))
            if choice == "tuner":
                said.append(tuning)
    medians = {choice: statistics.median(times) for choice, times in samples.items()}
    own, tuned = medians["NCCL's own"], medians["tuner"]
    best = min((choice for choice in choices if choice != "tuner"), key=medians.get)
    return {"case": name, "own_ms": own, "tuned_ms": tuned, "best": best,
            "best_ms": medians[best], "of_own": tuned / own, "of_best": medians[best] / tuned,
            "samples": samples, "tuning": said}


def kept(one):
    """What the tuner has found, in each round; of a job's calls, those that it has changed."""
    found = []
    for tuning in one["tuning"]:
        if tuning.get("state") != "settled":
            found.append("not settled")
            continue
        choices = sorted({call["choice"] for call in tuning["calls"]})
        changed = [choice for choice in choices if choice != "NCCL's own choice"]
        found.append(" and ".join(changed) or "nothing")
    return "; ".join(sorted(set(found)))


def table(results):
    yield ("| case | NCCL's own, ms | tuner, ms | tuner / own | best fixed choice | its ms "
           "| best / tuner | what the tuner changed |")
    yield "|---|---|---|---|---|---|---|---|"
    for one in results:
        yield (f"| {one['case']} | {one['own_ms']:.2f} | {one['tuned_ms']:.2f} "
               f"| {one['of_own']:.2f} | {one['best']} | {one['best_ms']:.2f} "
               f"| {one['of_best']:.2f} | {kept(one)} |")


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    try:
        parts = ranks.Parts(options.build, ROOT, options.nccl)
        results = []
        with hosts.create(2, [options.rate], "namespaces") as network:
            for name, case in options.cases.items():
                results.append(measure(name, case, network, parts, options))
                print(list(table(results))[-1], flush=True)
    except hosts.SetupError as error:
        print(f"tuner: {error}", file=sys.stderr)
        return exits.LACKING
    except ranks.RunFailed as error:
        print(f"tuner: {error}", file=sys.stderr)
        return exits.FAILED
    print("\n".join(table(results)))
    missed = [one["case"] for one in results if one["of_own"] > LOSS or one["of_best"] < NEAR
              or "not settled" in kept(one)]
    for case in missed:
        print(f"bar missed: {case}")
    if options.json:
        records.write(options.json, {"machine": machine.describe(), "rate": options.rate,
                                     "nccl": options.nccl or "stand-in", "results": results},
                      ("results",))
    return exits.of_bars(missed, False)


if __name__ == "__main__":
    exits.run("tuner", main)
