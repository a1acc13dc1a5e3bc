# SPDX-License-Identifier: Apache-2.0
"""Cases of connections that drive RoCE ports, alone and beside TCP. The reference is perftest on
the same ports of the software verbs device, in the same round."""

import random
import re
import time
from pathlib import Path

from . import fabric as fabrics
from . import faults, slices
from .rates import KIB, MIB, name_of
from .tools import PLUGIN, SOCKET, apart, bar, median, quantile, spread, two_cpus, wait_for_traffic

SIZES = (512 * KIB, MIB)
DEPTH = 4
SLICES_OF_A_PAIR = 12
# kind: (how the port's link is cut, faults of the device, stall, seconds)
FAULTS = {
    "port event": ("carrier", "", 0.1),
    "no port event": ("carrier", "event_missing=100%", 1.0),
    "black hole": ("blackhole", "", 1.0),
}


def paired(mine, theirs):
    return median([a / b for a, b in zip(mine, theirs)])


def of_slices(text, mine, theirs, which, need, at_least=True):
    """A bar by slices.ratio(), with its quartiles."""
    lower, middle, upper = slices.ratio(mine, theirs, which)
    return bar(text, middle, need, at_least, quartiles=[round(lower, 4), round(upper, 4)])


class Runs:
    """netperf over the plugin with its ports driven, and perftest beside it."""

    def __init__(self, bench, options, ports):
        self.bench, self.options = bench, options
        self.fabric = fabrics.Fabric(options.build, bench.network, ports)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.fabric.close()

    def netperf(self, arguments, links=None):
        return self.bench.netperf(PLUGIN, [*arguments, *self.fabric.arguments], links,
                                  self.fabric.environment)

    def start(self, arguments, more):
        return self.bench.start_netperf(PLUGIN, [*arguments, *self.fabric.arguments],
                                        extra={**self.fabric.environment, **more})

    def bandwidth(self, size, links=None):
        """{"gbit", "cpu"} of one run. After a pass in which nothing moved it yields, as NCCL's
        proxy does."""
        lines = self.netperf(["--mode", "bw", "--sizes", str(size), "--depth", str(DEPTH), "--time",
                              str(self.options.seconds), "--reps", "1"], links)
        line = next(line for line in lines if line["kind"] == "bandwidth")
        return {"gbit": line["gbit_per_s"]["median"], "cpu": line["cpu_s_per_gb"]["median"]}

    def endless(self, size, links=None):
        """Such a run without an end, in turns with others."""
        return slices.Runner(self.bench, PLUGIN,
                             [*slices.steady(size, DEPTH), *self.fabric.arguments], pinned=False,
                             links=links, extra=self.fabric.environment)

    def in_turn(self, starts):
        """slices.in_turn() with connections made anew for each pair: how fast one is depends on
        where the kernel has put it."""
        got = {name: [] for name in starts}
        for _ in range(self.options.pairs):
            for name, more in slices.in_turn(starts, SLICES_OF_A_PAIR).items():
                got[name] += more
        return got

    def raw(self, size, **how):
        return self.fabric.raw(size, DEPTH, self.options.seconds, **how)

    def latency(self, size):
        lines = self.netperf(["--mode", "lat", "--latency-sizes", str(size), "--time", "0.4",
                              *apart(two_cpus())])
        return next(line["half_round_trip_us"]["p50"] for line in lines
                    if line["kind"] == "latency")


def against_raw(bench, options, ports, need, what):
    """The plugin against perftest on all ports, and plain TCP on the other links, at once."""
    others = [link for link in range(len(bench.network.rates)) if link not in ports]
    beside = (lambda: bench.raw_stream(others, options.seconds)["gbit_per_s"]) if others else None
    bars, figures = [], {}
    with Runs(bench, options, ports) as runs:
        for size in SIZES:
            raw, got, cpu, raw_cpu = [], [], [], []
            for _ in range(options.pairs):
                one = runs.raw(size, numbers=range(len(ports)), beside=beside)
                raw.append(one["gbit"] + (one["beside"] or 0))
                raw_cpu.append(one["cpu"])
                one = runs.bandwidth(size)
                got.append(one["gbit"])
                cpu.append(one["cpu"])
            bars.append(bar(f"{name_of(size)} x {DEPTH}: share of {what}", paired(got, raw), need))
            figures[f"{what}, {name_of(size)}, Gbit/s"] = spread(raw)
            figures[f"deft, {name_of(size)}, Gbit/s"] = spread(got)
            figures[f"deft, {name_of(size)}, CPU s/GB"] = spread(cpu)
    return bars, figures


