# SPDX-License-Identifier: Apache-2.0
"""Iteration time of whole jobs without deft, in mode exact and in mode deft, beside the lower bound
of each mode.

    python3 perf/e2e/run.py --build build [--jobs replay,ddp,ddp-cores] [--cases 2gbit+1gbit,...]
        [--rounds 3] [--json FILE]

Every round runs the modes one after the other on the same links, with plain TCP on all links
measured in between; a figure is the median over rounds of figures paired within a round. A run
beside which other programs took CPU time is repeated. Exit codes: 0 all bars met; 1 one is not; 2
wrong usage; 3 the machine lacks something; 4 a run failed.
"""

import json
import os
import runpy
import signal
import statistics
import sys
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import bounds, exits, hosts, iterations, machine, pages, ranks, records, relay
from ..common.arguments import OneLineParser, earlier_record

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HEADER = "| links | mode | ms | bound | times bound | with carrying | times plain | plan |"
MODES = ("plain", "exact", "deft", "layers")
# Mode layers in an order that is named, as layers-dear.
ORDERS = tuple(f"layers-{order}" for order in ("best", "bytescheduler", "us-byte", "dear"))
JOBS = ("replay", "ddp", "ddp-cores")
# Parameters are sharded: perf/jobs/sharded.
SHARDED = ("fsdp", "fsdp-grouped", "hsdp")
CASES = ("2gbit+1gbit", "1gbit+500mbit", "1gbit+100mbit", "1gbit")
NEAR = 1.05      # times the lower bound that a mode may take
NEAR_SHARDED = 1 / 0.93  # the same of a sharded job
GAIN = 1 / 1.1   # times mode exact that layers may take which wait for themselves
LOSS = 1.02      # times the run without deft that no mode may take
WARM_UP = 20     # DEFT_WARMUP
FOREIGN = 0.03   # of the machine's CPU time that other programs may take during a run
TRIES = 3        # for a run that others do not disturb
# that a link sends at once after a rest: a bound that knows nothing of it is that much too high,
# once an iteration
BURST_MS = 1.0
# iterations of a run of the DDP job without transfers, and how many of them are not looked at
ALONE = 80, 10
APART = {"DEFT_INTERFACES": "=eth0", "NCCL_SOCKET_IFNAME": "=eth1", "DEFT_LANES": "Socket"}
# Of the DDP job on the GPU that is not there: images a rank, which the cores compute in some 50 ms.
ON_A_GPU = ["--batch", "4"]
# Of the sharded jobs. On 2 + 1 Gbit/s two ranks take 8 ms to gather a layer.
LAYERS, LAYER_BYTES = 4, 6_000_000
# The replayed iteration: buckets as DDP makes them of a model with a large input side, as shares of
# bytes and of compute.
SHARES = [(0.06, 0.40), (0.22, 0.55), (0.22, 0.70), (0.22, 0.85), (0.28, 0.98)]


