# SPDX-License-Identifier: Apache-2.0
"""The demo: trains the main job on several "hosts" over links of unequal rate, without and then
with deft.

    python3 perf/demo/run.py --build build [--hosts 2] [--links 400mbit,200mbit] [--epochs 5]
        [--out build/demo]

Exit codes: 0 done; 1 something ran and failed; 2 wrong usage; 3 the machine lacks something (one
line says what).
"""

import fcntl
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import hosts, machine, records
from ..common.arguments import OneLineParser
from . import job, report, timeline

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
JOB = os.path.join(ROOT, "perf", "jobs", "ddp.py")
LAUNCHER = os.path.join(ROOT, "softdev", "torch", "launch.py")
NEEDED_MODULES = ("torch", "numpy", "sklearn")
IMAGES = 1437   # of the digits, in training
MODES = tuple(name for name in report.NAMES if name != "plain")
EXACT = ("observe", "exact", "layers")   # those that promise the numbers of the job without deft
WARM_UP = 44   # iterations, two epochs; the job is short


class WrongUse(RuntimeError):
    """The command line asks for what cannot be; one line."""


class Missing(RuntimeError):
    """The machine or the build lacks something; one line with the remedy."""


def parse(arguments):
    parser = OneLineParser(label="demo", prog="./dev demo", allow_abbrev=False,
                           description="Trains a real PyTorch DDP job on several hosts made of "
                                       "network namespaces, without and with deft, and compares.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"),
                        help="build folder (default: build)")
    parser.add_argument("--out", help="folder for logs and result.json (default: BUILD/demo)")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--links", default="400mbit,200mbit",
                        help="rates of the links between the hosts (default: 400mbit,200mbit)")
    parser.add_argument("--network", choices=["auto", "namespaces", "loopback"], default="auto",
                        help="how hosts are made (default: namespaces, or loopback addresses where "
                             "those are not allowed)")
    parser.add_argument("--modes", default="exact,layers,deft",
                        help="the runs with deft: values of DEFT_MODE, and layers, which is exact "
                             "with DEFT_LAYERWISE=auto (default: exact,layers,deft)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--iterations", type=int, help="stop after so many iterations")
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucket-cap-mb", type=float, default=5.0,
                        help="DDP's bucket size (default: 5, for several buckets)")
    parser.add_argument("--timeout", type=float, default=600.0,
                        help="seconds one run may take (default: 600)")
    parser.add_argument("--python", help="Python that has torch and sklearn (default: found)")
    parser.add_argument("--check-arguments", action="store_true",
                        help="only say whether the arguments are right")
    options = parser.parse_args(arguments)
    for name, least in (("hosts", 2), ("ranks_per_host", 1), ("epochs", 1), ("iterations", 1),
                        ("batch", 1), ("timeout", 1), ("bucket_cap_mb", 0.01)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    options.modes = list(dict.fromkeys(mode.strip() for mode in options.modes.split(",")))
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"--modes: {mode!r} is none of {', '.join(MODES)}")
    options.rates = [rate.strip() for rate in options.links.split(",")]
    try:
        for rate in options.rates:
            hosts.rate_bits(rate)
    except hosts.SetupError as error:
        parser.error(str(error))
    options.build = os.path.abspath(options.build)
    options.out = os.path.abspath(options.out or os.path.join(options.build, "demo"))
    return options


def find_python(wanted, build):
    """A Python that has all the job needs. BUILD/pytorch is what ./dev pytorch makes."""
    check = ("import importlib.util, sys; "
             f"sys.exit(not all(importlib.util.find_spec(name) for name in {NEEDED_MODULES!r}))")
    candidates = [wanted] if wanted else [sys.executable, "/usr/bin/python3",
                                          shutil.which("python3"),
                                             os.path.join(build, "pytorch", "bin", "python")]
    for python in dict.fromkeys(filter(None, candidates)):
        if python == sys.executable and all(importlib.util.find_spec(name)
                                            for name in NEEDED_MODULES):
            return python
        try:
            if subprocess.run([python, "-c", check], capture_output=True, timeout=60,
                              check=False).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    raise Missing(f"no Python with {', '.join(NEEDED_MODULES)} found (tried "
                  f"{', '.join(filter(None, candidates))}); remedy: apt install python3-torch "
                  "python3-numpy python3-sklearn libopenblas0-pthread, or ./dev pytorch")


