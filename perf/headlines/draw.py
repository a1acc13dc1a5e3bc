# SPDX-License-Identifier: Apache-2.0
"""Draws policies.csv: speed-up over the job as it is against coverage rate, one small plot for each
model and number of links, as policies.svg. Next to the simulated curves stand the points that the
library and its stand-ins reached in perf/policies.

usage: python3 perf/headlines/draw.py"""

import csv
import html
import json
import math
import pathlib

HERE = pathlib.Path(__file__).parent
DASHES = {"best": "5 5", "best by progress": "2 4"}  # they run over others
MEASURED = [HERE.parent / "results" / name
            for name in ("policies-headlines.json", "policies-bert-large.json")]
WIDE, HIGH, LEFT, TOP, GAP = 250, 170, 60, 60, 60
RATES, MOST = (0.5, 3.0), 3.2
# Policy: colour, and what perf/policies calls the same thing.
SHOWN = {"wfbp": ("#777777", None), "mg-wfbp": ("#b07aa1", None),
         "bytescheduler": ("#4e79a7", "bytescheduler"), "us-byte": ("#59a14f", "us-byte"),
         "dear": ("#9c755f", None), "deft": ("#e15759", None), "covap": ("#f28e2b", "covap"),
         "best": ("#000000", None), "best by progress": ("#17a2b8", "deft")}


def simulated():
    """(model, links) -> policy -> [(coverage rate, speed-up)]."""
    plots = {}
    with open(HERE / "policies.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            plot = plots.setdefault((row["model"], int(row["links"])), {})
            plot.setdefault(row["policy"], []).append(
                (float(row["coverage_rate"]), float(row["speedup"])))
    return plots


def measured():
    """model -> policy of perf/policies -> [(coverage rate, speed-up)], over two links. The rate is
    that of the first link alone, as in policies.csv; the speed-up is over first ready, first sent
    on it."""
    points = {}
    for path in MEASURED:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        plain = {(c["model"], c["coverage"]): c["iteration_ms"] for c in cells
                 if c["policy"] == "plain"}
        for cell in cells:
            fast, slow = cell["raw_gbit"]
            base = plain.get((cell["model"], cell["coverage"]))
            if base:
                points.setdefault(cell["model"], {}).setdefault(cell["policy"], []).append(
                    (cell["coverage"] * (fast + slow) / fast, base / cell["iteration_ms"]))
    return points


def x_of(rate):
    low, high = (math.log(r) for r in RATES)
    return WIDE * (math.log(rate) - low) / (high - low)


def y_of(gain):
    return HIGH * (1 - (min(gain, MOST) - 0.8) / (MOST - 0.8))


def plot(model, links, curves, points):
    parts = [f'<text y="-8" font-weight="bold">{html.escape(model)}, {links} link'
             f'{"s" if links > 1 else ""}</text>',
             f'<rect width="{WIDE}" height="{HIGH}" fill="none" stroke="#999"/>']
    for gain in (1, 2, 3):
        parts.append(f'<path d="M0 {y_of(gain):.1f}h{WIDE}" stroke="#ddd"/>'
                     f'<text x="-6" y="{y_of(gain) + 4:.1f}" text-anchor="end">{gain}x</text>')
    for rate in (0.5, 1, 2, 3):
        parts.append(f'<text x="{x_of(rate):.1f}" y="{HIGH + 16}" text-anchor="middle">{rate:g}'
                     '</text>')
    for policy, (colour, other) in SHOWN.items():
        line = " ".join(f"{x_of(r):.1f},{y_of(s):.1f}" for r, s in sorted(curves.get(policy, [])))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6" '
                     f'stroke-dasharray="{DASHES.get(policy, "none")}"/>')
        if links == 2 and other:
            parts += [f'<circle cx="{x_of(r):.1f}" cy="{y_of(s):.1f}" r="3.5" fill="{colour}"/>'
                      for r, s in points.get(model, {}).get(other, []) if RATES[0] <= r <= RATES[1]]
    return "".join(parts)


def drawing():
    plots, points = simulated(), measured()
    models = list(dict.fromkeys(model for model, _ in plots))
    width = LEFT + 2 * (WIDE + GAP)
    parts, at = [], TOP
    for model in models:
        for links in (1, 2):
            parts.append(f'<g transform="translate({LEFT + (links - 1) * (WIDE + GAP)} {at})">'
                         + plot(model, links, plots[model, links], points) + "</g>")
        at += HIGH + GAP
    for k, (policy, (colour, other)) in enumerate(SHOWN.items()):
        x, y = LEFT + (k % 3) * 190, at + 20 * (k // 3) - 16
        name = policy + (f" (points: {other})" if other and other != policy else "")
        parts.append(f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="3" '
                     f'stroke-dasharray="{DASHES.get(policy, "none")}"/>'
                     f'<text x="{x + 30}" y="{y}">{html.escape(name)}</text>')
    title = "Speed-up over the job as it is, against coverage rate of the first link"
    note = "lines: simulated, ideal links; points: measured, perf/policies (second link 2 to 1)"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{at + 50}" '
            f'viewBox="0 0 {width} {at + 50}" font-family="sans-serif" font-size="12" role="img">'
            f"<title>{title}</title><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{title}</text>'
            f'<text x="{LEFT}" y="36">{note}</text>' + "\n".join(parts) + "</svg>\n")


def main():
    (HERE / "policies.svg").write_text(drawing(), encoding="utf-8")


if __name__ == "__main__":
    main()
