# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP without deft and in every mode, and FSDP and HSDP with another network: two or four
ranks on one device, two links that are loopback addresses.

    python3 perf/gpu/ddp_modes.py --library LIB [--json FILE] [--prefix "launcher --libs DIR"]

perf/gpu/run.sh calls it on a GPU; with --prefix the software device's launcher it runs on CPUs (a
system test does that). Checks that losses agree with those without deft (observe and exact, also
with a lane of another network or layers that wait: to rounding; deft and covap: that the job still
learns) and that replicas are equal. Exit codes: 0 all good; 1 something is not; 3 no PyTorch with
CUDA.
"""

import glob
import json
import math
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # Called by its path.
    runpy.run_path(Path(__file__).resolve().parents[1] / "bootstrap.py", {"script": __file__})

from ..common import exits, records
from ..common.arguments import OneLineParser, check_output
from ..common.hosts import die_with_parent

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
JOBS = os.path.join(ROOT, "perf", "jobs")
COMPANION = os.path.join(ROOT, "companion")
LINKS = "2gbit,1gbit"
WARM_UP = 20
# DDP's buckets are all that the job sums, but for its loss: one number.
LATE = {"DEFT_MODE": "deft", "DEFT_GRADIENTS": "trust", "DEFT_WARMUP": str(WARM_UP)}
# name: settings; None: without deft
MODES = {
    "plain": None,
    "observe": {"DEFT_MODE": "observe"},
    "exact": {"DEFT_MODE": "exact"},
    "lanes": {**LATE, "DEFT_LANES": "Socket", "DEFT_PLAN": "delay0"},  # mode exact's plan, named
    "deft": LATE,
    "delay1": {**LATE, "DEFT_PLAN": "delay1"},
    "merge2": {**LATE, "DEFT_PLAN": "merge2"},
    "covap": {**LATE, "DEFT_MODE": "covap", "DEFT_PLAN": "covap2"},
    # Nobody vouches: the companion proves what the sums are.
    "proven": {"DEFT_MODE": "deft", "DEFT_MAX_MERGE": "2", "DEFT_WARMUP": str(WARM_UP),
               "PYTHONPATH": COMPANION},
    "layers": {"DEFT_MODE": "exact", "DEFT_LAYERWISE": "auto", "DEFT_WARMUP": str(WARM_UP),
               "PYTHONPATH": COMPANION},
    "tuner": {"DEFT_MODE": "exact", "DEFT_TUNER": "auto"},
    # Sharded jobs, each compared with its own run without deft.
    "fsdp": None,
    "fsdp-lanes": {"DEFT_MODE": "exact", "DEFT_LANES": "Socket", "DEFT_WARMUP": str(WARM_UP)},
    "hsdp": None,
    "hsdp-lanes": {"DEFT_MODE": "exact", "DEFT_LANES": "Socket", "DEFT_WARMUP": str(WARM_UP)},
}
# promise the numbers of the job without deft
SAME = ("observe", "exact", "lanes", "layers", "tuner", "fsdp-lanes", "hsdp-lanes")
# a plan has to come into force
PLANNED = ("lanes", "delay1", "merge2", "covap", "proven", "fsdp-lanes", "hsdp-lanes")
CLOSE = 1e-3   # of losses: PyTorch's own kernels need not give the same bits twice


class Failed(RuntimeError):
    """One line, and the rank's last lines."""


def parse(arguments):
    parser = OneLineParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--library", required=True, help="libnccl-net-deft.so")
    parser.add_argument("--prefix", default="", help="put before the job's script (the software "
                                                     "device's launcher and its options, "
                                                     "quoted as for a shell)")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--bucket-cap-mb", type=float, default=5.0)
    parser.add_argument("--links", default=LINKS, help="a rate for each link between the ranks "
                                                       f"(default {LINKS})")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds one job may take")
    parser.add_argument("--json", help="write the results there")
    options = parser.parse_args(arguments)
    options.modes, options.links = options.modes.split(","), options.links.split(",")
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"--modes: '{mode}' is none of {', '.join(MODES)}")
    for mode in options.modes:
        if reference(mode) not in options.modes[:options.modes.index(mode) + 1]:
            parser.error(f"--modes: {reference(mode)} is what {mode} is compared with, and comes "
                         "first")
    check_output(parser, "--json", options.json)
    options.library = os.path.abspath(options.library)
    if not os.path.exists(options.library):
        parser.error(f"--library {options.library}: there is no such file")
    return options