def parse(arguments):
    parser = OneLineParser(label="e2e", prog="perf/e2e/run.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--jobs", default="replay,ddp",
                        help="a list of replay, ddp (an iteration's compute takes its time "
                        "as on a GPU) and ddp-cores (it takes the cores that carry the bytes), "
                        "or of fsdp, fsdp-grouped and hsdp (parameters are sharded); "
                        "default: the first two")
    parser.add_argument("--cases", default=",".join(CASES),
                        help="rates of the links, joined by '+': a list (default: all four)")
    parser.add_argument("--modes", default=",".join(MODES[:3]),
                        help="default: plain,exact,deft; layers: exact with DEFT_LAYERWISE=auto, "
                        "of replay and the DDP jobs; layers-dear: and that DEFT_PLAN")
    parser.add_argument("--coverage", default="0.9,1.6",
                        help="replay: time to transfer over time to compute, on all links (a list)")
    parser.add_argument("--apart", action="store_true",
                        help="two links: deft's plugin drives the first, "
                             "NCCL's Socket transport the second (DEFT_LANES); "
                             "plain is Socket alone")
    parser.add_argument("--bind", default="ddp,ddp-cores",
                        help="jobs whose ranks get a CPU each, "
                             "where there are enough (a list; default: ddp,ddp-cores)")
    parser.add_argument("--compute", type=float, default=80.0,
                        help="replay: milliseconds of compute an iteration (80)")
    parser.add_argument("--device", type=float, default=150.0,
                        help="ddp: milliseconds of the GPU an iteration (150)")
    parser.add_argument("--delay", type=float, default=0,
                        help="milliseconds that every packet takes longer, by a relay on the CPU: "
                        "what a transfer takes to start")
    parser.add_argument("--iterations", type=int, default=110,
                        help="of one run (110); the last --window are looked at")
    parser.add_argument("--window", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3,
                        help="paired rounds behind each median (3)")
    parser.add_argument("--timeout", type=float, default=180.0,
                        help="seconds one run may take (180)")
    parser.add_argument("--json", help="write figures and raw samples to this file; "
                                       "cases that are there already are kept")
    parser.add_argument("--nccl", help="NCCL's own libnccl.so.2 in place of the stand-in "
                                       "(softdev/nccl_kernels/README.md says how to build one)")
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="Python that has torch and sklearn, for the DDP job")
    options = parser.parse_args(arguments)
    options.jobs, options.modes = options.jobs.split(","), options.modes.split(",")
    options.bind = options.bind.split(",") if options.bind else []
    for name, chosen, known in (("--jobs", options.jobs, JOBS + SHARDED),
                                ("--modes", options.modes, MODES + ORDERS),
                                ("--bind", options.bind, JOBS)):
        for one in chosen:
            if one not in known:
                parser.error(f"{name}: '{one}' is none of {', '.join(known)}")
    if options.apart and any(case.count("+") != 1 for case in options.cases.split(",")):
        parser.error("--apart: cases of two links, for instance --cases 2gbit+1gbit")
    if has_layers(options) and (options.apart or set(options.jobs) & set(SHARDED)):
        parser.error("--modes layers: of replay and the DDP jobs, and not --apart")
    if "plain" not in options.modes:
        parser.error("--modes: plain is what the others are compared with")
    try:
        options.coverage = [float(value) for value in options.coverage.split(",")]
        options.cases = [case.split("+") for case in options.cases.split(",")]
        for case in options.cases:
            for rate in case:
                if hosts.rate_bits(rate) is None:
                    parser.error("--cases: a lower bound needs links with a rate")
    except (ValueError, hosts.SetupError) as error:
        parser.error(str(error))
    if (min(options.coverage) <= 0 or options.compute <= 0 or options.rounds < 1
        or options.window < 1):
        parser.error("--coverage, --compute, --rounds and --window must be above 0")
    if options.iterations < options.window + WARM_UP + 30:
        parser.error(f"--iterations must be at least --window + {WARM_UP + 30}: "
                     "a plan has to come into force before")
    options.before = earlier_record(parser, "--json", options.json, "results")
    return options


def profile(path, compute_ms, coverage, gbit, count):
    """Writes the replayed iteration: all gradients together take `coverage` times the compute on
    all links."""
    total = coverage * compute_ms / 1e3 * gbit * 1e9 / 8 * count / (2 * (count - 1))
    with open(path, "w", encoding="utf-8") as file:
        ready = [max(0.0, (at - 1 / 3) * compute_ms) for _, at in SHARES]
        json.dump({"format": "deft-profile", "version": 1, "name": f"coverage {coverage:g}",
                   "source": "perf/e2e", "forward_ms": compute_ms / 3,
                   "backward_ms": compute_ms * 2 / 3,
                   # Forward of a layer takes half of what its backward takes.
                   "buckets": [{"bytes": int(share * total) // 4 * 4, "ready_ms": at,
                                "forward_ms": (at - before) / 2}
                               for (share, _), at, before in zip(SHARES, ready, [0.0, *ready])]},
                  file)


