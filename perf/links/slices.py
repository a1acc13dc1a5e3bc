# SPDX-License-Identifier: Apache-2.0
"""Two transports compared on one link in turns of some hundredths of a second.

Both run all the time; one of them is stopped while the other has the link and the CPUs. What
wanders on a shared machine (its clock, its neighbours, where the kernel's memory lies) then
meets neighbouring slices alike, where runs of a second each, one after the other, differ by a
fifth."""

import contextlib
import os
import signal
import statistics
import time

from .tools import RunFailed, apart, two_cpus, wait_for_traffic

SLICE = 0.06    # seconds; much shorter than TCP's idle time after which a window is forgotten
SETTLE = 0.005  # after its processes go on, before it counts
# More than any measurement takes: they are ended from here.
ENDLESS = 10 ** 9


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def cpu_seconds(pids):
    """All threads' time on a CPU."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total * 1e-9


class Turns:
    """Processes that send all the time, at most in turns with others. `running`: they do."""

    def __init__(self, bench, sides, running):
        self._bench, self.sides, self.running = bench, sides, running

    def _signal(self, number):
        for pid in self.sides:
            # A process that has ended is reported by its parent.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def slice(self):
        """(bytes per second, CPU seconds per byte) of one turn."""
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE)
        begin, sent, cpu = time.monotonic(), self._bench.sent(0), cpu_seconds(self.sides)
        time.sleep(SLICE)
        took, sent, cpu = time.monotonic() - begin, self._bench.sent(0) - sent, cpu_seconds(
            self.sides) - cpu
        self._signal(signal.SIGSTOP)
        if not self.running() or sent <= 0:
            raise RunFailed("a program ended, or stood still, while it was measured")
        return sent / took, cpu / sent

    def stop(self):
        self._signal(signal.SIGSTOP)


class Together(Turns):
    """Several at once, in turns with others."""

    def __init__(self, bench, parts):
        self._parts = parts
        super().__init__(bench, [side for part in parts for side in part.sides],
                         lambda: all(part.running() for part in parts))

    def end(self):
        for part in self._parts:
            part.end()


class Runner(Turns):
    """netperf over one transport at work, stopped when made. `pinned`: each end to a CPU."""

    def __init__(self, bench, kind, arguments, enough=20_000_000, pinned=True, links=None,
                 extra=None):
        self._process = bench.start_netperf(
            kind, [*arguments, *(apart(two_cpus()) if pinned else [])], links, extra)
        super().__init__(bench, [], lambda: self._process.poll() is None)
        try:
            wait_for_traffic(bench, self._process, enough)
            self.sides = children(self._process.pid)
            self.stop()
        except BaseException:  # an interruption too: it would send for ever
            self.end()
            raise

    def turn(self):
        """One turn that the program itself measures. False if it has ended."""
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + SLICE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            time.sleep(SLICE / 10)
        self._signal(signal.SIGSTOP)
        return True

    def finish(self):
        """What it has measured, without stops from now on."""
        if self._process.poll() is None:
            self._signal(signal.SIGCONT)
        return self._bench.finish(self._process)[0]

    def end(self):
        if self._process.poll() is None:
            for pid in children(self._process.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.communicate()
        if os.path.exists(self._process.results):
            os.unlink(self._process.results)


class Plain(Turns):
    """Plain TCP on one link until it is ended, stopped when made. Its server waits in the kernel,
    is not stopped, and its CPU time does not count."""

    SECONDS = 600

    def __init__(self, bench, link, enough=1_000_000):
        self._process = bench.start_raw_stream([link], self.SECONDS)
        super().__init__(bench, [self._process.pid], lambda: self._process.poll() is None)
        before, deadline = bench.sent(link), time.monotonic() + 15
        while bench.sent(link) - before < enough:
            if not self.running() or time.monotonic() > deadline:
                self.end()
                raise RunFailed("plain TCP does not send")
            time.sleep(0.02)
        self.stop()

    def end(self):
        self._process.kill()
        self._process.wait()


def steady(size, depth):
    """Arguments of a netperf that sends until it is ended."""
    return ["--mode", "steady", "--sizes", str(size), "--depth", str(depth), "--messages",
            str(ENDLESS)]


def in_turn(starts, count):
    """{name: [(bytes/s, CPU s/byte) of every slice]} of the runners that `starts` makes by name,
    slices of all in turn; the order changes from round to round."""
    runners = {}
    try:
        for name, start in starts.items():
            runners[name] = start()
        got = {name: [] for name in starts}
        for number in range(count):
            for name in starts if number % 2 else reversed(starts):
                got[name].append(runners[name].slice())
        return got
    finally:
        for runner in runners.values():
            runner.end()


def compare(bench, kinds, size, depth, count):
    """in_turn() of transports of netperf's."""
    return in_turn({kind: lambda kind=kind: Runner(bench, kind, steady(size, depth))
                    for kind in kinds}, count)


def compare_latency(bench, kinds, size, seconds):
    """{kind: half round trip in microseconds} of ping-pongs of both in turns: the median, which
    a turn's end does not touch."""
    runners = {}
    try:
        for kind in kinds:
            runners[kind] = Runner(bench, kind,
                                   ["--mode", "lat", "--latency-sizes", str(size), "--time",
                                    str(seconds)],
                                   300 * size)  # it has counted how many make up the time
        going = True
        while going:
            for kind in kinds:
                going = runners[kind].turn() and going
        got = {}
        for kind in kinds:
            lines = runners.pop(kind).finish()
            got[kind] = next(line["half_round_trip_us"]["p50"] for line in lines
                             if line["kind"] == "latency")
        return got
    finally:
        for runner in runners.values():
            runner.end()


def ratio(mine, theirs, which):
    """Median and quartiles of the ratios of neighbouring slices; `which`: 0 rate, 1 CPU time."""
    values = [a[which] / b[which] for a, b in zip(mine, theirs)]
    lower, middle, upper = statistics.quantiles(values, n=4)
    return lower, middle, upper
