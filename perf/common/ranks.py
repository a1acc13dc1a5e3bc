# SPDX-License-Identifier: Apache-2.0
"""Runs one job, a process per rank, on the hosts of a network; shared by the benchmarks of whole
jobs."""

import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time

from . import hosts

# Left out of the ranks' environment: what would put another deft or another plugin into a run.
FOREIGN = ("LD_PRELOAD", "RANK", "WORLD_SIZE", "LOCAL_RANK")
TAIL_LINES = 12


class RunFailed(RuntimeError):
    """A rank failed or the job did not end; the message holds its last lines."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Parts:
    """The files of one build that whole jobs need; hosts.SetupError names the first that is
    missing. nccl: the file of NCCL's own library that the jobs run on (softdev/nccl_kernels), or
    None for the stand-in."""

    def __init__(self, build, root, nccl=None):
        build = os.path.abspath(build)
        self.deft = os.path.join(build, "tools", "deft")
        self.library = os.path.join(build, "packaging", "libnccl-net-deft.so")
        self.replay = os.path.join(build, "perf", "jobs", "replay", "replay")
        self.sharded = os.path.join(build, "perf", "jobs", "sharded", "sharded")
        self.raw_tcp = os.path.join(build, "perf", "links", "raw_tcp")
        self.libraries = os.path.join(build, "softdev")
        self.launcher = os.path.join(root, "softdev", "torch", "launch.py")
        self.ddp = os.path.join(root, "perf", "jobs", "ddp.py")
        self.kernels = os.path.join(self.libraries, "nccl_kernels",
                                    "libsoftdev-nccl-kernels.so")
        for path in (self.deft, self.library, self.replay, self.raw_tcp, self.kernels,
                     os.path.join(self.libraries, "nccl", "libnccl.so.2")):
            if not os.path.exists(path):
                raise hosts.SetupError(f"{path} is missing; remedy: ./dev build")
        self.nccl = nccl and os.path.abspath(nccl)
        if self.nccl and (os.path.basename(nccl) != "libnccl.so.2" or not os.path.exists(nccl)):
            raise hosts.SetupError(f"--nccl {nccl}: there has to be a file named libnccl.so.2; "
                                   "remedy: softdev/nccl_kernels/README.md says how to build one")

    def nccl_environment(self, mode):
        """What lets a rank find its NCCL and, for NCCL's own, run it without a GPU. mode: None
        without deft."""
        def folders(*first):
            return ":".join([*first, *(os.path.join(self.libraries, part)
                                       for part in ("cuda", "nvml" if first else "nccl"))])
        if not self.nccl:
            return {"LD_LIBRARY_PATH": folders()}
        return {"LD_LIBRARY_PATH": folders(os.path.dirname(self.nccl)),
                "SOFTDEV_KERNELS": self.kernels, "NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_RAS_ENABLE": "0",
                # Not with deft: it would choose the network of lanes too.
                **({"NCCL_NET": "Socket"} if mode is None else {})}


class Run:
    """What one run left: `results` is rank 0's JSON, `observed` deft's report of rank 0 or {},
    `warnings` deft's WARN lines, `sent` the bytes host 0 sent on each link, `foreign` the share
    of the machine's CPU time that other programs took meanwhile."""

    def __init__(self, results, observed, warnings, sent, seconds, foreign):
        self.results, self.observed, self.warnings = results, observed, warnings
        self.sent, self.seconds, self.foreign = sent, seconds, foreign

    @property
    def plan(self):
        plans = self.observed.get("plans") or [{}]
        return plans[0]


def _counters(host):
    return {device: host.counters().get(device, (0, 0))[1] for device in host.devices}


def _cpu_seconds(network):
    """(of all CPUs, of this program's children that have ended and of the network's relays)."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, interrupts, soft, steal = (
            int(ticks) for ticks in file.readline().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = user + nice + system + interrupts + soft + steal
    laid = sum(relay.cpu_seconds() for relay in getattr(network, "relays", {}).values())
    return busy / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime + laid


def cpu_of(rank, world):
    """The CPU a rank is bound to: one for each, or None where there are not enough."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[rank] if len(cpus) >= world else None


