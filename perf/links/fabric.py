# SPDX-License-Identifier: Apache-2.0
"""Links of a network as RoCE ports of the software verbs device: what the plugin needs to drive
them, and perftest's programs on them as the reference."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import tempfile
import time

from ..common import hosts, rdma_tree
from . import slices, tools

PORT = 18515  # perftest's own
NUMBER = r"[0-9]+(?:\.[0-9]+)?"


class Endless(slices.Turns):
    """perftest's program on the first port, with as many messages open, until it is ended; stopped
    when made. ib_write_bw's server sleeps; both ends of ib_send_bw spin, as NCCL's proxies do."""

    SECONDS = 600

    def __init__(self, bench, fabric, program, size, depth):
        receives = ["-r", depth] if "send" in program else []
        self._server, self._client = fabric.start_pair(
            program, 0, ["-s", size, "-t", depth, *receives, "-D", self.SECONDS, "-f", 0])
        both = (self._server, self._client)
        super().__init__(bench, [one.pid for one in both],
                         lambda: all(one.poll() is None for one in both))
        before, deadline = bench.sent(0), time.monotonic() + 15
        while bench.sent(0) - before < 20_000_000:
            if not self.running() or time.monotonic() > deadline:
                self.end()
                raise tools.RunFailed(f"{program} does not send")
            time.sleep(0.02)
        self.stop()

    def end(self):
        for process in (self._client, self._server):
            process.kill()
            process.wait()
            process.stdout.close()


class Fabric:
    """`ports`: the links that are ports: soft0 is on the first of them, and so on."""

    def __init__(self, build, network, ports):
        self.network = network
        self.ports = list(ports)
        self.library = os.path.join(build, "subprojects", "softdev", "verbs", "libibverbs.so.1")
        for path in (self.library, *map(shutil.which, ("ib_write_bw", "ib_send_bw",
                                                       "ib_send_lat"))):
            if not path or not os.path.exists(path):
                raise hosts.SetupError("no software verbs device or no perftest here; remedy: "
                                       "./dev install perftest libibverbs-dev, ./dev build")
        self._folder = tempfile.TemporaryDirectory(prefix="links-fabric-")
        self.log = os.path.join(self._folder.name, "log")  # for DEFT_LOG_FILE
        self.trees = []
        for host in network.hosts:
            self.trees.append(os.path.join(self._folder.name, host.name))
            for number, link in enumerate(self.ports):
                rdma_tree.add_port(self.trees[-1], f"soft{number}", f"eth{link}",
                                   host.address(link))
        self._devices = {
            "LD_LIBRARY_PATH": os.path.dirname(self.library),
            "SOFTDEV_VERBS": "; ".join(f"soft{number} eth{link} roce"
                                       for number, link in enumerate(self.ports))}

    def close(self):
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def arguments(self):
        """Of netperf."""
        return ["--sysfs", ",".join(self.trees)]

    @property
    def environment(self):
        """Of netperf, so that the plugin drives the ports."""
        return {"DEFT_RDMA": "replace", "NCCL_IBVERBS_LIB": self.library,
                "SOFTDEV_VERBS": self._devices["SOFTDEV_VERBS"]}

    def _wait_listening(self, server, port):
        path = self.network.hosts[1].namespace.replace("ns/net", "net/tcp")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and server.poll() is None:
            for family in (path, path + "6"):
                with open(family, encoding="ascii") as file:
                    if re.search(rf":{port:04X} \S+ 0A ", file.read()):
                        return
            time.sleep(0.01)
        raise tools.RunFailed(f"perftest does not listen: {server.communicate()[0]}")

    def _start(self, host, command, cpus=(), end=0):
        return self.network.hosts[host].popen([*tools.on_cpu(cpus, end), *command],
                                              env=self._devices, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True)

    def start_pair(self, program, number, arguments, cpus=()):
        """(server, client) of one of perftest's programs on one port."""
        port = PORT + number
        command = [program, "-d", f"soft{number}", "-i", "1", "-x", str(rdma_tree.INDEX), "-F",
                   "-p", str(port), *map(str, arguments)]
        address = self.network.hosts[1].address(self.ports[number])
        server = self._start(1, command, cpus, 1)
        try:
            self._wait_listening(server, port)
            return server, self._start(0, [*command, address], cpus, 0)
        except BaseException:
            server.kill()
            server.wait()
            server.stdout.close()
            raise

    def _pair(self, program, number, arguments, cpus=()):
        """(the client's output, CPU seconds of both ends) on one port. Not their exit codes:
        ib_send_bw of perftest 4.5 leaves a completion queue behind, and says that it failed where a
        device minds that."""
        client = server = None
        try:
            server, client = self.start_pair(program, number, arguments, cpus)
            text, cpu = "", 0.0
            for process in (client, server):
                output = process.stdout.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = status
                cpu += usage.ru_utime + usage.ru_stime
                text = text or output
            return text, cpu
        finally:
            for process in filter(None, (server, client)):
                if process.returncode is None:
                    process.kill()
                    process.wait()
                process.stdout.close()

    def _rate(self, program, number, size, depth, seconds):
        text, cpu = self._pair(program, number,
                               ["-s", size, "-t", depth, *(["-r", depth] if "send" in program
                                                           else []),
                                "-D", max(1, round(seconds)), "-f", 0])
        # bytes, iterations, peak, MiB/s
        found = re.search(rf"^ *{size} +([0-9]+) +{NUMBER} +({NUMBER})\s", text, re.MULTILINE)
        if not found or float(found.group(2)) <= 0:
            raise tools.RunFailed(f"{program}: no rate in its output: {text.strip()[-200:]}")
        return {"gbit": float(found.group(2)) * 2 ** 20 * 8e-9,
                "cpu": cpu / (int(found.group(1)) * size * 1e-9)}

    def raw(self, size, depth, seconds=1.0, numbers=(0,), program="ib_write_bw", beside=None):
        """Messages of perftest's on these ports at once, and what `beside` runs meanwhile:
        {"gbit": the sum, "cpu": seconds per GB on the first, "beside": its result}."""
        with concurrent.futures.ThreadPoolExecutor(len(numbers) + 1) as pool:
            running = [pool.submit(self._rate, program, number, size, depth, seconds)
                       for number in numbers]
            other = pool.submit(beside) if beside else None
            got = [each.result() for each in running]
            return {"gbit": sum(each["gbit"] for each in got), "cpu": got[0]["cpu"],
                    "beside": other.result() if other else None}

    def ping(self, size=8, rounds=5000):
        """Half of a ping-pong of sends in microseconds, each end on a CPU of its own."""
        text, _ = self._pair("ib_send_lat", 0, ["-s", size, "-n", rounds], tools.two_cpus())
        # bytes, iterations, least, most, typical
        found = re.search(rf"^ *{size} +{rounds} +{NUMBER} +{NUMBER} +({NUMBER})", text,
                          re.MULTILINE)
        if not found:
            raise tools.RunFailed(f"ib_send_lat: no time in its output: {text.strip()[-200:]}")
        return float(found.group(1))
