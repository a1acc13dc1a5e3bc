# SPDX-License-Identifier: Apache-2.0
"""Bytes by network and iteration time of a DDP job on two hosts with an active RDMA port, in every
mode, beside the run without deft.

    python3 perf/rdma/run.py --build build [--rounds 3] [--rates 2gbit+1gbit] [--json FILE]

The RDMA port is made up: a tree in sysfs's form says that the first link is a RoCE port's, and the
stand-in NCCL's transport "IB" uses it over TCP. Every round runs all modes one after the other on
the same links; a ratio is paired within a round. Bars: the job's bytes are IB's in every mode
(deft's only where a plan has lanes), Socket's none; the iteration takes at most 1.02 times that
without deft. Exit codes: perf/common/exits.py.
"""

import glob
import os
import runpy
import signal
import statistics
import sys
import tempfile
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, hosts, iterations, machine, pages, ranks, rdma_tree, records
from ..common.arguments import OneLineParser, earlier_record

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LOSS = 1.02      # times the run without deft that no mode may take
MB = 1e6
HEADER = "| run | IB, MB | deft, MB | Socket, MB | iteration, ms | times without deft | plan |"
# What is run: DEFT_MODE, further settings. "replace" is what an operator has to ask for, and has no
# bar.
CASES = {
    "without deft": (None, {}),
    "observe": ("observe", {}),
    "exact": ("exact", {}),
    "exact, no lanes": ("exact", {"DEFT_LANES": "none"}),
    "deft": ("deft", {}),
    "covap": ("covap", {}),
    "exact, replace": ("exact", {"DEFT_RDMA": "replace"}),
}
NO_LANES = ("without deft", "observe", "exact, no lanes")


def parse(arguments):
    parser = OneLineParser(label="rdma", prog="perf/rdma/run.py",
                           description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rates", default="2gbit+1gbit",
                        help="of the RDMA port's link and of the other one (2gbit+1gbit)")
    parser.add_argument("--cases", default=",".join(CASES).replace(", ", "; "),
                        help="a list; default: all")
    parser.add_argument("--rounds", type=int, default=3,
                        help="paired rounds behind each median (3)")
    parser.add_argument("--iterations", type=int, default=90,
                        help="of one run (90); the last --window are looked at")
    parser.add_argument("--window", type=int, default=30)
    parser.add_argument("--device-ms", type=float, default=100.0,
                        help="an iteration's compute, as on a GPU (100)")
    parser.add_argument("--timeout", type=float, default=180.0,
                        help="seconds one run may take (180)")
    parser.add_argument("--json", help="write figures and raw samples to this file, "
                                       "and a page beside it; rounds that are there are kept")
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="Python that has torch and sklearn")
    options = parser.parse_args(arguments)
    options.cases = [case.replace("; ", ", ") for case in options.cases.split(",")]
    for case in options.cases:
        if case not in CASES:
            parser.error(f"--cases: '{case}' is none of " +
                         ", ".join(f"'{name}'" for name in CASES).replace(", no", "; no"))
    if "without deft" not in options.cases:
        parser.error("--cases: 'without deft' is what the others are compared with")
    options.rates = options.rates.split("+")
    try:
        if len(options.rates) != 2 or None in [hosts.rate_bits(rate) for rate in options.rates]:
            parser.error("--rates: two links with a rate, for instance 2gbit+1gbit")
    except hosts.SetupError as error:
        parser.error(str(error))
    if options.rounds < 1 or options.window < 1 or options.iterations < options.window + 10:
        parser.error("--rounds and --window must be above 0, "
                     "and --iterations at least --window + 10")
    options.before = earlier_record(parser, "--json", options.json, "results")
    if options.before and any(set(one) != set(options.cases) for one in options.before["results"]):
        parser.error(f"--json {options.json}: has rounds of other cases; name another file")
    return options


def bytes_by_network(folder):
    """{network: bytes that all ranks sent}, as the stand-in NCCL counted them."""
    total = {}
    for path in glob.glob(os.path.join(folder, "bytes-*")):
        with open(path, encoding="ascii") as file:
            for line in file:
                name, count = line.split()
                total[name] = total.get(name, 0) + int(count)
    return total


def one_run(network, parts, options, case):
    mode, settings = CASES[case]

    def command(results, _folder):
        return [options.python, parts.launcher, "--libs", parts.libraries, parts.ddp, "--epochs",
                "100", "--iterations", str(options.iterations), "--bucket-cap-mb", "5",
                "--print-every", "1000", "--device-ms", str(options.device_ms), "--batch", "4",
                "--json", results]

    with tempfile.TemporaryDirectory(prefix="deft-rdma-") as folder:
        tree = os.path.join(folder, "sys")
        rdma_tree.add_port(tree, "mlx5_0", "eth0", "10.77.0.1", rate="400 Gb/sec (4X NDR)")
        run = ranks.run(network, parts, command, mode=mode, timeout=options.timeout, bind=True,
                        settings={
                            "DEFT_SYSFS": tree, "SOFTDEV_SYSFS": tree,
                            "SOFTDEV_NET_BYTES": os.path.join(folder, "bytes-%p"),
                            "DEFT_WARMUP": "20", **settings})
        sent = bytes_by_network(folder)
    plan = run.plan
    period = iterations.period_of(plan)
    lanes = [int(count) for count in plan.get("lane_bytes", [])]
    return {"iteration_ms": iterations.typical(run.results["iteration_ms"]["raw"][-options.window:],
                                               period),
            "raw_ms": run.results["iteration_ms"]["raw"], "network_bytes": sent,
            "link_bytes": run.sent, "plan": plan.get("state", "-"),
            "policy": plan.get("policy", ""), "reason": plan.get("reason", ""), "lane_bytes": lanes,
            "replicas_equal": run.results["replicas_equal"], "checksum": run.results["checksum"],
            "warnings": [line.replace(os.path.realpath(options.build) + os.sep, "")
                         for line in run.warnings], "foreign": run.foreign}