def waits(mode):
    """Layers wait for their own gradients in it."""
    return mode.split("-", maxsplit=1)[0] == "layers"


def order_of(mode):
    """DEFT_PLAN of such a mode."""
    return mode.partition("-")[2] or "auto"


def has_layers(options):
    return any(waits(mode) for mode in options.modes)


def jobs_of(options, parts):
    """(name, coverage or None) of every job."""
    jobs = [("replay", value) for value in options.coverage] if "replay" in options.jobs else []
    return jobs + [(job, None) for job in (*JOBS[1:], *SHARDED) if job in options.jobs]


def command_of(job, coverage, options, parts, gbit, count, mode=None):
    def replay(results, folder, *more):
        path = os.path.join(folder, "profile.json")
        profile(path, options.compute, coverage, gbit, 2)
        return [parts.replay, "--profile", path, "--iterations", str(count), "--alone", "8",
                "--id-file", os.path.join(folder, "id"), "--json", results, *more]

    def ddp(results, _folder):
        # NCCL's own library is found by LD_LIBRARY_PATH, with the device that it runs on.
        libraries = [] if parts.nccl else ["--libs", parts.libraries]
        return [options.python, parts.launcher, *libraries, parts.ddp, "--epochs",
                "100", "--iterations", str(count), "--bucket-cap-mb", "5", "--print-every", "1000",
                "--json", results,
                *(["--device-ms", str(options.device), *ON_A_GPU] if job == "ddp" else []),
                # Layers step when their sums are there, and not where the job does: beside
                # transfers. There Adam takes a core four times as long, and not a GPU.
                *(["--optimizer-share", "0", "--optimizer", "sgd"] if has_layers(options)
                  else [])]

    def sharded(results, folder):
        return [parts.sharded, "--kind", job, "--layers", str(LAYERS), "--bytes", str(LAYER_BYTES),
                "--compute-ms", str(options.compute), "--iterations", str(count),
                "--id-file", os.path.join(folder, "id"), "--json", results]
    if job == "replay" and mode is not None and waits(mode):
        return lambda results, folder: replay(results, folder, "--layers")
    return replay if job == "replay" else sharded if job in SHARDED else ddp


def settled(run, window):
    return iterations.typical(run.results["iteration_ms"]["raw"][-window:],
                              iterations.period_of(run.plan))


def undisturbed(*arguments, **more):
    """ranks.run(), again where other programs took CPU time meanwhile. The last of three is
    kept, and its `foreign` tells."""
    for _ in range(TRIES):
        runs = ranks.run(*arguments, **more)
        one = runs[0] if isinstance(runs, list) else runs
        if one.foreign <= FOREIGN:
            break
        print(f"other programs took {one.foreign:.0%} of the CPUs", file=sys.stderr, flush=True)
    return runs


def shape_of_replay(runs):
    """(compute, ready, bytes) of the replayed iteration in seconds and bytes, as it really took.
    The job measures its compute alone at the beginning of every run; the fastest of a round is
    what it takes undisturbed."""
    run = runs["plain"]
    wanted = run.results["compute_ms"]
    compute = min(one.results["alone_ms"]["median"] or wanted for one in runs.values()) / 1e3
    return (compute, [bucket["ready_ms"] / wanted * compute for bucket in run.results["buckets"]],
            [bucket["bytes"] for bucket in run.results["buckets"]])


