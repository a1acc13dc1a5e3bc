# SPDX-License-Identifier: Apache-2.0
"""Runs a job of paced messages through every kind of fault, over deft and over the stand-in's
Socket transport, and compares.

    python3 perf/faults [--case NAME,...] [--group NAME,...] [--quick | --full] [--json FILE]
        [--build build]

Exit codes: 0 all bars met; 1 one is not; 2 wrong usage; 3 the machine lacks something; 4 a run
could not be carried out.
"""

import concurrent.futures
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, hosts, machine, relay
from ..common.arguments import OneLineParser, check_output
from . import cases, jobs, ratios, report, scene, verdict

HERE = os.path.dirname(os.path.realpath(__file__))
PERF = os.path.dirname(HERE)
ROOT = os.path.dirname(PERF)
RATIOS = "ratios"
GROUPS = [*dict.fromkeys(case.group for case in cases.CASES.values()), RATIOS]
LIMIT = 900   # seconds one run may take


def parse(arguments):
    parser = OneLineParser(prog="perf/faults", description=__doc__.split("\n\n", maxsplit=1)[0],
                           epilog="cases: " + ", ".join(cases.CASES) + "; of the group ratios: " +
                           ", ".join(ratios.BESIDE))
    parser.add_argument("--case", help="which cases, a list (default: all but the group ratios)")
    parser.add_argument("--group", help="which groups, a list of " + ", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true",
                        help="a few short cases of every kind, deft alone: less than two minutes")
    parser.add_argument("--full", action="store_true",
                        help="each run five times, and the group ratios")
    parser.add_argument("--repeat", type=int, default=0,
                        help="how often each run is made (default: 1, with --full 5)")
    parser.add_argument("--transports", default="",
                        help="deft, socket or both (default: both; with --quick deft)")
    parser.add_argument("--at-once", type=int, default=4,
                        help="runs at the same time, ratios aside (default: 4)")
    parser.add_argument("--slack", type=float, default=0.0,
                        help="seconds added to the bounds of errors, "
                             "for a loaded machine (default: 0)")
    parser.add_argument("--seed", type=int, default=1,
                        help="of the packets' fates and the bytes (default: 1)")
    parser.add_argument("--json", nargs="?", const="-",
                        help="write figures and raw samples to this file (none: standard output)")
    parser.add_argument("--table", metavar="FILE",
                        help="run nothing; print the tables of an earlier --json as Markdown")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"),
                        help="build folder (default: build)")
    parser.add_argument("--one",
                        help="internal: one run, CASE,WHERE,TRANSPORT,SEED, as a line of JSON")
    options = parser.parse_args(arguments)
    options.build = os.path.abspath(options.build)
    options.repeat = options.repeat or (5 if options.full else 1)
    options.transports = [name for name in options.transports.split(",") if name] or \
        ([scene.DEFT] if options.quick else list(verdict.TRANSPORTS))
    if options.repeat < 1 or options.at_once < 1 or options.slack < 0:
        parser.error("--repeat and --at-once must be positive, --slack not negative")
    for case in cases.CASES.values():
        if case.bound is not None:
            case.bound += options.slack
    for name in options.transports:
        if name not in verdict.TRANSPORTS:
            parser.error(f"--transports {name}: deft or socket")
    choose(parser, options)
    if options.json != "-":
        check_output(parser, "--json", options.json)
    return options


def choose(parser, options):
    """Sets options.cases and options.beside to the names that are to run."""
    known = [*cases.CASES, *ratios.BESIDE]
    groups = [name.strip() for name in (options.group or "").split(",") if name.strip()]
    names = [name.strip() for name in (options.case or "").split(",") if name.strip()]
    for name in groups:
        if name not in GROUPS:
            parser.error(f"there is no group '{name}'; groups are {', '.join(GROUPS)}")
    for name in names:
        if name not in known:
            parser.error(f"there is no case '{name}'; cases are {', '.join(cases.CASES)}")
    everything = not groups and not names
    options.cases = [case for case in cases.CASES.values()
                     if (everything or case.group in groups or case.name in names)
                     and (case.quick or not options.quick)]
    if RATIOS in groups:
        options.beside = [name for name in ratios.BESIDE if not names or name in names]
        options.cases = [case for case in options.cases if case.group in groups]
    else:
        options.beside = list(ratios.BESIDE) if options.full and everything else []


def one(options):
    """The internal form: a process of its own for each run, so that nothing of one is left for
    another."""
    name, where, transport, seed = options.one.split(",")
    try:
        if where == RATIOS:
            result = ratios.measure(options.build, name, int(seed))
        else:
            case = cases.CASES[name]
            carry_out = jobs.run if case.group == "jobs" else scene.run
            result = verdict.digest(carry_out(options.build, case, where, transport, int(seed)))
    except (scene.RunFailed, relay.RelayGone, OSError, ValueError) as error:
        result = {"failed": str(error)}
    except hosts.SetupError as error:
        result = {"failed": str(error), "lacking": True}
    print(json.dumps(result), flush=True)
    return 0


