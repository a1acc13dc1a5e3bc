# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: iteration times of every run, and each plan as it was made: compute and
lanes over one period."""

import html
import re

from ..common import hosts, pages
from . import report

# Those of Okabe and Ito, as on the page of `deft report --html`; each is seen on light and on dark.
COMPUTE, LIGHTER, WAITING, LINK, BOUND, NOW = ("#0072b2", "#8fbfdd", "#e69f00", "#7d8a92",
                                               "#d55e00", "#111111")
COLOURS = {"plain": "#7d8a92", "observe": "#56b4e9", "exact": "#0072b2", "layers": "#cc79a7",
           "deft": "#009e73", "covap": "#d55e00"}
# None is the colour of compute, of waiting, of a link or of a bound.
BUCKETS = ("#009e73", "#cc79a7", "#b8a92f", "#7a5ea8", "#44aa99", "#a0522d")
ROW, HIGH = 40, 18   # pixels: of a row with its name above it, and of its bar


def _percent(share):
    """Across the picture, whose width is the reader's."""
    return f"{100 * min(max(share, 0.0), 1.0):.3f}%"


def _picture(label, height, parts):
    return "\n".join([f'<svg height="{height}" role="img" aria-label="{label}">', *parts, "</svg>"])


def _text(x, y, words, kind="", anchor="start"):
    return (f'<text x="{x}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
            f"{html.escape(words)}</text>")


def _names(rows):
    return [_text(0, number * ROW + 13, name) for number, name in enumerate(rows)]


def _upright(share, height, kind, colour=NOW, title=""):
    x = _percent(share)
    words = f"<title>{html.escape(title)}</title>" if title else ""
    return (f'<line x1="{x}" y1="0" x2="{x}" y2="{height - 20}" class="{kind}" '
            f'stroke="{colour}">{words}</line>')


def _stretched(y, high, shape):
    """A shape of 1000 by 100, as wide as the picture."""
    return (f'<svg x="0" y="{y}" width="100%" height="{high}" viewBox="0 0 1000 100" '
            f'preserveAspectRatio="none">{shape}</svg>')


def _heading(name):
    return report.NAMES[name].capitalize()


def _bucket(index):
    return BUCKETS[index % len(BUCKETS)]


def _box(row, start, length, colour, title):
    """`start` and `length` are shares of the picture's width."""
    return (f'<rect x="{_percent(start)}" y="{row * ROW + 18}" '
            f'width="{_percent(max(length, 0.001))}" height="{HIGH}" '
            f'fill="{colour}"><title>{html.escape(title)}</title></rect>')


def iterations(phases):
    """An SVG of the time of every iteration, one line per run, and what each line is."""
    top, high = 18, 180
    raw = {name: phase["job"]["iteration_ms"]["raw"] for name, phase in phases.items()}
    longest = max(len(times) for times in raw.values())
    most = max(max(times) for times in raw.values() if times) or 1
    step = _step(most, 5)
    parts, words = [], []
    for tick in range(int(most / step) + 1):
        y = top + high * (1 - tick * step / most)
        parts.append(f'<line x1="0" y1="{y:.1f}" x2="100%" y2="{y:.1f}" class="grid"/>')
        words.append(_text(0, y - 3, f"{tick * step:g} ms", "soft over"))
    for name, times in raw.items():
        points = " ".join(f"{1000 * index / max(1, longest - 1):.1f},{100 - 100 * value / most:.2f}"
                          for index, value in enumerate(times))
        parts.append(_stretched(top, high, f'<polyline points="{points}" fill="none" '
                                f'stroke="{COLOURS.get(name, NOW)}" stroke-width="2" '
                                'vector-effect="non-scaling-stroke">'
                                f"<title>{html.escape(name)}</title></polyline>"))
    legend = "".join(f'<span><i style="background:{COLOURS.get(name, NOW)}"></i>'
                     f"{html.escape(report.NAMES[name])}</span>" for name in raw)
    return (f'<p class="legend">{legend}</p>\n' +
            # The words above the lines, which would run through them.
            _picture("time of every iteration", top + high + 4, parts + words))


def _median(quantiles):
    return (quantiles or {}).get("median")


def _step(end, marks):
    return next((size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
                 if end / size <= marks), end / marks)


def _axis(end, height, marks=5):
    """Vertical lines at round times up to `end`."""
    step, parts = _step(end, marks), []
    for number in range(int(end / step) + 1):
        share = number * step / end
        parts.append(_upright(share, height, "grid"))
        parts.append(_text(_percent(share), height - 6, f"{number * step:.0f} ms", "soft",
                           "start" if number == 0 else "middle" if share < 0.93 else "end"))
    return parts