def shape_of_ddp(alone):
    """(compute, ready, bytes, CPU time) of the DDP job's iteration where transfers cost nothing.
    `alone`: [run][rank]. Of its time the slower rank counts: the other one waits for it. CPU
    time is rank 0's, as what is compared with it: of a run with transfers no other rank tells
    any. Of deft's report only the proportions are taken, since it has timed other iterations."""
    by_rank = list(zip(*alone))
    middle = [statistics.median(value for run in runs
                                for value in run.results["iteration_ms"]["raw"][ALONE[1]:])
              for runs in by_rank]
    buckets = [run.observed.get("buckets") for runs in by_rank for run in runs]
    if not all(buckets):
        raise ranks.RunFailed("deft has learned no iteration of the DDP job alone")
    compute = max(middle) / 1e3
    ready = [compute * statistics.median(
        one[i]["ready_ms"]["median"] / one[-1]["ready_ms"]["median"] for one in buckets)
             for i in range(len(buckets[0]))]
    cpu = statistics.median(value for run in by_rank[0]
                            for value in run.results["cpu_ms"]["raw"][ALONE[1]:])
    return compute, ready, [bucket["bytes"] for bucket in buckets[0]], cpu / 1e3


def sharded_bound(job, compute, gbit, count):
    """(bound, seconds of all transfers). Each of n ranks sends n - 1 parts of a gathered layer; of
    HSDP's sums of a shard, 2 (n - 1) / n."""
    part = LAYER_BYTES / count
    gather = 8e-9 * part * (count - 1) / gbit
    scatter = gather + (8e-9 * part * 2 * (count - 1) / count / gbit if job == "hsdp" else 0)
    return (bounds.sharded(compute, LAYERS, gather, scatter),
            LAYERS * (2 * gather + scatter))


def without_deft(options, network, parts, command, bind):
    """The run without deft that a user would take: NCCL's Socket transport over all links, which
    carry equal shares, or over the fastest one. (the faster run, its links, ms of all)"""
    fast = max(range(len(network.rates)), key=lambda link: hosts.rate_bits(network.rates[link]))
    choices = {"the fastest link": [fast]}
    if len(network.rates) > 1:
        choices["all links"] = None
    runs = {name: undisturbed(network, parts, command, None, {}, links, options.timeout, bind)
            for name, links in choices.items()}
    times = {name: settled(run, options.window) for name, run in runs.items()}
    best = min(times, key=times.__getitem__)
    return runs[best], best, times


def one_round(job, coverage, options, parts, network, gbit):
    """The modes one after the other: {mode: figures}."""
    command = command_of(job, coverage, options, parts, gbit, options.iterations)
    bind, runs, alone = job in options.bind, {}, []

    def run_alone():
        if job not in ("replay", *SHARDED):
            alone.append(undisturbed(network, parts,
                                     command_of(job, coverage, options, parts, gbit, ALONE[0]),
                                     "observe", timeout=options.timeout, bind=bind, alone=True))
    run_alone()
    for mode in options.modes:
        if mode == "plain":
            runs[mode], socket_links, socket_ms = without_deft(options, network, parts, command,
                                                               bind)
            continue
        settings = {"DEFT_GRADIENTS": "trust", "DEFT_WARMUP": str(WARM_UP),
                    "DEFT_OPTIMIZER": "adam"} if mode == "deft" else {}
        if waits(mode):
            settings.update({"DEFT_LAYERWISE": "auto", "DEFT_PLAN": order_of(mode)})
        if options.apart:
            settings.update(APART)
        of_mode = command
        if waits(mode):
            of_mode = command_of(job, coverage, options, parts, gbit, options.iterations, mode)
        runs[mode] = undisturbed(network, parts, of_mode, "exact" if waits(mode) else mode,
                                 settings, None, options.timeout, bind)
    run_alone()
    carry = None
    if job in SHARDED:
        return figures_of_sharded(job, options, runs, socket_links, socket_ms, gbit,
                                  len(network.hosts))
    if job == "replay":
        compute, ready, sizes = shape_of_replay(runs)
    else:
        compute, ready, sizes, cpu = shape_of_ddp(alone)
    if job == "ddp-cores":
        carry = max(0.0,
                    statistics.median(
                        runs["plain"].results["cpu_ms"]["raw"][-options.window:]) / 1e3 - cpu)
    cost = bounds.costs(sizes, gbit, len(network.hosts))
    plain = settled(runs["plain"], options.window)
    figures = {}
    for mode, run in runs.items():
        took = settled(run, options.window)
        kind = "layers" if waits(mode) else mode
        bound = 1e3 * bounds.of_mode(kind, compute, ready, cost)
        plan = run.plan
        figures[mode] = {
            "iteration_ms": took, "raw_ms": run.results["iteration_ms"]["raw"], "bound_ms": bound,
            "of_bound": took / bound,
            "of_plain": took / plain, "compute_ms": compute * 1e3, "transfer_ms": 1e3 * sum(cost),
            "sent": run.sent,
            "replicas_equal": run.results["replicas_equal"], "warnings": run.warnings,
            "state": plan.get("state", ""),
            "policy": plan.get("policy", ""), "reason": plan.get("reason", ""),
            "switched": plan.get("switched", 0),
            "period": iterations.period_of(plan), "predicted_ms": plan.get("predicted_ms"),
            "before_ms": plan.get("before_ms"),
            "guard_decisions": plan.get("guard_decisions", 0), "foreign": run.foreign}
        if carry is not None:
            carried = 1e3 * bounds.of_mode_carried(kind, compute, ready, cost, carry)
            figures[mode].update({
                "carried_bound_ms": carried, "of_carried_bound": took / carried,
                "carry_ms": carry * 1e3})
        if "cpu_ms" in run.results:
            figures[mode]["cpu_raw_ms"] = run.results["cpu_ms"]["raw"]
    figures["plain"].update({"links": socket_links, "links_ms": socket_ms})
    if alone:
        figures["plain"].update({"ready_ms": [1e3 * at for at in ready],
                                 "alone_raw_ms": [[one.results["iteration_ms"]["raw"]
                                                   for one in pair] for pair in alone]})
    return figures