def judged(rounds):
    """[{bar, value, need, met}] and the medians, by case."""
    bars, cases = [], {}
    for case in rounds[0]:
        runs = [one[case] for one in rounds]
        ratio = statistics.median(one[case]["iteration_ms"] / one["without deft"]["iteration_ms"]
                                  for one in rounds)
        sent = {name: statistics.median(run["network_bytes"].get(name, 0) for run in runs)
                for name in ("IB", "deft", "Socket")}
        cases[case] = {"iteration_ms": statistics.median(run["iteration_ms"] for run in runs),
                       "of_plain": ratio, "sent": sent, "plan": runs[-1]["plan"],
                       "lanes": any(sum(run["lane_bytes"][1:]) for run in runs)}
        if case.endswith("replace"):
            bars.append({"bar": f"{case}: bytes of IB", "value": sent["IB"], "need": 0,
                         "met": sent["IB"] == 0})
            continue
        bars.append({"bar": f"{case}: times the run without deft", "value": ratio, "need": LOSS,
                     "met": ratio <= LOSS})
        bars.append({"bar": f"{case}: bytes of Socket", "value": sent["Socket"], "need": 0,
                     "met": sent["Socket"] == 0})
        if case in NO_LANES:
            strays = max(run["network_bytes"].get("deft", 0) for run in runs)
            bars.append({"bar": f"{case}: bytes of deft", "value": strays, "need": 0,
                         "met": strays == 0})
        bars.append({"bar": f"{case}: replicas that differ",
                     "value": sum(not run["replicas_equal"] for run in runs), "need": 0,
                     "met": all(run["replicas_equal"] for run in runs)})
    return bars, cases


def table(cases):
    lines = [HEADER, "|---|---|---|---|---|---|---|"]
    for case, of in cases.items():
        sent = of["sent"]
        lines.append(f"| {case} | {sent['IB'] / MB:.0f} | {sent['deft'] / MB:.1f} | "
                     f"{sent['Socket'] / MB:.0f} | {of['iteration_ms']:.1f} | {of['of_plain']:.3f} "
                     f"| {of['plan']} |")
    return "\n".join(lines) + "\n"


def save(path, document, cases):
    records.replace(path, document)
    page = os.path.splitext(path)[0] + ".md"
    below = pages.words_below(page, HEADER)
    where = document["machine"]
    with open(page, "w", encoding="utf-8") as file:
        file.write("# A DDP job on hosts with an active RDMA port\n\n"
                   "`python3 perf/rdma/run.py`; two hosts made of network namespaces; "
                   "the (made-up) RoCE port's\n"
                   f"link has {document['rates'][0]}, the other one {document['rates'][1]}. "
                   f"Medians of {document['rounds_count']} paired rounds of "
                   f"{document['iterations']}\n"
                   f"iterations; {where['cpu']}, {where['cpus']} cores. "
                   "Bytes are those of both ranks, as the\n"
                   "stand-in NCCL counted them. Bars: IB's bytes are the job's, "
                   "1.02 times the run without deft.\n\n" + table(cases) + below)


def main():
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        environment, revision = machine.describe(), machine.revision(ROOT)
        parts = ranks.Parts(options.build, ROOT)
        if hosts.choose("namespaces")[0] == "userns":
            hosts.enter_user_namespace()
        rounds = list(options.before["results"]) if options.before else []
        with hosts.create(count=2, rates=options.rates, kind="namespaces") as network:
            for _ in range(options.rounds):
                rounds.append({})
                for case in options.cases:
                    rounds[-1][case] = one_run(network, parts, options, case)
                    run = rounds[-1][case]
                    print(f"round {len(rounds)}, {case}: {run['iteration_ms']:.1f} ms, "
                          f"{run['network_bytes']}, {run['plan']} {run['reason']}",
                          flush=True)
                    for warning in run["warnings"]:
                        print("    " + warning, flush=True)
    except (hosts.SetupError, ranks.RunFailed) as error:
        print(f"rdma: {error}", file=sys.stderr)
        return exits.LACKING if isinstance(error, hosts.SetupError) else exits.FAILED
    bars, cases = judged(rounds)
    print("\n" + table(cases))
    for bar in bars:
        print(f"  {'met ' if bar['met'] else 'NOT '} {bar['value']:.3f} <= "
              f"{bar['need']:g} {bar['bar']}")
    if options.json:
        save(options.json, {"format": "deft-rdma", "version": 1, "machine": environment,
                            "revision": revision, "rates": options.rates,
                            "rounds_count": len(rounds), "iterations": options.iterations,
                            "window": options.window, "device_ms": options.device_ms, "bars": bars,
                            "results": rounds}, cases)
    return exits.MET if all(bar["met"] for bar in bars) else exits.MISSED


if __name__ == "__main__":
    exits.run("rdma", main)