def interfaces(rank, rates):
    """The links between the two ranks, paced by deft itself."""
    return ",".join(f"127.77.{link}.{rank + 1}@{rate}" for link, rate in enumerate(rates))


def reference(mode):
    """The mode with whose numbers this one's are compared: its job without deft."""
    job = mode.partition("-")[0]
    return job if job in ("fsdp", "hsdp") else "plain"


def ranks_of(mode):
    return 4 if reference(mode) == "hsdp" else 2


def command_of(options, mode, results):
    common = ["--model", options.model, "--iterations", str(options.iterations), "--json", results]
    job = [os.path.join(JOBS, "fsdp.py")]
    if reference(mode) == "hsdp":
        job += ["--replicas", "2"]
    elif reference(mode) == "plain":
        job = [os.path.join(JOBS, "ddp.py"), "--epochs", "100", "--bucket-cap-mb",
               str(options.bucket_cap_mb), "--print-every", "1000"]
    return [options.python, *shlex.split(options.prefix), *job, *common]


def run(options, mode, folder):
    """One job; its results and every rank's report."""
    results = os.path.join(folder, f"{mode}.json")
    command, count = command_of(options, mode, results), ranks_of(mode)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks, logs = [], [os.path.join(folder, f"{mode}-{rank}.log") for rank in range(count)]
    try:
        for rank in range(count):
            environment = {name: value
                           for name, value in os.environ.items()
                           if not name.startswith(("DEFT_", "NCCL_NET"))}
            # Each rank a host of its own: NCCL lets two ranks share a device only then, and every
            # byte crosses the network.
            environment.update({"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                "NCCL_HOSTID": f"deft-host{rank}", "NCCL_SOCKET_IFNAME": "lo",
                                "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0",
                                "NCCL_RAS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
                                "NCCL_NET_PLUGIN": "none", "OMP_NUM_THREADS": "1",
                                "PYTHONUNBUFFERED": "1"})
            if MODES[mode] is not None:
                environment.update({"LD_PRELOAD": options.library,
                                    "NCCL_NET_PLUGIN": options.library, "DEFT_OPTIMIZER": "adam",
                                    "DEFT_INTERFACES": interfaces(rank, options.links),
                                    "DEFT_OUT": os.path.join(folder, f"{mode}-%r.report"),
                                    **MODES[mode]})
            with open(logs[rank], "wb") as log:
                ranks.append(subprocess.Popen(command, env=environment, stdout=log,
                                              stderr=subprocess.STDOUT, cwd=folder,
                                              stdin=subprocess.DEVNULL, start_new_session=True,
                                              preexec_fn=die_with_parent()))
        wait(ranks, logs, mode, time.monotonic() + options.timeout)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
    with open(results, encoding="utf-8") as file:
        result = json.load(file)
    reports = []
    for path in sorted(glob.glob(os.path.join(folder, f"{mode}-*.report"))):
        with open(path, encoding="utf-8") as file:
            reports.append(json.load(file))
    return result, reports


def wait(ranks, logs, mode, end):
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return
        bad = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
        if bad is not None or time.monotonic() > end:
            rank = bad if bad is not None else codes.index(None)
            with open(logs[rank], encoding="utf-8", errors="replace") as file:
                tail = "\n    ".join(file.read().splitlines()[-12:])
            raise Failed(f"{mode}: rank {rank} "
                         + (f"ended with code {codes[rank]}" if bad is not None
                            else "did not end in time") + f":\n    {tail}")
        time.sleep(0.1)