def find_parts(options):
    """The files of the build the demo uses; Missing names the first that is not there."""
    parts = {"launcher": LAUNCHER, "job": JOB,
             "deft": os.path.join(options.build, "tools", "deft"),
             "library": os.path.join(options.build, "packaging", "libnccl-net-deft.so"),
             "cuda": os.path.join(options.build, "softdev", "cuda", "libcuda.so.1"),
             "nccl": os.path.join(options.build, "softdev", "nccl", "libnccl.so.2")}
    for path in parts.values():
        if not os.path.exists(path):
            raise Missing(f"{path} is missing; remedy: ./dev build (or: "
                          f"meson setup {options.build} && ninja -C {options.build})")
    return parts


def lock_folder(path):
    """Makes the folder ours; while another demo uses it, one inside it named after this process.
    Returns (folder, lock)."""
    try:
        os.makedirs(path, exist_ok=True)
        lock = open(os.path.join(path, ".lock"), "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise WrongUse(
            f"{path}: {error.strerror}; name a folder that can be written to with --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path, lock
    except BlockingIOError:
        lock.close()
        own = os.path.join(path, f"run-{os.getpid()}")
        print(f"another demo is running in {path}; this one writes to {own}", flush=True)
        return lock_folder(own)


def clear(folder):
    """Removes the files of an earlier demo, nothing else."""
    for name in os.listdir(folder):
        if (name in ("result.json", "timeline.html")
                or name.startswith(tuple(report.NAMES)) and name.endswith((".json", ".log"))):
            os.remove(os.path.join(folder, name))


def job_arguments(options, results):
    arguments = ["--model", options.model, "--epochs", str(options.epochs), "--batch",
                 str(options.batch), "--optimizer", options.optimizer, "--seed", str(options.seed),
                 "--bucket-cap-mb", str(options.bucket_cap_mb), "--print-every", "2", "--json",
                 results]
    return arguments + (["--iterations", str(options.iterations)] if options.iterations else [])


def run_phases(options, parts, python, network, folder):
    """Both runs; returns them as they go into result.json."""
    world = options.hosts * options.ranks_per_host
    share = max(1, IMAGES // world // options.batch)
    total = min(options.iterations or share * options.epochs, share * options.epochs)
    libraries = os.path.join(options.build, "softdev")

    def rank_command(results):
        return [python, LAUNCHER, "--libs", libraries, JOB, *job_arguments(options, results)]

    fast = max(range(len(options.rates)), key=lambda link: hosts.rate_bits(options.rates[link])
               or float("inf"))

    def plain_environment(_host, _rank):
        return {"NCCL_NET_PLUGIN": "none",
                **({"NCCL_SOCKET_IFNAME": f"=eth{fast}"} if network.shaped else {})}

    def deft_environment(host, _rank):
        if network.shaped:
            return {"NCCL_SOCKET_IFNAME": "eth"}
        return {"DEFT_INTERFACES": network.interfaces(host)}

    phases = {}
    plain = job.Phase("plain", "without deft", network, folder, options.ranks_per_host,
                      options.timeout)
    results, seconds, traffic = plain.run(rank_command(plain.results_file), plain_environment,
                                          total)
    phases["plain"] = {"job": results, "seconds": seconds, "traffic": traffic,
                       "activity": report.last_activity(results, plain.activity),
                       "transport": "NCCL's Socket transport on "
                                    f"{f'eth{fast}' if network.shaped else 'lo'}"}

    for mode in options.modes:
        deft = job.Phase(mode, f"with deft, {report.NAMES[mode]}", network, folder,
                         options.ranks_per_host, options.timeout)
        settings = {"DEFT_WARMUP": str(WARM_UP)}
        if mode not in EXACT:
            settings["DEFT_GRADIENTS"] = "trust"
            print(f"mode {mode}: with DEFT_GRADIENTS=trust, which says that the large sums of this "
                  f"job are gradients; mode {mode} does what exact does without it "
                  "(docs/accuracy.md)", flush=True)
        if mode == "layers":
            settings["DEFT_LAYERWISE"] = "auto"
        command = [parts["deft"], "run", "--mode", "exact" if mode == "layers" else mode, "--out",
                   os.path.join(folder, f"{mode}-observe-%r.json"), "--library", parts["library"],
                   "--", *rank_command(deft.results_file)]
        results, seconds, traffic = deft.run(
            command,
            lambda host, rank, settings=settings: {**deft_environment(host, rank), **settings},
            total)
        observed, complaints = report.read_observed(folder, mode, world)
        phases[mode] = {"job": results, "seconds": seconds, "traffic": traffic, "mode": mode,
                        "activity": report.last_activity(results, deft.activity),
                        "transport": "deft's plugin over all links", "observed": observed,
                        "complaints": complaints}
    return phases


def judge(options, phases, world):
    """Prints what is good and what is not about each run with deft; returns (all good, how far
    losses agree)."""
    good, same = True, {}
    for mode in options.modes:
        phase, title = phases[mode], report.NAMES[mode]
        hooks, plugin, line = report.verdict(phase["observed"], world)
        phase["hooks_in_path"], phase["plugin_in_path"] = hooks, plugin
        print(f"{title}: {line}")
        for complaint in phase["complaints"]:
            print(f"{title}: complaint: {complaint}")
        good = good and hooks and plugin and not phase["complaints"]
        same[mode] = report.agreement(phases["plain"]["job"], phase["job"])
        if mode in EXACT:
            print(f"{title}: losses with and without deft agree: {same[mode]}")
            good = good and same[mode] != "no"
        if mode != "observe":
            phase["plan"] = report.plan_words(phase)
            print(f"{title}: {phase['plan']}")
    equal = all(phase["job"]["replicas_equal"] for phase in phases.values())
    print(f"replicas equal in every run: {'yes' if equal else 'NO'}")
    return good and equal, same


def conclude(options, network, reason, phases, folder, seconds):
    """Prints the comparison, writes result.json and timeline.html; returns the exit code."""
    world = options.hosts * options.ranks_per_host
    limits = report.lower_bounds(phases, options.rates, world)
    rows = report.comparison(phases, network.shaped, limits)
    print()
    print("\n".join(report.table(rows)))
    if limits:
        print(report.BOUND)
    first = phases[options.modes[0]]
    if first["observed"]:
        print("\nThe iteration deft has learned (rank 0):")
        print("\n".join(report.buckets(first["observed"][0])))
        print("\nLinks, as deft counted them:")
        print("\n".join(report.links(first["observed"])))
    print()
    good, same = judge(options, phases, world)
    if not network.shaped:
        print("note: no network namespaces here, so nothing is shaped: deft paces itself and the "
              "run without deft has the whole loopback; the times cannot be compared")
    for phase in phases.values():
        phase["job"].pop("format", None)
    described = machine.describe()
    with open(os.path.join(folder, "timeline.html"), "w", encoding="utf-8") as file:
        about = [report.verdict_sentence(phases, good, same, network.shaped),
                 *report.circumstances(options, network, described, time.strftime("%F %T %Z"))]
        file.write(timeline.page(phases, rows, options.rates, limits, about))
    records.replace(os.path.join(folder, "result.json"), {
        "format": "deft-demo", "version": 4, "machine": described,
        "seconds": round(seconds, 1),
        "network": {"kind": network.kind, "shaped": network.shaped, "reason": reason,
                    "hosts": options.hosts, "ranks_per_host": options.ranks_per_host,
                    "links": [{"name": f"eth{link}" if network.shaped
                               else network.hosts[0].address(link), "rate": rate,
                               "bits_per_second": hosts.rate_bits(rate)}
                              for link, rate in enumerate(options.rates)]},
        "comparison": rows, "lower_bound_ms": limits, "phases": phases, "losses_agree": same,
        "good": good})
    print(f"{os.path.join(folder, 'result.json')} has all figures, timeline.html the picture; "
          f"{seconds:.0f} s in all")
    return 0 if good else 1


def demo(options):
    parts = find_parts(options)
    python = find_python(options.python, options.build)
    kind, reason = hosts.choose(options.network)
    if kind == "userns":
        hosts.enter_user_namespace()
    start = time.monotonic()
    folder, lock = lock_folder(options.out)
    clear(folder)
    with lock, hosts.create(options.hosts, options.rates, options.network) as network:
        print(f"{network.describe()}; {options.hosts * options.ranks_per_host} ranks; "
              f"logs in {folder}", flush=True)
        if not network.shaped:
            print(f"no network namespaces: {reason}", flush=True)
        phases = run_phases(options, parts, python, network, folder)
        return conclude(options, network, reason, phases, folder, time.monotonic() - start)


def main():
    options = parse(sys.argv[1:])
    if options.check_arguments:
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        return demo(options)
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    except WrongUse as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (Missing, hosts.SetupError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 3
    except job.JobError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
