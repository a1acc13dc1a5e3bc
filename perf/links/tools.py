# SPDX-License-Identifier: Apache-2.0
"""Runs raw TCP, the built-in Socket transport, the same over MPTCP, and the plugin between two
hosts."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from ..common import hosts

PORT = 5001
SOCKET, MPTCP, PLUGIN = "socket", "mptcp", "deft"


class RunFailed(RuntimeError):
    """A program under test failed; the message holds its last line."""


def two_cpus():
    """A CPU for each end of a measurement; none where there is only one. Left to itself the
    scheduler puts both ends on one CPU now and then, and latency and CPU time then say more
    about it than about the transport."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[:2] if len(cpus) > 1 and shutil.which("taskset") else []


def on_cpu(cpus, end):
    return ["taskset", "-c", str(cpus[end])] if cpus else []


def apart(cpus):
    return ["--cpus", ",".join(map(str, cpus))] if cpus else []


class Bench:
    """The programs of one build on one network of two hosts."""

    def __init__(self, build, network):
        self.network = network
        self.netperf_program = os.path.join(build, "perf", "netperf", "netperf")
        self.library = os.path.join(build, "packaging", "libnccl-net-deft.so")
        self._raw = os.path.join(build, "perf", "links", "raw_tcp")
        self._mptcp = os.path.join(build, "perf", "links", "libmptcp_sockets.so")
        for path in (self.netperf_program, self.library, self._raw, self._mptcp):
            if not os.path.exists(path):
                raise hosts.SetupError(f"{path} is missing; remedy: ./dev build")
        self._server = None
        self.mptcp_missing = "not looked for"

    def __enter__(self):
        self._server = self.network.hosts[1].popen([self._raw, "serve", str(PORT)],
                                                   stdout=subprocess.PIPE)
        if self._server.stdout.readline() != b"ready\n":
            raise RunFailed("raw_tcp does not listen")
        return self

    def __exit__(self, *_):
        self._server.kill()
        self._server.wait()
        self._server.stdout.close()

    def _pairs(self, links):
        return [f"{self.network.hosts[0].address(link)}={self.network.hosts[1].address(link)}"
                for link in links]

    def _raw_tcp(self, arguments):
        return json.loads(self.network.hosts[0].run([self._raw, *arguments], timeout=120))

    def raw_stream(self, links, seconds=1.0, streams=1):
        """Gbit/s of plain TCP on these links at once: {"gbit_per_s", "lanes", "cpu_s_per_gb"}."""
        return self._raw_tcp(["stream", str(PORT), str(seconds), str(streams), *self._pairs(links)])

    def start_raw_stream(self, links, seconds):
        """Popen of plain TCP on these links at once."""
        return self.network.hosts[0].popen([self._raw, "stream", str(PORT), str(seconds), "1",
                                            *self._pairs(links)], stdout=subprocess.DEVNULL)

    def raw_ping(self, link=0, rounds=20000, size=8):
        """A ping-pong of plain TCP, each end on a CPU of its own: {"half_round_trip_us", "p99"}."""
        cpus = two_cpus()
        server = self.network.hosts[1].popen([*on_cpu(cpus, 1), self._raw, "serve", str(PORT + 1)],
                                             stdout=subprocess.PIPE)
        try:
            if server.stdout.readline() != b"ready\n":
                raise RunFailed("raw_tcp does not listen")
            return json.loads(self.network.hosts[0].run(
                [*on_cpu(cpus, 0), self._raw, "ping", str(PORT + 1), str(rounds), str(size),
                 *self._pairs([link])], timeout=120))
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def send_way(self, way, size, seconds=1.0, link=0):
        """One way of handing messages to the kernel (send_ways.cpp): {"gbit_per_s",
        "cpu_s_per_gb"}. None: not here."""
        host = self.network.hosts[0]
        process = host.popen([os.path.join(os.path.dirname(self._raw), "send_ways"), way, str(PORT),
                              str(seconds), str(size), host.address(link),
                              self.network.hosts[1].address(link)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, errors = process.communicate(timeout=60)
        if process.returncode not in (0, 3):
            raise RunFailed(errors.strip())
        return json.loads(output) if process.returncode == 0 else None

    def enable_mptcp(self):
        """What an administrator does for MPTCP on every host. False, with the reason, where the
        kernel has none."""
        if self.mptcp_missing != "not looked for":
            return not self.mptcp_missing
        try:
            with open("/proc/sys/net/mptcp/enabled", encoding="ascii") as file:
                enabled = file.read().strip() == "1"
            if not enabled:
                raise OSError("net.mptcp.enabled is 0")
            for number, host in enumerate(self.network.hosts):
                host.run(["ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted",
                          "8"])
                for link in range(1, len(self.network.rates)):
                    host.run(["ip", "mptcp", "endpoint", "add", host.address(link), "dev",
                              f"eth{link}", "signal" if number else "subflow"])
            self.mptcp_missing = ""
        except (OSError, RuntimeError) as error:
            self.mptcp_missing = f"no MPTCP here: {error}"
        return not self.mptcp_missing

    def netperf_command(self, kind, arguments, links=None):
        """(command, environment) of netperf for one kind of transport, on these links (default:
        all)."""
        spaces = ",".join(host.namespace for host in self.network.hosts)
        names = "=" + ",".join(f"eth{link}"
                               for link in (links if links is not None
                                            else range(len(self.network.rates))))
        plugin = self.library if kind == PLUGIN else "socket"
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("DEFT_INTERFACES", "NCCL_"))}
        if kind == MPTCP:
            environment["LD_PRELOAD"] = self._mptcp
        return ([self.netperf_program, "--plugin", plugin, "--netns", spaces, "--ifname", names,
                 *arguments], environment)

    def start_netperf(self, kind, arguments, links=None, extra=None):
        """Popen of netperf with its JSON lines in `.results` when it has ended (see finish())."""
        with tempfile.NamedTemporaryFile(prefix="links-", suffix=".json", delete=False) as file:
            path = file.name
        command, environment = self.netperf_command(kind, [*arguments, "--json", path], links)
        environment.update(extra or {})
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.results = path
        return process

    def finish(self, process, timeout=120):
        """([JSON objects], standard error). RunFailed if it failed."""
        try:
            output, errors = process.communicate(timeout=timeout)
            if process.returncode != 0:
                lines = ((errors or output).strip().splitlines()
                         or [f"exit code {process.returncode}"])
                raise RunFailed("netperf: " + lines[-1])
            with open(process.results, encoding="utf-8") as file:
                return [json.loads(line) for line in file], errors
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise RunFailed(f"netperf: not done after {timeout} s") from error
        finally:
            os.unlink(process.results)

    def netperf(self, kind, arguments, links=None, extra=None):
        return self.finish(self.start_netperf(kind, arguments, links, extra))[0]

    def bandwidth(self, kind, sizes, depth, seconds=1.0, links=None, cpus=()):
        """{size: {"gbit", "cpu"}} of one netperf run."""
        lines = self.netperf(kind, ["--mode", "bw", "--sizes", ",".join(map(str, sizes)), "--depth",
                                    str(depth), "--time", str(seconds), "--reps", "1",
                                    *apart(cpus)], links)
        return {line["bytes"]: {"gbit": line["gbit_per_s"]["median"],
                                "cpu": line["cpu_s_per_gb"]["median"]}
                for line in lines if line["kind"] == "bandwidth"}

    def latency(self, kind, size=8, seconds=0.6, links=None):
        """Half of a ping-pong's time in microseconds, each end on a CPU of its own."""
        lines = self.netperf(kind,
                             ["--mode", "lat", "--latency-sizes", str(size), "--time", str(seconds),
                              *apart(two_cpus())], links)
        return next(line["half_round_trip_us"]["p50"] for line in lines
                    if line["kind"] == "latency")

    def sent(self, link):
        """Bytes host 0 has sent on a link since the interface was made; None while there is
        none."""
        try:
            with open(self.network.hosts[0].namespace.replace("ns/net", "net/dev"),
                      encoding="ascii") as file:
                for line in file:
                    name, _, numbers = line.partition(":")
                    if name.strip() == f"eth{link}":
                        return int(numbers.split()[8])
        except OSError:
            pass
        return None


def wait_for_traffic(bench, process, enough=10_000_000, patience=15):
    """Until so many bytes are out on all links together: tiny messages all take the quickest
    one, whichever that is."""
    def sent():
        return sum(bench.sent(link) or 0 for link in range(len(bench.network.rates)))

    start, deadline = sent(), time.monotonic() + patience
    while sent() - start < enough:
        if process.poll() is not None or time.monotonic() > deadline:
            bench.finish(process, timeout=1)
            raise RunFailed("netperf ended before its traffic began")
        time.sleep(0.02)


def median(values):
    return statistics.median(values)


def spread(values):
    """{"median", "min", "max", "samples"} of raw samples."""
    return {"median": round(median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "samples": [round(value, 4) for value in values]}


def quantile(values, fraction):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def bar(text, value, need, at_least=True, unit="", **more):
    """One line of the table: a figure, what it must reach, and whether it does."""
    met = value is not None and (value >= need if at_least else value <= need)
    return {"bar": text, "value": None if value is None else round(value, 4), "need": need,
            "relation": ">=" if at_least else "<=", "unit": unit, "met": met, **more}
