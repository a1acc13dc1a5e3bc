# SPDX-License-Identifier: Apache-2.0
"""Measures the plugin over several links and under faults, beside plain TCP, the built-in Socket
transport and MPTCP.

    python3 perf/links [--case NAME,...] [--pairs 5] [--json FILE] [--build build] [--full]
        [--nccl FILE]

Prints each figure beside its bar. Exit codes: 0 all bars met; 1 one is not; 2 wrong usage; 3 the
machine lacks something; 4 a case failed.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, hosts, machine, ranks, records
from ..common.arguments import OneLineParser, check_output
from . import faults, own_nccl, rates, tools, verbs

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TWO = ["2gbit", "1gbit"]
# name: (rates, pipe, what runs)
CASES = {
    "unequal": (TWO, None, lambda bench, options: rates.several_links(bench, options, TWO, 0.95)),
    "equal4": (["1gbit"] * 4, None,
               lambda bench, options: rates.several_links(bench, options, ["1gbit"] * 4, 0.95)),
    "ten-to-one": (["1gbit", "100mbit"], None,
                   lambda bench, options: rates.several_links(bench, options, ["1gbit", "100mbit"],
                                                              0.93, alone=True)),
    "changed-rate": (TWO, None, rates.changed_rate),
    "shared-pipe": (["unshaped", "unshaped"], "1gbit", rates.shared_pipe),
    "one-link": (["unshaped"], None, rates.one_link),
    "send-ways": (["unshaped"], None, rates.send_ways),
    "carrier": (TWO, None, lambda bench, options: faults.one_kind(bench, options, "carrier")),
    "delete": (TWO, None, lambda bench, options: faults.one_kind(bench, options, "delete")),
    "blackhole": (TWO, None, lambda bench, options: faults.one_kind(bench, options, "blackhole")),
    "schedules": (["800mbit", "400mbit"], None, faults.schedules),
    "connections": (TWO, None, faults.many_connections),
    **verbs.CASES,
}


def parse(arguments):
    parser = OneLineParser(prog="perf/links", description=__doc__.split("\n\n", maxsplit=1)[0],
                           epilog="cases: " + ", ".join(CASES))
    parser.add_argument("--case", help="which cases, a list (default: all)")
    parser.add_argument("--pairs", type=int, default=5,
                        help="paired runs behind each median (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="of one measurement (default: 1)")
    parser.add_argument("--schedules", type=int, default=5,
                        help="random schedules of faults (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule (default: 1)")
    parser.add_argument("--full", action="store_true", help="100 schedules")
    parser.add_argument("--json", nargs="?", const="-",
                        help="write figures and raw samples to this file (none: standard output)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"),
                        help="build folder (default: build)")
    parser.add_argument("--nccl", help="whole all-reduces on NCCL's own libnccl.so.2 "
                                       "(softdev/nccl_kernels/README.md); cases: "
                                       + ", ".join(own_nccl.CASES))
    options = parser.parse_args(arguments)
    cases = own_nccl.CASES if options.nccl else CASES
    options.cases = [name.strip() for name in (options.case or ",".join(cases)).split(",")]
    for name in options.cases:
        if name not in cases:
            parser.error(f"there is no case '{name}'; cases are {', '.join(cases)}")
    if options.pairs < 1 or options.seconds <= 0 or options.schedules < 1:
        parser.error("--pairs, --seconds and --schedules must be positive")
    if options.json != "-":
        check_output(parser, "--json", options.json)
    options.schedules = 100 if options.full else options.schedules
    options.build = os.path.abspath(options.build)
    return options


def show(result, out):
    print(f"\n{result['case']} ({result['network']}; {result['took_s']:.0f} s)", file=out)
    for line in result["bars"]:
        value = "none" if line["value"] is None else f"{line['value']:.3f}"
        print(f"  {'met ' if line['met'] else 'NOT '} {value:>8} {line['relation']} "
              f"{line['need']:<5g} {line['unit']:2} {line['bar']}", file=out)
    for name, figure in result["figures"].items():
        if isinstance(figure, dict) and "median" in figure:
            figure = (f"{figure['median']:.3f} ({figure['min']:.3f} .. {figure['max']:.3f}, "
                      f"n={len(figure['samples'])})")
        print(f"         {name}: {figure}", file=out, flush=True)


def run_on_nccl(name, options):
    start = time.monotonic()
    parts = ranks.Parts(options.build, ROOT, options.nccl)
    with hosts.create(2, own_nccl.CASES[name][0], "namespaces", None) as network:
        bars, figures = own_nccl.measure(name, network, parts, options.pairs)
        return {"case": name, "network": network.describe() + ", NCCL's own library", "bars": bars,
                "figures": figures, "took_s": round(time.monotonic() - start, 1)}


def run_case(name, options):
    if options.nccl:
        return run_on_nccl(name, options)
    link_rates, pipe, measure = CASES[name]
    start = time.monotonic()
    with (hosts.create(2, link_rates, "namespaces", pipe) as network,
          tools.Bench(options.build, network) as bench):
        bars, figures = measure(bench, options)
        return {"case": name, "network": network.describe(), "bars": bars, "figures": figures,
                "took_s": round(time.monotonic() - start, 1)}


def main():
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = sys.stderr if options.json == "-" else sys.stdout
    results, failed = [], False
    environment = machine.describe()
    try:
        if hosts.choose("namespaces")[0] == "userns":
            hosts.enter_user_namespace()
        for name in options.cases:
            try:
                results.append(run_case(name, options))
                show(results[-1], out)
            except (tools.RunFailed, ranks.RunFailed, OSError) as error:
                failed = True
                results.append({"case": name, "error": str(error), "bars": []})
                print(f"\n{name}: failed: {error}", file=out, flush=True)
    except hosts.SetupError as error:
        print(f"links: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    bars = [line for result in results for line in result["bars"]]
    missed = sum(not line["met"] for line in bars)
    print(f"\n{len(bars) - missed} of {len(bars)} bars met", file=out)
    if options.json:
        document = {"format": "deft-links", "version": 1, "machine": environment,
                    "pairs": options.pairs, "seconds": options.seconds, "results": results}
        records.write(options.json, document)
    return exits.of_bars(missed, failed)


if __name__ == "__main__":
    exits.run("links", main)
