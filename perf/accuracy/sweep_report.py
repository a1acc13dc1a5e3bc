# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of sweep.py: the loss at equal time and at equal iterations, next to
plain's."""

import html
import math
import statistics

from ..common import pages
from .price import WARM_UP

LEAST = 3       # seeds of a verdict
RUINED = 20.0   # counts as the loss of a training that was given up
COLOURS = {"plain": "#777777", "exact": "#4477aa", "deft": "#228833",
           "deft, delay cap 1": "#117733", "deft, merge cap 2": "#44aa99",
           "DeFT's policy": "#cc3311", "COVAP's policy": "#aa3377",
           "US-Byte's policy": "#88ccee", "ByteScheduler's policy": "#332288",
           "DeAR's policy": "#999933"}
CELL = ("model", "optimizer", "batch", "rate")
WIDTH, HEIGHT = 440, 220


def taken(answers, measured):
    """The first plan that the job's steps bear; what nobody has measured is not priced."""
    for one in answers:
        if one["bound"] is None or measured is None or measured < 0 or measured <= one["bound"]:
            return one
    return answers[-1]


TRAINING, TEST = 1, 2   # losses in a measurement


def loss_at(record, iterations, which=TEST):
    """After so many, between the two nearest measurements."""
    points = [(point[0], point[which] if math.isfinite(point[which]) else RUINED)
              for point in record["points"]]
    if record["ruined_at"] is not None:
        points = [point for point in points if point[0] < record["ruined_at"]]
        points.append((record["ruined_at"], RUINED))
    before = None
    for at, loss in points:
        if at >= iterations:
            if before is None:
                return min(loss, RUINED)
            share = (iterations - before[0]) / (at - before[0])
            return min(before[1] + share * (loss - before[1]), RUINED)
        before = at, loss
    return min(points[-1][1], RUINED)


def iterations_in(time, record, speed, always=False):
    """How many fit into the time of so many of plain, where one under the plan takes `speed` of
    plain's. `always`: plain's numbers, at another pace from the warm-up on."""
    spans = [[WARM_UP, None]] if always else record["in_force"]
    at, left = 0, float(time)
    for begin, end in spans:
        if left <= begin - at:
            return at + left
        left -= begin - at
        length = math.inf if end is None else end - begin
        if left <= length * speed:
            return begin + left / speed
        left -= length * speed
        at = begin + length
    return at + left


class Results:
    def __init__(self, lines):
        self.plans = {(line["model"], line["optimizer"], line["mode"], line["coverage"]):
                      line["tries"] for line in lines if line["what"] == "plan"}
        self.trainings, self.cells = {}, {}
        for line in lines:
            if line["what"] == "training":
                cell = tuple(line[name] for name in CELL)
                self.trainings[cell, line["seed"], line["delivery"], line["guarded"]] = line
                self.cells.setdefault(cell, set()).add(line["seed"])
        self.modes = list(dict.fromkeys(mode for _, _, mode, _ in self.plans))
        self.coverages = sorted({coverage for *_, coverage in self.plans})

    def record(self, cell, seed, mode, coverage):
        """(the record, time of an iteration under the plan over plain's, plain's numbers?, the plan
        that was taken); null: not trained yet."""
        plain = self.trainings.get((cell, seed, "plain", False))
        tries = self.plans.get((cell[0], cell[1], mode, coverage))
        if plain is None or tries is None:
            return None
        chosen = taken(tries, plain["rate_curvature"])
        speed = chosen["iteration_s"] / chosen["baseline_s"]
        if chosen["delivery"] == "plain":
            return plain, speed, True, chosen
        for guarded in (True, False):
            found = self.trainings.get((cell, seed, chosen["delivery"], guarded))
            if found is not None and guarded != mode.endswith("policy"):
                return found, speed, False, chosen
        return None

    def compare(self, cell, mode, coverage, iterations, which=TEST):
        """Of each seed: (plain's loss, at equal time, at equal iterations, the record, the
        plan)."""
        found = []
        for seed in sorted(self.cells[cell]):
            ours = self.record(cell, seed, mode, coverage)
            if ours is None:
                continue
            record, speed, same, chosen = ours
            plain = self.trainings[cell, seed, "plain", False]
            count = iterations_in(iterations, record, speed, same)
            found.append((loss_at(plain, iterations, which), loss_at(record, count, which),
                          loss_at(record, iterations, which), record, chosen))
        return found