def start(options, name, where, transport, seed):
    """Makes one run in a child; returns its result, with "failed" where there is none."""
    label = {"case": name, "where": where, "transport": transport, "seed": seed}
    with subprocess.Popen([sys.executable, HERE, "--build", options.build, "--one",
                           f"{name},{where},{transport},{seed}"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as child:
        options.children.add(child)
        try:
            output, errors = child.communicate(timeout=LIMIT)
            return {**label, **json.loads(output)}
        except subprocess.TimeoutExpired:
            child.kill()
            return {**label, "failed": f"not done after {LIMIT} s"}
        except ValueError:
            return {**label, "failed": (errors.strip().splitlines() or ["no result"])[-1]}
        finally:
            options.children.discard(child)


def matrix(options, out):
    """All runs of the chosen cases, the long ones first; [result]."""
    plan = [(case.name, where, transport, options.seed + repeat) for case in options.cases
            for where in case.where
            for transport in options.transports for repeat in range(options.repeat)]
    plan.sort(key=lambda run: -(cases.CASES[run[0]].lasts + cases.CASES[run[0]].patience))
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        running = [pool.submit(start, options, *run) for run in plan]
        try:
            for done in concurrent.futures.as_completed(running):
                result = done.result()
                results.append(result)
                words = result.get("failed") or " | ".join(error["text"]
                                                           for error in result["errors"]) or ""
                print(f"# {len(results)}/{len(plan)} {result['case']} {result['where']} "
                      f"{result['transport']}: "
                      f"{'failed' if 'failed' in result else result['outcome']} {words}", file=out,
                      flush=True)
        except BaseException:
            for each in running:
                each.cancel()
            for child in list(options.children):
                child.kill()
            raise
    return results


def beside(options, out):
    """The group ratios, one after the other; ([result], [missed])."""
    results, missed = [], []
    for name in options.beside:
        pairs = [start(options, name, RATIOS, scene.DEFT, options.seed + repeat)
                 for repeat in range(options.repeat)]
        results += pairs
        good = sorted(pair["ratio"] for pair in pairs if "failed" not in pair)
        words = "; ".join(pair["failed"] for pair in pairs if "failed" in pair)
        met = bool(good) and not words and good[len(good) // 2] >= ratios.BAR
        value = f"{good[len(good) // 2]:.3f}" if good else "none"
        print(f"{'met ' if met else 'NOT '} {value} >= {ratios.BAR}  link 0 with {name}: "
              f"times {ratios.reference(name)} {words}",
              file=out, flush=True)
        if not met:
            missed.append((name, RATIOS, words or f"ratio {value}"))
    return results, missed


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()
    if hosts.choose("namespaces")[0] == "userns":
        hosts.enter_user_namespace()
    if options.one:
        return one(options)
    if options.table:
        return report.markdown(options.table, sys.stdout)
    options.children = set()
    out = sys.stderr if options.json == "-" else sys.stdout
    begin = time.monotonic()
    about = machine.describe()
    try:
        raw, could = ratios.capacity(options.build)
        print(f"The relay without a fault: {raw:.2f} Gbit/s of plain TCP, "
              f"at most {could:.2f} by its own time. Links of the cases: {scene.RATE}.", file=out,
              flush=True)
    except hosts.SetupError as error:
        print(f"faults: {error}", file=sys.stderr)
        return exits.LACKING
    results = matrix(options, out)
    missed = report.show(results, out) if options.cases else []
    pairs, slow = beside(options, out) if options.beside else ([], [])
    failed = [result for result in results + pairs if "failed" in result]
    for result in failed:
        print(f"failed: {result['case']} {result['where']} {result['transport']}: "
              f"{result['failed']}", file=out)
    missed += slow
    print(f"{len(missed)} bars missed, {len(failed)} runs failed; {time.monotonic() - begin:.0f} s",
          file=out, flush=True)
    if options.json:
        report.write(options.json, {"format": "deft-faults", "version": 1, "machine": about,
                                    "revision": machine.revision(ROOT),
                        "seed": options.seed, "link": scene.RATE, "message_bytes": scene.SIZE,
                        "relay_gbit_per_s": {"plain_tcp": raw, "by_its_time": could},
                                    "missed": missed,
                        "seconds": round(time.monotonic() - begin, 1)}, results + pairs)
    return exits.of_bars(missed, failed)


if __name__ == "__main__":
    exits.run("faults", main)