def judge(mode, result, reports, plain):
    """What is wrong with a run: a list of lines."""
    wrong = []
    if not result["replicas_equal"]:
        wrong.append("replicas differ")
    ours, theirs = result["epoch_losses"], plain["epoch_losses"]
    if not all(math.isfinite(loss) for loss in ours):
        wrong.append("a loss is not finite")
    elif mode in SAME and any(abs(a - b) > CLOSE * max(1.0, abs(b)) for a, b in zip(ours, theirs)):
        wrong.append(f"losses differ from those without deft: {ours[-1]:.6f}, not {theirs[-1]:.6f}")
    elif ours[-1] >= ours[0]:
        wrong.append("the job does not learn")
    if mode != reference(mode):
        hooked = [one.get("hooks", {}).get("in_path") for one in reports]
        if len(reports) != ranks_of(mode) or not all(hooked):
            wrong.append("hooks were not in the path on every rank")
        if not all(one.get("plugin", {}).get("loaded") for one in reports):
            wrong.append("NCCL did not take the plugin on every rank")
    plans = [plan for one in reports for plan in one.get("plans", [])]
    # The measured curvature of the job may speak against what the operator allows.
    refused = mode == "proven" and any("rate x curvature" in plan.get("reason", "")
                                       for plan in plans)
    if mode in PLANNED and not refused and not any(plan.get("switched") for plan in plans):
        wrong.append("the plan did not come into force")
    elif mode.endswith("lanes") and not any(sum(plan.get("lane_bytes", [])[1:]) for plan in plans):
        wrong.append("NCCL's Socket transport carried nothing")
    return wrong


def in_force_ms(result):
    """The mean time of an iteration in the second half of the job, where a plan is in force. With
    merged updates every other iteration sends nothing: a median would be that of the others."""
    raw = result["iteration_ms"]["raw"]
    late = raw[len(raw) // 2:]
    return sum(late) / len(late)


def main():
    options = parse(sys.argv[1:])
    exits.on_signals()  # the ranks end with this program: run() sees to it
    if not options.prefix:
        check = subprocess.run([options.python, "-c",
                                "import torch, sklearn, sys; "
                                "sys.exit(not torch.cuda.is_available())"],
                               capture_output=True, check=False)
        if check.returncode:
            print(f"ddp: {options.python} has no PyTorch with CUDA, or no scikit-learn (pip "
                  "install torch scikit-learn)", file=sys.stderr)
            return 3
    document, good = {"what": "PyTorch DDP, two ranks on one device, two loopback links",
                      "links": options.links, "modes": {}}, True
    with tempfile.TemporaryDirectory(prefix="deft-gpu-") as folder:
        # LD_PRELOAD is cut at blanks, which the library's path may have.
        link = os.path.join(folder, "libnccl-net-deft.so")
        os.symlink(options.library, link)
        options.library = link
        without = {}
        for mode in options.modes:
            if reference(mode) != mode and reference(mode) not in without:
                continue   # has failed
            try:
                result, reports = run(options, mode, folder)
            except (Failed, OSError, ValueError) as error:
                print(f"ddp: {error}", file=sys.stderr)
                document["modes"][mode] = {"failed": str(error)}
                good = False
                continue
            without.setdefault(reference(mode), result)
            wrong = judge(mode, result, reports, without[reference(mode)])
            plan = next((plan for one in reports[:1] for plan in one.get("plans", [])), {})
            result["settings"].pop("json", None)  # a folder that is gone
            document["modes"][mode] = {"job": result, "in_force_ms": in_force_ms(result),
                                       "plan": plan, "wrong": wrong,
                                       "links": [one.get("links") for one in reports]}
            good = good and not wrong
            print(f"{mode:10} {in_force_ms(result):7.1f} ms an iteration, "
                  f"loss {result['loss']:.6f}, "
                  f"replicas {'equal' if result['replicas_equal'] else 'DIFFER'}"
                  + (f", plan {plan.get('policy') or '-'} ({plan.get('state')})" if plan else "")
                  + "".join(f"; WRONG: {line}" for line in wrong), flush=True)
    document["good"] = good
    if options.json:
        records.write(options.json, document)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
