# SPDX-License-Identifier: Apache-2.0
"""Cases about throughput: unequal and equal links, one pipe shared, a rate that changes, one
unshaped link."""

import statistics
import time

from . import slices, tools
from .tools import MPTCP, PLUGIN, SOCKET, bar, median, spread, wait_for_traffic

KIB, MIB = 1024, 1024 * 1024
# "At least as good" between two noisy figures on one machine: a paired median within this much of
# it counts.
NOISE = 0.03
SLICES_OF_A_PAIR = 12


def name_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def several_links(bench, options, rates, need, sizes=(512 * KIB, MIB), alone=False):
    """The plugin against plain TCP on all links at once; the Socket transport and MPTCP beside
    it."""
    links = range(len(rates))
    with_mptcp = bench.enable_mptcp()
    raw, fast, got = [], [], {kind: {size: [] for size in sizes}
                              for kind in (SOCKET, MPTCP, PLUGIN)}
    for _ in range(options.pairs):
        raw.append(bench.raw_stream(links, options.seconds)["gbit_per_s"])
        if alone:
            fast.append(bench.raw_stream([0], options.seconds)["gbit_per_s"])
        kinds = [(SOCKET, [0]), (PLUGIN, None)] + ([(MPTCP, [0])] if with_mptcp else [])
        for kind, on in kinds:
            try:
                for size, figures in bench.bandwidth(kind, sizes, 4, options.seconds, on).items():
                    got[kind][size].append(figures["gbit"])
            except tools.RunFailed:
                if kind == PLUGIN:
                    raise
    bars, figures = [], {"raw TCP, all links": spread(raw)}
    if fast:
        figures["raw TCP, the fast link"] = spread(fast)
    for size in sizes:
        ratio = median([mine / theirs for mine, theirs in zip(got[PLUGIN][size], raw)])
        bars.append(bar(f"{name_of(size)} x 4: share of raw TCP on all links", ratio, need))
        if fast:
            least = median([mine / theirs for mine, theirs in zip(got[PLUGIN][size], fast)])
            bars.append(bar(f"{name_of(size)} x 4: times raw TCP on the fast link", least, 1.0))
        for kind, title in ((PLUGIN, "deft"), (SOCKET, "Socket, fast link"),
                            (MPTCP, "Socket over MPTCP")):
            if got[kind][size]:
                figures[f"{title}, {name_of(size)}"] = spread(got[kind][size])
    if not with_mptcp:
        figures["MPTCP"] = bench.mptcp_missing
    return bars, figures


def shared_pipe(bench, options):
    """Two paths behind one uplink against one path."""
    sizes = (512 * KIB, MIB)
    one, two = {size: [] for size in sizes}, {size: [] for size in sizes}
    for _ in range(options.pairs):
        for into, links in ((one, [0]), (two, None)):
            for size, figures in bench.bandwidth(PLUGIN, sizes, 4, 2 * options.seconds,
                                                 links).items():
                into[size].append(figures["gbit"])
    bars = [bar(f"{name_of(size)} x 4: both paths against one",
                median([b / a for a, b in zip(one[size], two[size])]), 0.97)
            for size in sizes]
    return bars, {f"{title}, {name_of(size)}": spread(table[size])
                  for title, table in (("one path", one), ("two paths", two)) for size in sizes}


def seconds_until(result, start, level, window=0.2):
    """How long after `start` (monotonic) the rate over a window first reached `level` bytes/s,
    and stayed for another."""
    bins, width = result["bytes_per_bin"], result["bin_s"]
    first = int((start - result["begin"]) / width)
    count = int(window / width)
    for at in range(first, len(bins) - count):
        if sum(bins[at:at + count]) >= level * window:
            return (at - first) * width + window
    return None