def figures_of_sharded(job, options, runs, socket_links, socket_ms, gbit, count):
    bound, transfers = sharded_bound(job, options.compute / 1e3, gbit, count)
    plain = settled(runs["plain"], options.window)
    figures = {}
    for mode, run in runs.items():
        took = settled(run, options.window)
        plans = run.observed.get("plans") or [{}]
        running = [plan for plan in plans if plan.get("state") == "running"]
        plan = running[0] if running else plans[0]
        figures[mode] = {
            "iteration_ms": took, "raw_ms": run.results["iteration_ms"]["raw"],
            "bound_ms": 1e3 * bound, "of_bound": took / 1e3 / bound, "of_plain": took / plain,
            "compute_ms": options.compute, "transfer_ms": 1e3 * transfers, "sent": run.sent,
            "replicas_equal": run.results["digest"] == runs["plain"].results["digest"],
            "warnings": run.warnings, "state": plan.get("state", ""),
            "policy": "+".join(one.get("policy", "") for one in running) or plan.get("policy", ""),
            "reason": plan.get("reason", ""), "switched": plan.get("switched", 0), "period": 1,
            "predicted_ms": plan.get("predicted_ms"), "before_ms": plan.get("before_ms"),
            "guard_decisions": 0, "foreign": run.foreign}
    figures["plain"].update({"links": socket_links, "links_ms": socket_ms})
    return figures