def alone(bench, options):
    return against_raw(bench, options, [0], 0.97, "raw writes")


def two(bench, options):
    return against_raw(bench, options, [0, 1], 0.95, "raw writes on both ports")


def beside_tcp(bench, options):
    return against_raw(bench, options, [0], 0.95, "raw writes and plain TCP at once")


def unshaped(bench, options):
    """One port as fast as the CPUs: what the plugin costs. In slices, as runs of a second each
    differ by a factor of two here, whoever sends."""
    bars, prices, figures = [], [], {}
    with Runs(bench, options, [0]) as runs:
        for size in SIZES:
            starts = {"deft": lambda size=size: runs.endless(size)}
            for program in ("ib_write_bw", "ib_send_bw"):
                starts[program] = lambda size=size, program=program: fabrics.Endless(
                    bench, runs.fabric, program, size, DEPTH)
            got = runs.in_turn(starts)
            bars.append(of_slices(f"{name_of(size)} x {DEPTH}: share of raw writes", got["deft"],
                                  got["ib_write_bw"], 0, 0.9))
            # Both ends of ib_send_bw poll, as NCCL's proxies do; the server of ib_write_bw sleeps.
            prices.append(of_slices(f"{name_of(size)} x {DEPTH}: CPU s/GB against raw sends",
                                    got["deft"], got["ib_send_bw"], 1, 1.1, False))
            for who, slices_of in got.items():
                figures[f"{who}, {name_of(size)}, Gbit/s"] = spread(
                    [8e-9 * rate for rate, _ in slices_of])
                figures[f"{who}, {name_of(size)}, CPU s/GB"] = spread(
                    [1e9 * price for _, price in slices_of])
        half, raw = [], []
        before = runs.fabric.ping()
        for _ in range(2 * options.pairs):
            half.append(runs.latency(8))
            after = runs.fabric.ping()
            raw.append((before + after) / 2)
            before = after
        figures["deft, half round trip of 8 B, us"] = spread(half)
        figures["ib_send_lat, half round trip of 8 B, us"] = spread(raw)
    return [*bars, *prices, bar("8 B: half round trip against raw sends", paired(half, raw), 1.15,
                                False)], figures


def beside_slow_tcp(bench, options):
    """A slow link over TCP must not cost anything."""
    bars, figures = [], {}
    with Runs(bench, options, [0]) as runs:
        for size in SIZES:
            only, both = [], []
            for _ in range(options.pairs):
                only.append(runs.bandwidth(size, [0])["gbit"])
                both.append(runs.bandwidth(size)["gbit"])
            bars.append(bar(f"{name_of(size)} x {DEPTH}: times the port alone", paired(both, only),
                            0.99))
            figures[f"deft, the port alone, {name_of(size)}, Gbit/s"] = spread(only)
            figures[f"deft, both, {name_of(size)}, Gbit/s"] = spread(both)
    return bars, figures


