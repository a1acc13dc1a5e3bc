# SPDX-License-Identifier: Apache-2.0
"""One run of the main job: a process per rank on the hosts of a network, followed until all have
ended."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

PROGRESS = re.compile(r"^epoch (\d+) iteration (\d+) loss (\S+) (\d+) ms")
# Left out of the ranks' environment: what would put another deft or another plugin into a phase.
FOREIGN = ("LD_PRELOAD", "NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID",
           "NCCL_COMM_ID")
PEERS_SECONDS = 20.0     # how long the other ranks may take to notice that one has failed
TAIL_LINES = 15
SAMPLER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "sampler.py")
SAMPLE_MS = 10


class JobError(RuntimeError):
    """A rank failed or the job did not end; the message holds the rank's last lines."""


def free_port():
    """A port nobody listens on now, below those that Linux hands out by itself (32768 and up):
    another program's connection could take one of those before rank 0 listens."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


class Progress:
    """One line that is rewritten on a terminal, a line now and then elsewhere."""

    def __init__(self, title, every=10.0):
        self._title, self._every = title, every
        self._terminal = sys.stdout.isatty()
        self._start = self._last = time.monotonic()

    def show(self, text):
        now = time.monotonic()
        line = f"  {self._title}: {now - self._start:3.0f} s, {text}"
        if self._terminal:
            print(f"\r\033[K{line}", end="", flush=True)
        elif now - self._last >= self._every:
            print(line, flush=True)
            self._last = now

    def end(self, text):
        clear = "\r\033[K" if self._terminal else ""
        print(f"{clear}  {self._title}: {time.monotonic() - self._start:.0f} s, {text}", flush=True)


class Phase:
    """A named run: its ranks, their logs `<name>-<rank>.log` and the job's results `<name>.json`
    in `folder`."""

    def __init__(self, name, title, network, folder, ranks_per_host, timeout):
        self.name, self.title, self.network, self.folder = name, title, network, folder
        self.ranks_per_host, self.timeout = ranks_per_host, timeout
        self.results_file = os.path.join(folder, f"{name}.json")
        self._ranks = []
        # after run(), where links are shaped: what the first host's have sent by when (sampler.py)
        self.activity = None

    def log(self, rank):
        return os.path.join(self.folder, f"{self.name}-{rank}.log")

    def _environment(self, rank, world, port, extra):
        environment = {name: value for name, value in os.environ.items()
                       if name not in FOREIGN and not name.startswith("DEFT_")}
        host = rank // self.ranks_per_host
        address = self.network.hosts[0].address(0) if self.network.shaped else "127.0.0.1"
        environment.update({
            "RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank % self.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host), "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            # The hosts share one host name; NCCL must not take their ranks for neighbours with
            # shared memory.
            "NCCL_HOSTID": f"demo-host{host}", "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
        environment.update(extra(host, rank))
        return environment

    def run(self, command, environment, total):
        """Runs the job. `command` starts one rank, `environment(host, rank)` adds to its
        environment, `total` is the number of iterations or None. Returns (job results, seconds,
        bytes by host and device)."""
        if os.path.exists(self.results_file):
            os.remove(self.results_file)
        world = len(self.network.hosts) * self.ranks_per_host
        port = free_port()
        progress = Progress(self.title)
        start = time.monotonic()
        before = [host.counters() for host in self.network.hosts]
        sampler = self._sample() if self.network.shaped else None
        try:
            for rank in range(world):
                host = self.network.hosts[rank // self.ranks_per_host]
                with open(self.log(rank), "wb") as log:
                    self._ranks.append(host.popen(
                        command, env=self._environment(rank, world, port, environment),
                        replace_env=True, stdout=log, stderr=subprocess.STDOUT,
                        start_new_session=True))
            self._follow(progress, start, total)
        finally:
            self.stop()
            if sampler:
                self.activity = self._sampled(sampler)
        after = [host.counters() for host in self.network.hosts]
        traffic = [{device: {"received": now[device][0] - then.get(device, (0, 0))[0],
                             "sent": now[device][1] - then.get(device, (0, 0))[1]}
                    for device in host.devices if device in now}
                   for host, then, now in zip(self.network.hosts, before, after)]
        try:
            with open(self.results_file, encoding="utf-8") as file:
                results = json.load(file)
        except (OSError, ValueError) as error:
            raise JobError(f"{self.title}: the job left no readable results ({error})") from error
        times = results["iteration_ms"]
        progress.end(f"loss {results['loss']:.6f}, {100 * results['test_accuracy']:.1f} % right, "
                     f"{times['median']:.0f} ms an iteration")
        return results, time.monotonic() - start, traffic

    def _samples(self):
        return os.path.join(self.folder, f"{self.name}-links.json")

    def _sample(self):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._samples())
        host = self.network.hosts[0]
        return host.popen([sys.executable, SAMPLER, str(SAMPLE_MS), self._samples(), *host.devices],
                          stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _sampled(self, sampler):
        """None where it has failed: only a picture lacks something then."""
        try:
            sampler.stdin.close()
            if sampler.wait(timeout=10) != 0:
                return None
            with open(self._samples(), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            sampler.kill()
            return None

    def _follow(self, progress, start, total):
        position, status, failed_at = 0, "starting", None
        while True:
            codes = [rank.poll() for rank in self._ranks]
            if all(code == 0 for code in codes):
                return
            failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
            if failed and failed_at is None:
                failed_at, first = time.monotonic(), failed[0]
            if failed and (None not in codes or time.monotonic() - failed_at > PEERS_SECONDS):
                raise JobError(self._failure(first, codes[first], codes.count(None)))
            if time.monotonic() - start > self.timeout:
                slow = codes.index(None)
                raise JobError(f"{self.title}: not done after {self.timeout:.0f} s; "
                               f"rank {slow} last said:\n"
                               + self._tail(slow))
            with open(self.log(0), "rb") as log:
                log.seek(position)
                text = log.read()
            text = text[:text.rfind(b"\n") + 1]
            position += len(text)
            for line in text.decode(errors="replace").splitlines():
                match = PROGRESS.match(line)
                if match:
                    of = f"/{total}" if total else ""
                    status = (f"epoch {match.group(1)}, iteration {match.group(2)}{of}, "
                              f"loss {match.group(3)}, {match.group(4)} ms")
            progress.show(status)
            time.sleep(0.2)

    def _failure(self, rank, code, running):
        how = (f"was killed by {signal.Signals(-code).name}" if code < 0
               else f"ended with code {code}")
        hung = f" ({running} other ranks had to be stopped)" if running else ""
        return (f"{self.title}: rank {rank} {how}{hung}; its last lines ({self.log(rank)}):\n"
                f"{self._tail(rank)}")

    def _tail(self, rank):
        try:
            with open(self.log(rank), encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()[-TAIL_LINES:]
        except OSError as error:
            lines = [str(error)]
        return "\n".join("    " + line for line in lines or ["(nothing)"])

    def stop(self):
        """Ends what still runs."""
        for rank in self._ranks:
            if rank.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
        self._ranks = []