def measure(job, coverage, rates, options, parts, revision):
    relays = ({link: relay.laid_by(options.build) for link in range(len(rates))} if options.delay
              else None)
    with hosts.create(2, rates, "namespaces", burst_ms=BURST_MS, relays=relays) as network:
        raw, rounds, load = [], [], []
        for laid in network.relays.values() if relays else ():
            laid.tell(f"both delay {options.delay:g}")
        for _ in range(options.rounds):
            load.append(round(os.getloadavg()[0], 2))
            lanes = ranks.raw_gbit(network, parts)
            raw.append(lanes)
            rounds.append(one_round(job, coverage, options, parts, network, sum(lanes)))
    title = ((job if coverage is None else f"{job}, coverage {coverage:g}")
             + (f", {options.device:g} ms" if job == "ddp" and options.device != 150 else "")
             + (", layers" if has_layers(options) else "")
             + (", named" if set(options.modes) & set(ORDERS) else "")
             + (f", packets take {options.delay:g} ms" if options.delay else "")
             + (", networks apart" if options.apart else "")
             + (", NCCL's own library" if options.nccl else ""))
    result = {"case": "+".join(rates), "job": title, "raw_gbit": raw, "load_before": load,
              "rounds": rounds, "bars": [], "modes": {}, "revision": revision, "burst_ms": BURST_MS,
              "iterations": options.iterations, "window": options.window,
              "compute": None if coverage is None else options.compute}
    for mode in rounds[0]:
        of = {key: statistics.median(one[mode][key] for one in rounds)
              for key in ("iteration_ms", "bound_ms", "of_bound", "of_plain", "compute_ms",
                          "transfer_ms", "carried_bound_ms", "of_carried_bound", "carry_ms")
              if key in rounds[0][mode]}
        last = rounds[-1][mode]
        of.update({"plan": plan_words(mode, [one[mode] for one in rounds]),
                   "sent_MB": [sent / 1e6 for sent in last["sent"]]})
        result["modes"][mode] = of
        if mode != "plain":
            near = NEAR_SHARDED if job in SHARDED else NEAR
            result["bars"] += [{"bar": f"{mode}: times its lower bound", "value": of["of_bound"],
                                "need": near, "met": of["of_bound"] <= near},
                               {"bar": f"{mode}: times the run without deft",
                                "value": of["of_plain"], "need": LOSS,
                                "met": of["of_plain"] <= LOSS}]
        if waits(mode) and "exact" in rounds[0]:
            gain = statistics.median(one[mode]["iteration_ms"] / one["exact"]["iteration_ms"]
                                     for one in rounds)
            result["bars"].append({"bar": f"{mode}: times mode exact", "value": gain,
                                   "need": GAIN, "met": gain <= GAIN})
        if not all(one[mode]["replicas_equal"] for one in rounds):
            result["bars"].append({"bar": f"{mode}: replicas equal", "value": 0, "need": 1,
                                   "met": False})
    return result


def plan_words(mode, rounds):
    """What happened to the plan, in a few words."""
    if mode == "plain":
        return " or ".join(sorted({one.get("links", "the fastest link") for one in rounds}))
    last = rounds[-1]
    if last["state"] == "running":
        running = sum(one["state"] == "running" for one in rounds)
        return f"{last['policy']}, in force in {running} of {len(rounds)}"
    words = last["state"] + (f": {last['reason']}" if last["reason"] else "")
    return words + (", was in force" if last["switched"] else ", never in force")


def coverage_of(result):
    """As measured: time to transfer over time to compute."""
    plain = result["modes"]["plain"]
    return plain["transfer_ms"] / plain["compute_ms"]


def show(result):
    print(f"\n{result['case']}, {result['job']}: "
          f"plain TCP {sum(result['raw_gbit'][-1]):.2f} Gbit/s, coverage {coverage_of(result):.2f}")
    for mode, of in result["modes"].items():
        print(f"  {mode:8} {of['iteration_ms']:7.1f} ms  bound {of['bound_ms']:7.1f}  x "
              f"{of['of_bound']:.3f}   of plain {of['of_plain']:.3f}   " +
              (f"x {of['of_carried_bound']:.3f} of {of['carried_bound_ms']:.1f} with carrying   "
               if "carry_ms" in of else "") + of["plan"])
    for bar in result["bars"]:
        print(f"    {'met ' if bar['met'] else 'NOT '} {bar['value']:.3f} <= "
              f"{bar['need']:g} {bar['bar']}", flush=True)