def fast_beside_tcp(bench, options):
    """A port as fast as the CPUs beside a shaped link: what is left of the port's rate, in slices
    as above. What the link's bytes cost is gone for the port: so the same of perftest, beside plain
    TCP on that link, which waits in the kernel, and beside NCCL's Socket, which spins."""
    bars, figures = [], {}
    with Runs(bench, options, [0]) as runs:
        for size in SIZES:
            def raw(size=size):
                return fabrics.Endless(bench, runs.fabric, "ib_write_bw", size, DEPTH)

            def beside(other, raw=raw):
                try:
                    return slices.Together(bench, [other, raw()])
                except BaseException:
                    other.end()
                    raise

            got = runs.in_turn({
                "deft, the port alone": lambda size=size: runs.endless(size, [0]),
                "deft, the port's part": lambda size=size: runs.endless(size),
                "raw writes alone": raw,
                "raw writes beside plain TCP": lambda: beside(slices.Plain(bench, 1)),
                "raw writes beside Socket": lambda size=size: beside(slices.Runner(
                    bench, SOCKET, slices.steady(size, DEPTH), pinned=False, links=[1]))})
            bars.append(of_slices(f"{name_of(size)} x {DEPTH}: the port's part against the port "
                                  "alone", got["deft, the port's part"],
                                  got["deft, the port alone"], 0, 0.95))
            for other in ("plain TCP", "Socket"):
                kept = slices.ratio(got[f"raw writes beside {other}"], got["raw writes alone"], 0)
                figures[f"{name_of(size)}: raw writes beside {other} against alone"] = (
                    f"{kept[1]:.3f} ({kept[0]:.3f} .. {kept[2]:.3f})")
            for what, slices_of in got.items():
                figures[f"{what}, {name_of(size)}, Gbit/s"] = spread(
                    [8e-9 * rate for rate, _ in slices_of])
    return bars, figures


def fence_times(text):
    """Seconds from a path's loss to the end of its fence, as the senders log them. Those of the
    way back, which has no messages, are the care thread's: nobody waits for them."""
    return [float(took) * 1e-3 for process, thread, took in
            re.findall(rf":(\d+):(\d+) \[deft\] .* fenced after ({fabrics.NUMBER}) ms", text)
            if process == thread]