def changed_rate(bench, options):
    """The fast link is halved under load and restored: how long until the new sum is used again."""
    network = bench.network
    late, figures = {"halved": [], "restored": []}, {}
    sums = {}
    for phase, rate in (("restored", "2gbit"), ("halved", "1gbit")):
        network.set_rate(0, rate)
        sums[phase] = bench.raw_stream([0, 1], options.seconds)["gbit_per_s"]
    network.set_rate(0, "2gbit")
    for _ in range(max(1, options.pairs // 2)):
        process = bench.start_netperf(PLUGIN, ["--mode", "steady", "--sizes", "512K", "--depth",
                                               "4", "--messages", "5500"])
        wait_for_traffic(bench, process)
        time.sleep(1.5)
        changes = []
        for phase, rate in (("halved", "1gbit"), ("restored", "2gbit")):
            network.set_rate(0, rate)
            changes.append((phase, time.monotonic()))
            time.sleep(2.5)
        result = next(line for line in bench.finish(process)[0] if line["kind"] == "steady")
        for phase, at in changes:
            took = seconds_until(result, at, 0.9 * sums[phase] * 1e9 / 8)
            late[phase].append(took if took is not None else 9.0)
    bars = [bar(f"rate {phase}: seconds until 0.9 of the new sum", median(times), 1.0,
                at_least=False, unit="s")
            for phase, times in late.items()]
    for phase in late:
        figures[f"raw TCP, rate {phase}"] = round(sums[phase], 3)
        figures[f"seconds, rate {phase} (window of 0.2 s included)"] = spread(late[phase])
    return bars, figures


def send_ways(bench, options):
    """Zero-copy and io_uring against plain send() on one unshaped link. No bar: it tells what
    the plugin's way (pages) is worth."""
    figures = {}
    ways = ("send", "pages", "zerocopy", "uring", "uring-zerocopy")
    for size in (64 * KIB, MIB):
        got = {way: [] for way in ways}
        for _ in range(options.pairs):
            for way in ways:
                got[way].append(bench.send_way(way, size, options.seconds))
        for way in ways[1:]:
            if None in got[way]:
                figures[f"{way}, {name_of(size)}"] = "not on this machine"
                continue
            for key, title in (("gbit_per_s", "throughput"), ("cpu_s_per_gb", "CPU s/GB")):
                figures[f"{way}, {name_of(size)}, {title} against send()"] = spread(
                    [mine[key] / theirs[key] for mine, theirs in zip(got[way], got["send"])])
    return [], figures


def one_link(bench, options):
    """One unshaped link: nothing to add up, so the plugin must cost nothing."""
    sizes = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB)
    half, raw_half, raw = {SOCKET: [], PLUGIN: []}, {SOCKET: [], PLUGIN: []}, []
    # The machine's clock wanders within seconds: each latency has raw TCP's before and after it.
    before = bench.raw_ping()["half_round_trip_us"]
    for number in range(2 * options.pairs):
        for kind in ((SOCKET, PLUGIN) if number % 2 else (PLUGIN, SOCKET)):
            half[kind].append(bench.latency(kind, seconds=0.3))
            after = bench.raw_ping()["half_round_trip_us"]
            raw_half[kind].append((before + after) / 2)
            before = after
        raw.append(bench.raw_stream([0], options.seconds / 4)["gbit_per_s"])
    figures = {"raw TCP, one stream": spread(raw),
               "raw TCP ping-pong, us": spread(raw_half[PLUGIN])}
    for kind, title in ((PLUGIN, "deft"), (SOCKET, "Socket")):
        figures[f"{title}, half round trip of 8 B, us"] = spread(half[kind])

    rates, prices = [], []
    for size in sizes:
        got = slices.compare(bench, (PLUGIN, SOCKET), size, 8, SLICES_OF_A_PAIR * options.pairs)
        for which, into, title, need, at_least in ((0, rates, "throughput", 1 - NOISE, True),
                                                   (1, prices, "CPU s/GB", 1 + NOISE, False)):
            lower, middle, upper = slices.ratio(got[PLUGIN], got[SOCKET], which)
            into.append(bar(f"{name_of(size)}: {title} against Socket", middle, need, at_least,
                            quartiles=[lower, upper]))
        for kind, title in ((PLUGIN, "deft"), (SOCKET, "Socket")):
            figures[f"{title}, {name_of(size)}, Gbit/s"] = spread(
                [8e-9 * one for one, _ in got[kind]])
            figures[f"{title}, {name_of(size)}, CPU s/GB"] = spread(
                [1e9 * one for _, one in got[kind]])

    def paired(mine, theirs):
        return median([a / b for a, b in zip(mine, theirs)])

    alone = []
    for size in (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB):
        trips = {SOCKET: [], PLUGIN: []}
        for number in range(2 * options.pairs):
            kinds = (SOCKET, PLUGIN) if number % 2 else (PLUGIN, SOCKET)
            for kind, trip in slices.compare_latency(bench, kinds, size, 0.4).items():
                trips[kind].append(trip)
        ratios = [a / b for a, b in zip(trips[PLUGIN], trips[SOCKET])]
        lower, middle, upper = statistics.quantiles(ratios, n=4)
        alone.append(bar(f"{name_of(size)} alone: half round trip against Socket", middle, 1.0,
                         False, quartiles=[lower, upper]))
        for kind, title in ((PLUGIN, "deft"), (SOCKET, "Socket")):
            figures[f"{title}, half round trip of {name_of(size)}, us"] = spread(trips[kind])

    return rates + prices + alone + [
        bar("8 B: half round trip against Socket", paired(half[PLUGIN], half[SOCKET]), 1 + NOISE,
            False),
        bar("8 B: half round trip against raw TCP", paired(half[PLUGIN], raw_half[PLUGIN]), 1.1,
            False)], figures