def verdict(found, which=1):
    """(mean difference to plain, standard error or null)"""
    differences = [one[which] - one[0] for one in found]
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return mean, None
    return mean, statistics.stdev(differences) / math.sqrt(len(differences))


def word(found, which=1):
    mean, error = verdict(found, which)
    if len(found) < LEAST:
        return "few seeds"
    return "behind" if mean > 2 * error else "ahead" if mean < -2 * error else "level"


def _cell_text(found):
    mean, error = verdict(found)
    equal, _ = verdict(found, 2)
    text = f"{mean:+.3f}" + (f" ± {error:.3f}" if error is not None else "") + f" ({equal:+.3f})"
    if word(found) == "behind":
        text = f"**{text}**"
    notes = []
    if found[0][4]["max_delay"] or found[0][4]["max_merge"] > 1:
        ended = sum(bool(one[3]["ended"]) for one in found)
        notes = [f"guard {ended} of {len(found)}"] if ended else []
    return text + (f" [{'; '.join(notes)}]" if notes else "")


def summary(results, iterations, which):
    lines = ["| mode | coverage | cells | ahead | level | behind | few seeds | worst | "
             "late or merged | guard ended |", "|---|---|---|---|---|---|---|---|---|---|"]
    for mode in results.modes:
        for coverage in results.coverages:
            cells = {cell: results.compare(cell, mode, coverage, iterations[cell[0]], which)
                     for cell in results.cells}
            cells = {cell: found for cell, found in cells.items() if found}
            if not cells:
                continue
            words = [word(found) for found in cells.values()]
            every = [one for found in cells.values() for one in found]
            late = sum(one[4]["delivery"] != "plain" for one in every)
            ended = sum(bool(one[3]["ended"]) for one in every)
            worst = max(verdict(found)[0] for found in cells.values())
            counts = " | ".join(str(words.count(one)) for one in ("ahead", "level", "behind",
                                                                  "few seeds"))
            lines.append(f"| {mode} | {coverage:g} | {len(cells)} | {counts} | {worst:+.3f} | "
                         f"{late} of {len(every)} | {ended} |")
    return lines


def tables(results, iterations):
    text = []
    for coverage in results.coverages:
        for model in dict.fromkeys(cell[0] for cell in results.cells):
            text += [f"## {model}, coverage {coverage:g}", "",
                     "| optimizer, batch, rate | rate x curvature | plain | " +
                     " | ".join(results.modes) + " |", "|---" * (3 + len(results.modes)) + "|"]
            for cell in sorted(one for one in results.cells if one[0] == model):
                plain = [results.trainings[cell, seed, "plain", False]
                         for seed in results.cells[cell]
                         if (cell, seed, "plain", False) in results.trainings]
                if not plain:
                    continue
                measured = [one["rate_curvature"] for one in plain
                            if one["rate_curvature"] is not None]
                row = [f"{cell[1]}, {cell[2]}, {cell[3]:g}",
                       f"{statistics.median(measured):.2g}" if measured else "-",
                       f"{statistics.mean(loss_at(one, iterations[model]) for one in plain):.3f}"]
                for mode in results.modes:
                    found = results.compare(cell, mode, coverage, iterations[model])
                    row.append(_cell_text(found) if found else "-")
                text.append("| " + " | ".join(row) + " |")
            text.append("")
    return text


def _curve(results, cell, mode, coverage, iterations):
    """[(time in plain's iterations, mean loss)] up to equal time."""
    curve = []
    for step in range(4, 25):
        time, losses = iterations * step / 24, []
        for seed in results.cells[cell]:
            if mode == "plain":
                record = results.trainings.get((cell, seed, "plain", False))
                losses += [loss_at(record, time)] if record else []
            else:
                ours = results.record(cell, seed, mode, coverage)
                if ours is not None:
                    record, speed, same, _ = ours
                    losses.append(loss_at(record, iterations_in(time, record, speed, same)))
        if losses:
            curve.append((time, statistics.mean(losses)))
    return curve