def port_dies(bench, options):
    """Messages of which every byte is compared, while the port breaks and returns."""
    bars, figures = [], {}
    for kind, (how, device_faults, limit) in FAULTS.items():
        stalls, returns, fences, lost = [], [], [], 0
        for _ in range(max(1, options.pairs // 2)):
            with Runs(bench, options, [0]) as runs:
                process = runs.start(["--mode", "steady", "--sizes", "512K", "--depth", str(DEPTH),
                                      "--messages", "5000", "--verify", "--patience", "30"],
                                     {"DEFT_LOG": "debug", "DEFT_LOG_FILE": runs.fabric.log,
                                      "SOFTDEV_VERBS_FAULTS": device_faults})
                wait_for_traffic(bench, process)
                time.sleep(0.5)
                cuts = []
                for _ in range(2):
                    if process.poll() is not None:
                        break
                    cuts.append((time.monotonic(), time.monotonic() + faults.HOLD))
                    bench.network.cut(0, how)
                    time.sleep(faults.HOLD)
                    bench.network.restore(0)
                    took = faults.back_in_use(bench, process, 0)
                    if took is not None:
                        returns.append(took)
                    time.sleep(1.0)
                lines, _ = bench.finish(process, timeout=110)
                told = Path(runs.fabric.log).read_text(encoding="utf-8")
            result = next(line for line in lines if line["kind"] == "steady")
            stalls += [faults.longest_gap(result, *cut) for cut in cuts]
            fences += fence_times(told)
            lost += len(re.findall(r"path soft0\S* .* is (?:down|suspect)", told))
        bars += [bar(f"{kind}: stall p99", quantile(stalls, 0.99), limit, False, unit="s"),
                 bar(f"{kind}: back in use after return, longest", max(returns, default=None),
                     faults.BACK, False, unit="s"),
                 bar(f"{kind}: paths the sender lost, for each fault", lost / len(stalls), 1.0),
                 bar(f"{kind}: fence p99", quantile(fences, 0.99) if fences else None, 0.1, False,
                     unit="s")]
        figures[f"{kind}: stall, s"] = spread(stalls)
        figures[f"{kind}: back in use, s"] = spread(returns or [2 * faults.BACK])
        figures[f"{kind}: fence, s"] = spread(fences or [0.0])
    return bars, figures


def making_paths(bench, options):
    """The plugin's calls while queue pairs are made on a card that takes its time, one port among
    them that comes up after the start. NCCL's progress thread waits for isend, irecv and test, its
    service thread for connect and accept."""
    sides = []
    for _ in range(options.pairs):
        with Runs(bench, options, [0, 1]) as runs:
            bench.network.cut(1, "carrier")
            process = runs.start(["--mode", "steady", "--sizes", "64K", "--depth", str(DEPTH),
                                  "--connections", "8", "--messages", "2000", "--pace", "500",
                                  "--time-calls", "--patience", "30"],
                                 {"SOFTDEV_VERBS_FAULTS": "modify_slow=100%,modify_slow_ms=300"})
            time.sleep(0.4)
            bench.network.restore(1)
            lines, _ = bench.finish(process, timeout=110)
        sides += next(line for line in lines if line["kind"] == "steady")["calls"]
    bars, figures = [], {}
    for thread, calls in (("progress", "moving"), ("service", "making")):
        for kind in ("worked", "waited"):
            told = [side[calls][kind] for side in sides]
            longest = [one["longest_ms"] for one in told]
            queued = [one["of_these_queued_ms"] for one in told]
            what = f"longest call of the {thread} thread that {kind}"
            if thread == "progress":
                bars.append(bar(f"{what}, while paths are made", max(longest), 1.0, False,
                                unit="ms"))
            figures[f"{what}, of each process, ms"] = spread(longest)
            figures[f"{what}, of these queued for a processor, ms"] = spread(queued)
            figures[f"{what}, which"] = " ".join(one["longest_call"] or "-" for one in told)
            figures[f"calls of the {thread} thread that {kind}"] = sum(one["calls"] for one in told)
    figures["calls that the kernel interrupted, left out"] = sum(side["interrupted"]
                                                                 for side in sides)
    return bars, figures


def device_faults(seed):
    """What the cards of one schedule do, from the seed alone."""
    dice = random.Random(seed * 104729 + 3)
    text = [f"seed={seed}"]
    for name, percent, ms in (("lose_acks", 0.05, 0), ("resend", 2, 40), ("late_write", 1, 600),
                              ("modify_slow", 50, 300), ("shuffle", 20, 0),
                              ("complete_late", 1, 40), ("event_missing", 50, 0),
                              ("event_late", 50, 500)):
        if dice.random() < 0.3:
            text.append(f"{name}={percent * dice.random():.4f}%")
            text += [f"{name}_ms={dice.randint(1, ms)}"] if ms else []
    return ",".join(text)


def schedules(bench, options):
    """Random schedules of links and cards that fail; every run must end bit-exact."""
    wrong = {}
    seeds = range(options.seed, options.seed + options.schedules)
    for seed in seeds:
        ports = [[0], [0, 1]][seed % 2]
        with Runs(bench, options, ports) as runs:
            complaint = faults.run_schedule(
                bench, seed, lambda arguments, runs=runs, seed=seed: runs.start(
                    arguments, {"SOFTDEV_VERBS_FAULTS": device_faults(seed)}), ports)
        if complaint:
            wrong[seed] = complaint
    return ([bar("random schedules that ended bit-exact", len(seeds) - len(wrong), len(seeds))],
            {"seeds": f"{seeds[0]}..{seeds[-1]}", **({"failed": wrong} if wrong else {})})


CASES = {
    "verbs-alone": (["2gbit"], None, alone),
    "verbs-unshaped": (["unshaped"], None, unshaped),
    "verbs-two": (["2gbit", "1gbit"], None, two),
    "verbs-tcp": (["2gbit", "1gbit"], None, beside_tcp),
    "verbs-slow-tcp": (["2gbit", "100mbit"], None, beside_slow_tcp),
    "verbs-fast-tcp": (["unshaped", "1gbit"], None, fast_beside_tcp),
    "verbs-faults": (["2gbit", "1gbit"], None, port_dies),
    "verbs-making": (["2gbit", "1gbit"], None, making_paths),
    "verbs-schedules": (["800mbit", "400mbit"], None, schedules),
}
