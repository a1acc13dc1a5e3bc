# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: iteration times of every run, and each plan as it was made: compute and
lanes over one period."""

import html

from ..common import hosts, pages
from . import report

COLOURS = {"plain": "#777777", "observe": "#4477aa", "exact": "#4477aa", "layers": "#cc6677",
          "deft": "#228833",  "covap": "#aa3377"}
# None is the colour of compute, of waiting, of a link or of a bound.
BUCKETS = ("#44aa99", "#332288", "#88ccee", "#aa4499", "#117733", "#999999")
WIDTH = 900


def _text(x, y, words, size=12, anchor="start", colour="#222222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{colour}">'
            f"{html.escape(words)}</text>")


def _heading(name):
    return report.NAMES[name].capitalize()


def _bucket(index):
    return BUCKETS[index % len(BUCKETS)]


def _box(x, y, width, height, colour, title):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" '
            f'fill="{colour}" stroke="#ffffff" '
            f'stroke-width="0.5"><title>{html.escape(title)}</title></rect>')


def iterations(phases):
    """An SVG of the time of every iteration, one line per run."""
    height, left, bottom = 220, 60, 30
    raw = {name: phase["job"]["iteration_ms"]["raw"] for name, phase in phases.items()}
    longest = max(len(times) for times in raw.values())
    most = max(max(times) for times in raw.values() if times) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" '
             'aria-label="time of every iteration">']
    for tick in range(5):
        y = height - bottom - (height - bottom - 10) * tick / 4
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(left - 6, y + 4, f"{most * tick / 4:.0f} ms", 11, "end"))
    for name, times in raw.items():
        points = " ".join(f"{left + (WIDTH - left) * index / max(1, longest - 1):.1f},"
                          f"{height - bottom - (height - bottom - 10) * value / most:.1f}"
                          for index, value in enumerate(times))
        parts.append(f'<polyline points="{points}" fill="none" '
                     f'stroke="{COLOURS.get(name, "#000000")}" '
                     f'stroke-width="1.5"><title>{html.escape(name)}</title></polyline>')
    for index, name in enumerate(raw):
        parts.append(_text(left + 150 * index, height - 6, report.NAMES[name], 13,
                           colour=COLOURS.get(name, "#000000")))
    return "\n".join(parts + ["</svg>"])


def _median(quantiles):
    return (quantiles or {}).get("median")


def _axis(parts, end, height, left, marks=6):
    """Vertical lines at round times up to `end`."""
    step = next((size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
                 if end / size <= marks), end / marks)
    for number in range(int(end / step) + 1):
        at = left + (WIDTH - left) * number * step / end
        parts.append(f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{height - 20}" '
                     'stroke="#dddddd"/>')
        parts.append(_text(at, height - 6, f"{number * step:.0f} ms", 11,
                           "middle" if at < WIDTH - 30 else "end"))


def _bars(phase, rates):
    """What one iteration of a run is made of: ([name of a row], [(row, start, length, colour,
    title)]) in ms."""
    seen, traffic = (phase.get("observed") or [{}])[0], phase["traffic"][0]
    links = [(f"eth{link}", rate) for link, rate in enumerate(rates) if f"eth{link}" in traffic]
    rows, bars = ["compute", "all-reduces", *(name for name, _ in links)], []
    compute, exposed = (_median((seen.get("iterations") or {}).get(name))
                        for name in ("compute_ms", "exposed_ms"))
    if compute:
        bars += [(0, 0, compute, "#ddaa33", f"compute, {compute:.0f} ms"),
                 (0, compute, exposed or 0, "#eeeeee",
                  f"waiting for gradients, {exposed or 0:.0f} ms")]
    before = 0.0
    for index, bucket in enumerate(seen.get("buckets", [])):
        ready, took = _median(bucket.get("ready_ms")), _median(bucket.get("transfer_ms"))
        if ready is None or took is None:
            continue
        start = max(ready, before)
        before = start + took
        bars.append((1, start, took, _bucket(index),
                     f"bucket {index}, {bucket['bytes'] / 1e6:.1f} MB: ready at {ready:.0f} ms, "
                     f"takes {took:.0f} ms"))
    for number, (name, rate) in enumerate(links):
        sent = traffic[name]["sent"] / max(1, phase["job"]["iterations"])
        length = 8e3 * sent / hosts.rate_bits(rate) if hosts.rate_bits(rate) else 0.0
        bars.append((2 + number, 0, length, "#4477aa",
                     f"{name} at {rate}: {sent / 1e6:.1f} MB an iteration, "
                     f"{length:.0f} ms at its full rate"))
    return rows, bars


def one_iteration(phase, rates, end, bound):
    """An SVG of one iteration of a run on a scale up to `end`: compute, what the job sees of its
    all-reduces, and for how long each link carries its bytes at its full rate. Medians and
    totals of the whole run."""
    left, row = 130, 26
    rows, bars = _bars(phase, rates)
    height = row * len(rows) + 26
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="one '
             'iteration as measured">']
    _axis(parts, end, height, left)
    scale = (WIDTH - left) / end
    for number, name in enumerate(rows):
        parts.append(_text(0, (number + 1) * row - 9, name))
    if all(line != 0 for line, *_ in bars):
        parts.append(_text(left + 4, row - 9, "not observed", 12, colour="#888888"))
    parts += [_box(left + start * scale, line * row + 2, length * scale, row - 6, colour, title)
              for line, start, length, colour, title in bars]
    for at, colour, words in ((report.settled_ms(phase), "#000000", "iteration"),
                              (bound, "#cc3311", "lower bound")):
        if at:
            x = left + (WIDTH - left) * min(at, end) / end
            parts.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 20}" '
                         f'stroke="{colour}" stroke-width="2">'
                         f"<title>{words}, {at:.0f} ms</title></line>")
    return "\n".join(parts + ["</svg>"])


def last_iterations(phase, rates, seconds):
    """An SVG of a run's last iterations as they went, on a scale of `seconds`: what the first
    rank does, and how much of its rate each link of its host carries."""
    left, row, activity = 130, 26, phase["activity"]
    links = [(f"eth{link}", rate)
             for link, rate in enumerate(rates) if f"eth{link}" in activity["links"]]
    height = row * (1 + len(links)) + 26
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="the last iterations">']
    _axis(parts, seconds * 1e3, height, left)
    scale = (WIDTH - left) / seconds
    for number, name in enumerate(["compute", *(name for name, _ in links)]):
        parts.append(_text(0, (number + 1) * row - 9, name))
    for began, ready, over, ended in activity["iterations"]:
        for start, end, colour, words in ((began, ready, "#ddaa33", "forward and backward"),
                                          (ready, over, "#eeeeee", "waiting for gradients"),
                                          (over, ended, "#eecc66", "update")):
            parts.append(_box(left + start * scale, 2, (end - start) * scale, row - 6, colour,
                              f"{words}, {1e3 * (end - start):.0f} ms"))
        for at in (began, ended):
            parts.append(f'<line x1="{left + at * scale:.1f}" y1="0" x2="{left + at * scale:.1f}" '
                         f'y2="{height - 20}" stroke="#000000" stroke-dasharray="3 3"/>')
    whole = activity["iterations"][-1][-1]
    for number, (name, rate) in enumerate(links, 1):
        base, samples = (number + 1) * row - 4, activity["links"][name]
        points = []
        for (then, before), (now, after) in zip(samples, samples[1:]):
            share = min(1.0,
                        8 * (after - before) / max(now - then,
                                                   1e-6) / (hosts.rate_bits(rate) or 1e12))
            points += [(at, base - share * (row - 6))
                       for at in (min(max(then, 0.0), whole), min(max(now, 0.0), whole))]
        outline = " ".join(f"{left + at * scale:.1f},{y:.1f}"
                           for at, y in [(0.0, base), *points, (whole, base)])
        sent = samples[-1][1] - samples[0][1] if samples else 0
        parts.append(f'<polygon points="{outline}" fill="#4477aa"><title>{html.escape(name)} at '
                     f'{html.escape(str(rate))}: {sent / 1e6:.1f} MB, '
                     f"{100 * 8 * sent / whole / (hosts.rate_bits(rate) or 1e12):.0f} % of what it "
                     "could carry</title></polygon>")
    return "\n".join(parts + ["</svg>"])


def plan(facts, observed):
    """An SVG of one period of a plan as predicted: backward and forward, when gradients become
    ready, what each lane carries. The planner's time counts from the start of backward, the
    observer's from the start of forward."""
    period = max(1, facts["period"]) * facts["predicted_ms"]
    end = max([period] + [transfer["finish_ms"] for transfer in facts["transfers"]])
    lanes = 1 + max((transfer["link"] for transfer in facts["transfers"]), default=0)
    left, row = 130, 26
    height = row * (lanes + 2) + 26
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="one period of the plan">']
    _axis(parts, end, height, left)
    scale = (WIDTH - left) / end
    for number, name in enumerate(["compute", "gradients ready",
                                   *(f"lane {lane}" for lane in range(lanes))]):
        parts.append(_text(0, (number + 1) * row - 9, name))
    compute = _median((observed.get("iterations") or {}).get("compute_ms")) or 0.0
    ready = [_median(bucket.get("ready_ms")) for bucket in observed.get("buckets", [])]
    ready = [value for value in ready if value is not None]
    forward = min([compute / 3, *ready[:1]])
    starts = facts["cycles_ms"]
    for number, start in enumerate(starts):
        following = starts[number + 1] if number + 1 < len(starts) else period
        parts.append(_box(left + start * scale, 2,
                          min(compute - forward, following - start) * scale, row - 6, "#ddaa33",
                          "backward"))
        parts.append(_box(left + max(start, following - forward) * scale, 2,
                          min(forward, following - start) * scale, row - 6, "#eecc66",
                          "forward of the next iteration"))
        for index, value in enumerate(ready):
            if start + value - forward <= end:
                parts.append(_box(left + (start + value - forward) * scale - 1, row + 4, 3, row - 8,
                                  _bucket(index), f"bucket {index} ready, {value - forward:.0f} ms "
                                             "after the start of backward"))
    for transfer in facts["transfers"]:
        parts.append(_box(left + transfer["start_ms"] * scale, row * (transfer["link"] + 2) + 2,
                          (transfer["finish_ms"] - transfer["start_ms"]) * scale, row - 6,
                          _bucket(transfer["bucket"]),
                          f"bucket {transfer['bucket']}: {transfer['start_ms']:.1f} to "
                          f"{transfer['finish_ms']:.1f} ms"))
    for number in range(max(1, facts["period"]) + 1):
        at = left + number * facts["predicted_ms"] * scale
        parts.append(f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{height - 20}" '
                     'stroke="#000000" stroke-dasharray="3 3"/>')
    return "\n".join(parts + ["</svg>"])