def table(results):
    """Markdown of all cases: a table for each job."""
    lines = []
    for job in dict.fromkeys(result["job"] for result in results):
        lines += [f"## {job}", "",
                  HEADER,
                  "|---|---|---|---|---|---|---|---|"]
        for result in results:
            if result["job"] == job:
                lines += [row(result["case"], mode, of)
                          for mode, of in result.get("modes", {}).items()]
        lines.append("")
    return "\n".join(lines)


def row(case, mode, of):
    """One mode of one case."""
    near = "" if mode == "plain" or of["of_bound"] <= NEAR else "**"
    loss = "" if of["of_plain"] <= LOSS else "**"
    carried = (f"{of['of_carried_bound']:.3f} of {of['carried_bound_ms']:.1f}"
               if "carry_ms" in of else "-")
    return (f"| {case} | {mode} | {of['iteration_ms']:.1f} | {of['bound_ms']:.1f} | "
            f"{near}{of['of_bound']:.3f}{near} | {carried} | "
            f"{loss}{of['of_plain']:.3f}{loss} | {of['plan']} |")


def machines(results):
    """Which CPUs measured which jobs."""
    jobs = {}
    for result in results:
        where = result.get("machine", {})
        jobs.setdefault(f"{where.get('cpu', '?')}, {where.get('cpus', '?')} cores",
                        set()).add(result["job"].split(",")[0])
    return "; ".join(f"{cpu} ({' and '.join(sorted(names))})" for cpu, names in jobs.items())


def save(path, environment, results):
    # A file holds results of several runs: each says with which settings it was measured.
    document = {"format": "deft-e2e", "version": 1, "machine": environment, "results": results}
    records.replace(path, document)
    page = os.path.splitext(path)[0] + ".md"
    below = pages.words_below(page, HEADER)
    rounds = sorted({len(result["rounds"]) for result in results})
    with open(page, "w", encoding="utf-8") as file:
        count = " to ".join(str(count) for count in (rounds[0], rounds[-1])[:len(rounds)])
        file.write(pages.wrapped(
            "# Iteration time against the lower bound of each mode\n\n"
            "`python3 perf/e2e/run.py` runs whole jobs on two hosts made of network namespaces. "
            f"Figures are medians of {count} paired rounds. The machines: {machines(results)}. "
            "Load averages before each round are in the raw data.\n\n"
            "`ms` is the time of an iteration, `bound` its lower bound in ms, `plain` the run "
            "without deft. Bars: 1.05 times the bound, 1.02 times plain; bold is above its bar.\n\n"
            + table(results)) + below)


def main():
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    environment, revision, failed = machine.describe(), machine.revision(ROOT), False
    results = []
    if options.before:
        # Of records from before each result had its own. How many iterations there were, the raw
        # samples tell.
        known = {name: options.before[name] for name in ("window",) if name in options.before}
        results = [{"machine": options.before.get("machine", {}), **known, **result}
                   for result in options.before["results"]]
    try:
        parts = ranks.Parts(options.build, ROOT, options.nccl)
        if hosts.choose("namespaces")[0] == "userns":
            hosts.enter_user_namespace()
        for rates in options.cases:
            for job, coverage in jobs_of(options, parts):
                start = time.monotonic()
                try:
                    result = measure(job, coverage, rates, options, parts, revision)
                except ranks.RunFailed as error:
                    failed = True
                    print(f"\n{'+'.join(rates)}, {job}: failed: {error}", flush=True)
                    continue
                result["machine"] = environment
                result["took_s"] = round(time.monotonic() - start, 1)
                show(result)
                measured = (result["case"], result["job"])
                results = [one for one in results if (one["case"], one["job"]) != measured]
                results.append(result)
                if options.json:
                    save(options.json, environment, results)
    except hosts.SetupError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    bars = [bar for result in results for bar in result["bars"]]
    missed = sum(not bar["met"] for bar in bars)
    print(f"\n{len(bars) - missed} of {len(bars)} bars met")
    return exits.of_bars(missed, failed)


if __name__ == "__main__":
    exits.run("e2e", main)
