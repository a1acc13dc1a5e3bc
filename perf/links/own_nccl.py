# SPDX-License-Identifier: Apache-2.0
"""Throughput of whole all-reduces on NCCL's own library: deft on all links beside NCCL's Socket
transport and plain TCP."""

import json
import os

from ..common import ranks
from .rates import NOISE
from .tools import bar, median, spread

# Of two ranks each sends as many bytes as its gradient has.
BYTES = 64 << 20
ITERATIONS, SKIPPED = 24, 8
# case: (rates, share of raw TCP on all links, or None: at least the Socket transport)
CASES = {
    "unequal": (["2gbit", "1gbit"], 0.95),
    "equal2": (["1gbit", "1gbit"], 0.95),
    "ten-to-one": (["1gbit", "100mbit"], 0.93),
    "one-link": (["unshaped"], None),
}


def all_reduces(parts):
    """The command of a rank that sums one gradient again and again."""
    def command(results, folder):
        # All ranks have this folder, and one may be reading already.
        path = os.path.join(folder, "profile.json")
        with open(f"{results}.profile", "w", encoding="utf-8") as file:
            json.dump({"format": "deft-profile", "version": 1, "name": "one gradient",
                       "source": "perf/links", "forward_ms": 0.5, "backward_ms": 0.5,
                       "buckets": [{"bytes": BYTES, "ready_ms": 0.5}]}, file)
        os.replace(file.name, path)
        return [parts.replay, "--profile", path, "--iterations", str(ITERATIONS), "--alone", "1",
                "--id-file", os.path.join(folder, "id"), "--json", results]
    return command


def gbit(network, parts, mode, links=None):
    run = ranks.run(network, parts, all_reduces(parts), mode, {}, links)
    return BYTES * 8 / median(run.results["iteration_ms"]["raw"][SKIPPED:]) / 1e6


def measure(case, network, parts, pairs):
    """(bars, figures) of one case."""
    rates, share = CASES[case]
    raw, got = [], {"deft": [], "Socket, all links": [], "Socket, the fast link": []}
    for _ in range(pairs):
        raw.append(sum(ranks.raw_gbit(network, parts, 1.0)))
        got["deft"].append(gbit(network, parts, "observe"))
        got["Socket, all links"].append(gbit(network, parts, None))
        if len(rates) > 1:
            got["Socket, the fast link"].append(gbit(network, parts, None, [0]))
    got = {name: values for name, values in got.items() if values}
    bars = []
    if share is not None:
        bars.append(bar("64 MiB summed: share of raw TCP on all links",
                        median([mine / all_of_it for mine, all_of_it in zip(got["deft"], raw)]),
                        share))
    for name in list(got)[1:]:
        bars.append(bar(f"64 MiB summed: times {name}",
                        median([mine / theirs for mine, theirs in zip(got["deft"], got[name])]),
                        1.0 - NOISE))
    return bars, {"raw TCP, all links": spread(raw),
                  **{name: spread(values) for name, values in got.items()}}
