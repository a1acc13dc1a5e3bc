# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: iteration times of every run, and each plan as it was made: compute and lanes over one period."""

import html

COLOURS = {"plain": "#777777", "observe": "#4477aa", "exact": "#4477aa", "deft": "#228833", "covap": "#aa3377"}
WIDTH = 900


def _text(x, y, words, size=12, anchor="start", colour="#222222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
            f"{html.escape(words)}</text>")


def _box(x, y, width, height, colour, title):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{colour}" '
            f'stroke="#ffffff" stroke-width="0.5"><title>{html.escape(title)}</title></rect>')


def iterations(phases):
    """An SVG of the time of every iteration, one line per run."""
    height, left, bottom = 220, 50, 30
    raw = {name: phase["job"]["iteration_ms"]["raw"] for name, phase in phases.items()}
    longest = max(len(times) for times in raw.values())
    most = max(max(times) for times in raw.values() if times) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="time of every iteration">']
    for tick in range(5):
        y = height - bottom - (height - bottom - 10) * tick / 4
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(left - 6, y + 4, f"{most * tick / 4:.0f} ms", 11, "end"))
    for name, times in raw.items():
        points = " ".join(f"{left + (WIDTH - left) * index / max(1, longest - 1):.1f},"
                          f"{height - bottom - (height - bottom - 10) * value / most:.1f}"
                          for index, value in enumerate(times))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS.get(name, "#000000")}" '
                     f'stroke-width="1.5"><title>{html.escape(name)}</title></polyline>')
    for index, name in enumerate(raw):
        parts.append(_text(left + 120 * index, height - 6, name, 13, colour=COLOURS.get(name, "#000000")))
    return "\n".join(parts + ["</svg>"])


def plan(facts, buckets):
    """An SVG of one period of a plan: when gradients become ready, and what each lane carries."""
    period = max(1, facts["period"]) * facts["predicted_ms"]
    end = max([period] + [transfer["finish_ms"] for transfer in facts["transfers"]])
    lanes = 1 + max((transfer["link"] for transfer in facts["transfers"]), default=0)
    left, row = 90, 26
    height = row * (lanes + 1) + 30

    def x(milliseconds):
        return left + (WIDTH - left) * milliseconds / end

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="one period of the plan">',
             _text(0, row - 9, "gradients")]
    for start in facts["cycles_ms"]:
        for index, bucket in enumerate(buckets):
            ready = (bucket.get("ready_ms") or {}).get("median")
            if ready is not None:
                parts.append(_box(x(start + ready) - 1, 4, 3, row - 8, "#cc3311", f"bucket {index} ready, {ready:.1f} ms"))
    for lane in range(lanes):
        parts.append(_text(0, row * (lane + 2) - 9, f"lane {lane}"))
    for transfer in facts["transfers"]:
        y = row * (transfer["link"] + 1) + 2
        parts.append(_box(x(transfer["start_ms"]), y, x(transfer["finish_ms"]) - x(transfer["start_ms"]), row - 6,
                          f"hsl({(transfer['bucket'] * 47) % 360},55%,55%)",
                          f"bucket {transfer['bucket']}: {transfer['start_ms']:.1f} to {transfer['finish_ms']:.1f} ms"))
    for number in range(max(1, facts["period"]) + 1):
        at = x(number * facts["predicted_ms"])
        parts.append(f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{height - 24}" stroke="#999999" stroke-dasharray="3 3"/>')
        parts.append(_text(at, height - 8, f"{number * facts['predicted_ms']:.0f} ms", 11, "middle"))
    return "\n".join(parts + ["</svg>"])


def page(phases, rows):
    """The whole page; `rows` is the comparison as a table, the first row its head."""
    body = ["<h1>deft demo</h1>", "<table>"]
    for number, row in enumerate(rows):
        cell = "th" if number == 0 else "td"
        body.append("<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row) + "</tr>")
    body += ["</table>", "<h2>Every iteration</h2>", iterations(phases)]
    for name, phase in phases.items():
        for observed in phase.get("observed", [])[:1]:
            for facts in observed.get("plans", []):
                if facts["policy"]:
                    body += [f"<h2>Mode {html.escape(name)}: plan {html.escape(facts['policy'])}, one period as predicted</h2>",
                             f"<p>{facts['predicted_ms']:.1f} ms per iteration predicted, {facts['baseline_ms']:.1f} ms as the job "
                             f"was, bound {facts['bound_ms']:.1f} ms; {facts['updates_per_iteration']:g} updates per iteration; "
                             f"state: {html.escape(facts['state'])}</p>", plan(facts, observed.get("buckets", []))]
    return ("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>deft demo</title><style>\n"
            "body{font:15px/1.4 sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}\n"
            "table{border-collapse:collapse}td,th{border-bottom:1px solid #ddd;padding:.2em .8em;text-align:right}\n"
            "td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}\n</style></head><body>\n"
            + "\n".join(body) + "\n</body></html>\n")
