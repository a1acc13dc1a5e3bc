# SPDX-License-Identifier: Apache-2.0
"""Cases about links that die and come back under load, and about many connections at rest."""

import os
import random
import re
import time

from . import tools
from .tools import PLUGIN, bar, quantile, spread, wait_for_traffic

HOLD = 1.5          # seconds a fault lasts
CALM = 0.5          # seconds before it that are looked at beside
BACK = 5.0          # a link must carry traffic again so soon after its return
IN_USE = 256 * 1024  # bytes sent on it that count as use
STALL = {"carrier": 0.1, "delete": 0.1, "blackhole": 1.0}


def back_in_use(bench, process, link):
    """Seconds until the link carries traffic again; None if the run ended before or it took
    twice the bar."""
    start, before = time.monotonic(), bench.sent(link) or 0
    while time.monotonic() - start < 2 * BACK:
        if (bench.sent(link) or 0) - before >= IN_USE:
            return time.monotonic() - start
        if process.poll() is not None:
            return None
        time.sleep(0.02)
    return 2 * BACK


def longest_gap(result, begin, end):
    """The longest time without a received message that overlaps [begin, end], in seconds."""
    return max((gap for start, gap in result["gaps_s"] if start + gap > begin and start < end),
               default=0.0)


def stolen():
    """Seconds of CPU time that other guests of this machine's host have taken."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def one_kind(bench, options, kind):
    """10,000 messages, every byte compared, while one link after the other breaks and returns."""
    stalls, calm, returns, lost, steal = [], [], [], 0, stolen()
    for _ in range(max(1, options.pairs // 2)):
        process = bench.start_netperf(PLUGIN, ["--mode", "steady", "--sizes", "512K", "--depth",
                                               "4", "--messages", "10000", "--verify", "--patience",
                                               "30"], extra={"DEFT_LOG": "info"})
        wait_for_traffic(bench, process)
        time.sleep(0.5)
        cuts = []
        for link in (0, 1):
            if process.poll() is not None:
                break
            cuts.append((time.monotonic(), time.monotonic() + HOLD))
            bench.network.cut(link, kind)
            time.sleep(HOLD)
            bench.network.restore(link)
            took = back_in_use(bench, process, link)
            if took is not None:
                returns.append(took)
            time.sleep(1.0)
        lines, errors = bench.finish(process, timeout=110)
        result = next(line for line in lines if line["kind"] == "steady")
        stalls += [longest_gap(result, begin, end) for begin, end in cuts]
        # Beside it, what the machine does by itself while nothing is broken.
        calm += [longest_gap(result, begin - CALM, begin - 0.05) for begin, _ in cuts]
        lost += len(re.findall(r"path .* is (?:down|suspect)", errors))
    bars = [bar(f"{kind}: stall p99", quantile(stalls, 0.99) if stalls else None, STALL[kind],
                False, unit="s"),
            bar(f"{kind}: back in use after return, longest", max(returns) if returns else None,
                BACK, False, unit="s"),
            bar(f"{kind}: paths the sender lost, for each fault", lost / max(1, len(stalls)), 1.0)]
    figures = {"messages": f"10000 x 512 KiB each run, bit-exact; {len(stalls)} faults of {HOLD} s",
               "stall, s": spread(stalls), "longest gap just before, s": spread(calm or [0.0]),
               "stolen CPU time, s": round(stolen() - steal, 2),
               "back in use, s": spread(returns or [2 * BACK])}
    return bars, figures


def schedule(seed):
    """The faults of one schedule: [(start, link, kind, seconds)], from the seed alone."""
    dice = random.Random(seed)
    faults, at = [], 0.0
    for _ in range(dice.randint(2, 5)):
        at += dice.uniform(0.05, 0.8)
        faults.append((at, dice.randrange(2), dice.choice(sorted(STALL)),
                       dice.choice([0.05, 0.3, 1.0, 2.0]) * dice.random()))
    return faults


def run_schedule(bench, seed, start=None, ports=()):
    """Runs one schedule; returns a complaint or ''. Faults may overlap, and cut the last link.
    `start`: starts netperf with these arguments, if not over TCP alone. `ports`: links that are
    RDMA ports, whose interface stays."""
    start = start or (lambda arguments: bench.start_netperf(PLUGIN, arguments))
    dice = random.Random(seed * 7919 + 1)
    size = dice.choice([1, 4000, 65536, 200001, 524288, 1048576])
    messages = int(min(20000, max(1500, 900e6 // size)))
    events = []
    for at, link, kind, seconds in schedule(seed):
        kind = "carrier" if kind == "delete" and link in ports else kind
        events += [(at, 1, link, kind), (at + seconds, 0, link, kind)]
    process = start(["--mode", "steady", "--sizes", str(size), "--depth",
                     str(dice.choice([1, 4, 8])), "--messages", str(messages), "--verify",
                     "--patience", "30", "--seed", str(seed + 1)])
    try:
        wait_for_traffic(bench, process, enough=20000)
        begin, open_faults = time.monotonic(), {0: 0, 1: 0}
        for at, cut, link, kind in sorted(events):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            open_faults[link] += 1 if cut else -1
            if cut and open_faults[link] == 1:
                bench.network.cut(link, kind)
            elif not cut and open_faults[link] == 0:
                bench.network.restore(link)
        result = next(line for line in bench.finish(process, timeout=90)[0]
                      if line["kind"] == "steady")
        return "" if result["verified"] and result["messages"] == messages else "not verified"
    except tools.RunFailed as error:
        return str(error)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for link in (0, 1):
            bench.network.restore(link)


def schedules(bench, options):
    """Random schedules of faults; every run must end bit-exact."""
    wrong = {}
    seeds = list(range(options.seed, options.seed + options.schedules))
    for seed in seeds:
        complaint = run_schedule(bench, seed)
        if complaint:
            wrong[seed] = complaint
    return ([bar("random schedules that ended bit-exact", len(seeds) - len(wrong), len(seeds))],
            {"seeds": f"{seeds[0]}..{seeds[-1]}", **({"failed": wrong} if wrong else {})})


def many_connections(bench, options):
    """Eight ranks, each with 64 connections out and in over two links: what they hold, and that
    they rest."""
    count, ranks = 64, 8
    running = [bench.start_netperf(PLUGIN,
                                   ["--mode", "idle", "--connections", str(count), "--bidir",
                                    "--time", str(5 * options.seconds), "--patience", "60"])
               for _ in range(ranks // 2)]
    sides = []
    for process in running:
        for line in bench.finish(process)[0]:
            sides += line["sides"] if line["kind"] == "idle" else []
    paths = len(bench.network.rates)
    sockets = [side["descriptors"] / (2 * count * paths) for side in sides]
    memory = [side["memory_kib"] / (2 * count) for side in sides]
    cpu = [side["cpu_percent"] for side in sides]
    bars = [bar("memory of a connection, KiB (docs/limits.md)", max(memory), 100, False),
            bar("sockets of a connection and link (one, and the listeners')", max(sockets), 1.1,
                False),
            bar("idle CPU of a rank, % of a core", max(cpu), 1.0, False)]
    return bars, {"ranks": len(sides), "connections of a rank": 2 * count,
                  "KiB of a connection": spread(memory),
                  "sockets of a connection and link": spread(sockets), "idle CPU, %": spread(cpu)}