def run(network, parts, job, mode=None, settings=None, links=None, timeout=180, bind=False,
        alone=False):
    """One job on all hosts of the network, a rank each.

    job: function (results path, scratch folder) -> command of one rank. mode: DEFT_MODE, or None
    for a run without deft over NCCL's own Socket transport. links: the links it may use (default:
    all). settings: more environment; None: the variable is not set. bind: each rank, with all its
    threads, gets a CPU of its own, where there are enough. alone: every rank is a job of its own,
    all at the same time, and a list of runs comes back: the job's compute as it is where transfers
    cost nothing.
    """
    with tempfile.TemporaryDirectory(prefix="deft-run-") as folder:
        results = [os.path.join(folder, f"results-{rank if alone else 0}.json")
                   for rank in range(len(network.hosts))]
        reports = [os.path.join(folder, f"observe-{rank}.json")
                   for rank in range(len(network.hosts))]

        def command_of(rank):
            command = job(results[rank], folder)
            if mode is not None:
                command = [parts.deft, "run", "--mode", mode, "--out", reports[rank], "--library",
                           parts.library, "--", *command]
            return command if cpus[rank] is None else ["taskset", "-c", str(cpus[rank]), *command]

        world, port = len(network.hosts), free_port()
        used = range(len(network.rates)) if links is None else links
        cpus = [cpu_of(rank, world) if bind else None for rank in range(world)]
        ranks, logs = [], [os.path.join(folder, f"{rank}.log") for rank in range(world)]
        before, cpu_before = _counters(network.hosts[0]), _cpu_seconds(network)
        start = time.monotonic()
        try:
            for rank, host in enumerate(network.hosts):
                environment = {name: value for name, value in os.environ.items()
                               if name not in FOREIGN and not name.startswith(("DEFT_", "NCCL_"))}
                environment.update({
                    "RANK": "0" if alone else str(rank), "WORLD_SIZE": "1" if alone else str(world),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": (host if alone else network.hosts[0]).address(0),
                    "MASTER_PORT": str(port),
                    # The hosts share one host name; NCCL must not take their ranks for neighbours
                    # with shared memory.
                    "NCCL_HOSTID": host.name,
                    "NCCL_SOCKET_IFNAME": "=" + ",".join(f"eth{link}" for link in used),
                    **parts.nccl_environment(mode),
                    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
                    # Of one CPU the network's threads take theirs first: a GPU's host has cores for
                    # them.
                    **({} if cpus[rank] is None else {"SOFTDEV_NICE": "10"}),
                    **({"NCCL_NET_PLUGIN": "none"} if mode is None else {}), **(settings or {})})
                environment = {name: value for name, value in environment.items()
                               if value is not None}
                with open(logs[rank], "wb") as log:
                    ranks.append(host.popen(command_of(rank), env=environment, replace_env=True,
                                            stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                                            start_new_session=True))
            _wait(ranks, logs, start + timeout)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        seconds, after = time.monotonic() - start, _counters(network.hosts[0])
        busy, own = (now - before for now, before in zip(_cpu_seconds(network), cpu_before))
        foreign = max(0.0, busy - own) / seconds / os.cpu_count()
        observed = [{}] * world
        if mode is not None:
            try:
                observed = [_json_of(path) for path in reports]
            except (OSError, ValueError) as error:
                raise RunFailed(
                    f"deft left no readable report ({error}); was it preloaded?") from error
        with open(logs[0], encoding="utf-8", errors="replace") as file:
            warnings = [line.strip() for line in file if "WARN" in line]
        sent = [after[name] - before[name] for name in after]
        try:
            if alone:
                return [Run(_json_of(path), report, warnings, sent, seconds, foreign)
                        for path, report in zip(results, observed)]
            return Run(_json_of(results[0]), observed[0], warnings, sent, seconds, foreign)
        except (OSError, ValueError) as error:
            raise RunFailed(f"the job left no readable results ({error})") from error


def _json_of(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _wait(ranks, logs, end):
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return
        bad = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
        if bad is not None or time.monotonic() > end:
            rank = bad if bad is not None else codes.index(None)
            what = f"ended with code {codes[rank]}" if bad is not None else "did not end in time"
            with open(logs[rank], encoding="utf-8", errors="replace") as file:
                tail = ("\n".join("    " + line for line in file.read().splitlines()[-TAIL_LINES:])
                        or "    (nothing)")
            raise RunFailed(f"rank {rank} {what}; it last said:\n{tail}")
        time.sleep(0.05)


def raw_gbit(network, parts, seconds=0.5, port=5001):
    """Gbit/s of plain TCP on each link, all at once: [link]."""
    server = network.hosts[1].popen([parts.raw_tcp, "serve", str(port)], stdout=subprocess.PIPE)
    try:
        if server.stdout.readline() != b"ready\n":
            raise RunFailed("raw_tcp does not listen")
        pairs = [f"{network.hosts[0].address(link)}={network.hosts[1].address(link)}"
                 for link in range(len(network.rates))]
        return json.loads(network.hosts[0].run([parts.raw_tcp, "stream", str(port), str(seconds),
                                                "1", *pairs]))["flows"]
    except hosts.SetupError as error:
        raise RunFailed(str(error)) from error
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