def page(phases, rows, rates, limits, about):
    """The whole page; `rows` is the comparison as a table, the first row its head; `limits` the
    lower bounds in ms. `about`: sentences that stand above the table, the first one the verdict."""
    body = ["<h1>deft demo</h1>", f"<p><strong>{html.escape(about[0])}</strong></p>",
            *(f"<p>{html.escape(sentence)}</p>" for sentence in about[1:]), "<table>"]
    for number, row in enumerate(rows):
        cell = "th" if number == 0 else "td"
        body.append("<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row) +
                    "</tr>")
    body += ["</table>", "<h2>One iteration of each run</h2>",
             "<p>Medians as deft's hooks measured them, and for how long each link carries an "
             "iteration's bytes at its full rate. Black: the iteration (second half of the run); "
             f"red: the {html.escape(report.BOUND)}. Under a plan that delays, "
             "an all-reduce of the job only takes what has arrived before.</p>"]
    end = 1.05 * max([report.settled_ms(phase) for phase in phases.values()] +
                     list(limits.values()) +
                     [start + length for phase in phases.values() for _, start, length,
                      *_ in _bars(phase, rates)[1]])
    for name, phase in phases.items():
        body += [f"<h3>{html.escape(_heading(name))}</h3>",
                 f"<p>{html.escape(phase['plan'])}</p>" if phase.get("plan") else "",
                 one_iteration(phase, rates, max(end, 1e-3), limits.get(name))]
    shown = {name: phase for name, phase in phases.items() if phase.get("activity")}
    if shown:
        body += ["<h2>The last iterations of each run, as they went</h2>",
                 "<p>On the first host: what its rank does, by the host's clock, "
                 "and how much of its rate each link carries, in steps of 10 ms (full height: "
                 "all of it). Yellow: forward and backward; grey: waiting for gradients; "
                 "light yellow: the update.</p>"]
    longest = max((phase["activity"]["iterations"][-1][-1] for phase in shown.values()), default=0)
    for name, phase in shown.items():
        body += [f"<h3>{html.escape(_heading(name))}</h3>",
                 last_iterations(phase, rates, longest)]
    body += ["<h2>Every iteration</h2>", iterations(phases)]
    for name, phase in phases.items():
        for observed in phase.get("observed", [])[:1]:
            for facts in observed.get("plans", []):
                if facts["policy"]:
                    body += [f"<h2>{html.escape(_heading(name))}: "
                             f"plan {html.escape(facts['policy'])}, one period as predicted"
                             + ("" if facts.get("switched") else " (never in force)") + "</h2>",
                             f"<p>{facts['predicted_ms']:.1f} ms per iteration predicted, "
                             f"{facts['baseline_ms']:.1f} ms as the job was, "
                             f"bound {facts['bound_ms']:.1f} ms; "
                             f"{facts['updates_per_iteration']:g} updates per iteration; state: "
                             f"{html.escape(facts['state'])}</p>", plan(facts, observed)]
    return pages.html_page("deft demo", body)