def picture(results, cell, coverage, iterations):
    """An SVG: test loss over time."""
    curves = {mode: _curve(results, cell, mode, coverage, iterations)
              for mode in ("plain", *results.modes)}
    curves = {mode: curve for mode, curve in curves.items() if curve}
    first = curves["plain"][0][1]
    least = min(loss for curve in curves.values() for _, loss in curve)
    most = max(first, least + 0.1)
    left, bottom = 44, 26
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="test loss over time">']

    def height_of(loss):
        share = (min(loss, most) - least) / (most - least)
        return HEIGHT - bottom - (HEIGHT - bottom - 10) * share
    for tick in range(5):
        level = least + (most - least) * tick / 4
        y = height_of(level)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>'
                     f'<text x="{left - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end" '
                     f'fill="#222222">{level:.2f}</text>')
    for mode, curve in curves.items():
        points = " ".join(
            f"{left + (WIDTH - left) * time / iterations:.1f},{height_of(loss):.1f}"
            for time, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS.get(mode)}" '
                     f'stroke-width="1.5"><title>{html.escape(mode)}</title></polyline>')
    parts.append(f'<text x="{left}" y="{HEIGHT - 8}" font-size="11" fill="#222222">0</text>'
                 f'<text x="{WIDTH}" y="{HEIGHT - 8}" font-size="11" text-anchor="end" '
                 f'fill="#222222">time of {iterations} plain iterations</text></svg>')
    return "\n".join(parts)


def write(out, lines, about):
    """`about`: iterations of each model at the pace of plain, and what else the page says."""
    results, iterations = Results(lines), about["iterations"]
    trainings = [line for line in lines if line["what"] == "training"]
    seeds = {seed for some in results.cells.values() for seed in some}
    head = ["# Loss at equal time, by modes and policies", "",
            f"`{about['command']}`: {len(trainings)} trainings of two ranks, each in one "
            f"process, in {len(results.cells)} cells (model, optimizer, samples a rank, learning "
            f"rate), up to {len(seeds)} seeds. Plans come into force at iteration {WARM_UP}.", "",
            "The figure of merit is the test loss after the time that plain takes for "
            + ", ".join(f"{count} iterations ({model})" for model, count in iterations.items()) +
            ". How long an iteration takes under a plan is simulated, for a network of 100 MB "
            "whose transfers take as long as its compute (coverage 1), or 1.6 times as long. A "
            "figure is the difference to plain, mean ± standard error over seeds; in brackets, "
            "after equally many iterations. Bold: more than two standard errors behind plain, "
            "of three seeds or more.", ""]
    text = [*head, *summary(results, iterations, TEST), "",
            "The same of the training loss (the mean of a twelfth of plain's iterations), which is "
            "not held up where the test loss has come to rest:", "",
            *summary(results, iterations, TRAINING), "", *tables(results, iterations)]
    with open(out + ".md", "w", encoding="utf-8") as file:
        file.write(pages.wrapped("\n".join(text)))
    body = ["<h1>Loss at equal time</h1>", f"<p>{html.escape(head[2])}</p>",
            "<p>Test loss over time, mean over seeds. " + " ".join(
                f'<span style="color:{COLOURS.get(mode)}">{html.escape(mode)}</span>'
                for mode in ("plain", *results.modes)) + "</p>"]
    for cell in sorted(results.cells):
        if not any((cell, seed, "plain", False) in results.trainings
                   for seed in results.cells[cell]):
            continue
        body.append(f"<h2>{html.escape(', '.join(map(str, cell)))}</h2>")
        for coverage in results.coverages:
            body += [f"<h3>coverage {coverage:g}</h3>",
                     picture(results, cell, coverage, iterations[cell[0]])]
    with open(out + ".html", "w", encoding="utf-8") as file:
        file.write(pages.html_page("Loss at equal time", body))