def _bars(phase, rates):
    """What one iteration of a run is made of: ([name of a row], [(row, start, length, colour,
    title)]) in ms."""
    seen, traffic = (phase.get("observed") or [{}])[0], phase["traffic"][0]
    links = [(f"eth{link}", rate) for link, rate in enumerate(rates) if f"eth{link}" in traffic]
    rows, bars = ["compute", "all-reduces", *(name for name, _ in links)], []
    compute, exposed = (_median((seen.get("iterations") or {}).get(name))
                        for name in ("compute_ms", "exposed_ms"))
    if compute:
        bars += [(0, 0, compute, COMPUTE, f"compute, {compute:.0f} ms"),
                 (0, compute, exposed or 0, WAITING,
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
        bars.append((2 + number, 0, length, LINK,
                     f"{name} at {rate}: {sent / 1e6:.1f} MB an iteration, "
                     f"{length:.0f} ms at its full rate"))
    return rows, bars


def one_iteration(phase, rates, end, bound):
    """An SVG of one iteration of a run on a scale up to `end`: compute, what the job sees of its
    all-reduces, and for how long each link carries its bytes at its full rate. Medians and
    totals of the whole run."""
    rows, bars = _bars(phase, rates)
    height = ROW * len(rows) + 24
    parts = [*_axis(end, height), *_names(rows)]
    if all(line != 0 for line, *_ in bars):
        parts.append(_text(0, 32, "not observed", "soft"))
    parts += [_box(line, start / end, length / end, colour, title)
              for line, start, length, colour, title in bars]
    for at, kind, colour, words in ((report.settled_ms(phase), "now", NOW, "iteration"),
                                    (bound, "bound", BOUND, "lower bound")):
        if at:
            parts.append(_upright(at / end, height, kind, colour, f"{words}, {at:.0f} ms"))
    return _picture("one iteration as measured", height, parts)


def last_iterations(phase, rates, seconds):
    """An SVG of a run's last iterations as they went, on a scale of `seconds`: what the first
    rank does, and how much of its rate each link of its host carries."""
    activity = phase["activity"]
    links = [(f"eth{link}", rate)
             for link, rate in enumerate(rates) if f"eth{link}" in activity["links"]]
    height = ROW * (1 + len(links)) + 24
    parts = [*_axis(seconds * 1e3, height), *_names(["compute", *(name for name, _ in links)])]
    for began, ready, over, ended in activity["iterations"]:
        for start, end, colour, words in ((began, ready, COMPUTE, "forward and backward"),
                                          (ready, over, WAITING, "waiting for gradients"),
                                          (over, ended, LIGHTER, "update")):
            parts.append(_box(0, start / seconds, (end - start) / seconds, colour,
                              f"{words}, {1e3 * (end - start):.0f} ms"))
        parts += [_upright(at / seconds, height, "dashed") for at in (began, ended)]
    for number, (name, rate) in enumerate(links, 1):
        parts.append(_load(number, name, rate, activity, seconds))
    return _picture("the last iterations", height, parts)


def _load(row, name, rate, activity, seconds):
    """How much of its rate a link carries over time."""
    whole, samples = activity["iterations"][-1][-1], activity["links"][name]
    bits = hosts.rate_bits(rate) or 1e12
    points = [(0.0, 0.0)]
    for (then, before), (now, after) in zip(samples, samples[1:]):
        share = min(1.0, 8 * (after - before) / max(now - then, 1e-6) / bits)
        points += [(min(max(then, 0.0), whole), share), (min(max(now, 0.0), whole), share)]
    outline = " ".join(f"{1000 * at / seconds:.1f},{100 - 100 * share:.1f}"
                       for at, share in [*points, (whole, 0.0)])
    sent = samples[-1][1] - samples[0][1] if samples else 0
    return _stretched(row * ROW + 18, HIGH, f'<polygon points="{outline}" fill="{LINK}"><title>'
                      f"{html.escape(name)} at {html.escape(str(rate))}: {sent / 1e6:.1f} MB, "
                      f"{100 * 8 * sent / whole / bits:.0f} % of what it could carry</title>"
                      "</polygon>")


def plan(facts, observed):
    """An SVG of one period of a plan as predicted: backward and forward, when gradients become
    ready, what each lane carries. The planner's time counts from the start of backward, the
    observer's from the start of forward."""
    period = max(1, facts["period"]) * facts["predicted_ms"]
    end = max([period] + [transfer["finish_ms"] for transfer in facts["transfers"]])
    lanes = 1 + max((transfer["link"] for transfer in facts["transfers"]), default=0)
    rows = ["compute", "gradients ready", *(f"lane {lane}" for lane in range(lanes))]
    height = ROW * len(rows) + 24
    parts = [*_axis(end, height), *_names(rows)]
    compute = _median((observed.get("iterations") or {}).get("compute_ms")) or 0.0
    ready = [_median(bucket.get("ready_ms")) for bucket in observed.get("buckets", [])]
    ready = [value for value in ready if value is not None]
    forward = min([compute / 3, *ready[:1]])
    starts = facts["cycles_ms"]
    for number, start in enumerate(starts):
        following = starts[number + 1] if number + 1 < len(starts) else period
        parts.append(_box(0, start / end, min(compute - forward, following - start) / end, COMPUTE,
                          "backward"))
        parts.append(_box(0, max(start, following - forward) / end,
                          min(forward, following - start) / end, LIGHTER,
                          "forward of the next iteration"))
        for index, value in enumerate(ready):
            if start + value - forward <= end:
                parts.append(_box(1, (start + value - forward) / end, 0.004, _bucket(index),
                                  f"bucket {index} ready, {value - forward:.0f} ms after the "
                                  "start of backward"))
    for transfer in facts["transfers"]:
        parts.append(_box(transfer["link"] + 2, transfer["start_ms"] / end,
                          (transfer["finish_ms"] - transfer["start_ms"]) / end,
                          _bucket(transfer["bucket"]),
                          f"bucket {transfer['bucket']}: {transfer['start_ms']:.1f} to "
                          f"{transfer['finish_ms']:.1f} ms"))
    for number in range(max(1, facts["period"]) + 1):
        parts.append(_upright(number * facts["predicted_ms"] / end, height, "dashed"))
    return _picture("one period of the plan", height, parts)


def _cards(rows):
    """What matters most of the comparison, for the top of the page."""
    runs, figures = rows[0][1:], {row[0].strip(): row[1:] for row in rows[1:]}

    def of(name, run):
        return figures.get(name, ["-"] * len(runs))[run]

    def others(name):
        return ", ".join(f"{run} {figure}" for run, figure in zip(runs[1:], figures[name][1:]))

    cards = [(f"Speed-up, {name}", f"{of('speed-up', run)}x",
              f"{of('second half, median ms', run)} ms an iteration, "
              f"bound {of('lower bound, ms', run)} ms")
             for run, name in enumerate(runs) if run > 0]
    for name, figure in figures.items():
        link = re.fullmatch(r"sent by host 0 on (\w+), MB", name)
        if link or name == "test accuracy, %":
            what = f"Sent over {link[1]}" if link else "Test accuracy"
            cards.append((f"{what}, {runs[0]}", f"{figure[0]} {'MB' if link else '%'}",
                          others(name)))
    return pages.cards(cards)


def page(phases, rows, rates, limits, about):
    """The whole page; `rows` is the comparison as a table, the first row its head; `limits` the
    lower bounds in ms. `about`: sentences that stand above the table, the first one the verdict."""
    body = ["<h1>deft demo</h1>",
            f'<p class="verdict"><strong>{html.escape(about[0])}</strong></p>',
            _cards(rows), *(f"<p>{html.escape(sentence)}</p>" for sentence in about[1:]),
            '<div class="scroll"><table>']
    for number, row in enumerate(rows):
        cell = "th" if number == 0 else "td"
        body.append("<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row) +
                    "</tr>")
    body += ["</table></div>", "<h2>One iteration of each run</h2>",
             "<p>Medians as deft's hooks measured them, and for how long each link carries an "
             "iteration's bytes at its full rate. Upright line: the iteration (second half of "
             f"the run); vermilion: the {html.escape(report.BOUND)}. Under a plan that delays, "
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
                 "all of it). Blue: forward and backward; orange: waiting for gradients; "
                 "light blue: the update.</p>"]
    longest = max((phase["activity"]["iterations"][-1][-1] for phase in shown.values()), default=0)
    for name, phase in shown.items():
        body += [f"<h3>{html.escape(_heading(name))}</h3>",
                 last_iterations(phase, rates, longest)]
    body += ["<h2>Every iteration</h2>",
             "<p>How long each iteration of a run took, from its first to its last.</p>",
             iterations(phases)]
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
