# SPDX-License-Identifier: Apache-2.0
"""Tables and curves of perf/accuracy: what each policy reached, beside plain."""

import functools
import json
import math
import os
import statistics

from ..common import pages

COLOURS = ["#222222", "#88ccee", "#4477aa", "#66ccee", "#228833", "#cc3311", "#ee7733", "#aa3377",
           "#bbbbbb", "#ddaa33"]
# Plans that mode deft may choose with its default caps and DEFT_PREDICT=auto, by optimizer.
DEFAULTS = {"adam": ("delay1+predict", "merge2"), "adamw": ("delay1+predict", "merge2"),
            "momentum": ("delay1+predict",), "nesterov": ("merge2",)}


def may_choose(policy, optimizer):
    return policy in DEFAULTS.get(optimizer, ())


DATA = {"tiny-mlp": "scikit-learn's digits", "tiny-transformer": "scikit-learn's digits",
        "tumor-mlp": "scikit-learn's breast cancer data"}


class NoTraining(ValueError):
    """A file of trainings has something else in it; one line that says where."""


def _training(text):
    one = json.loads(text)
    if not isinstance(one, dict):
        raise ValueError("no object")
    return one


def _torn(text):
    """How many characters at the end are a line that was being written when its program ended."""
    last = text[text.rfind("\n") + 1:]
    try:
        return 0 if not last.strip() or _training(last) else len(last)
    except ValueError:
        return len(last)


def read(path):
    """The trainings in a file, none if it is not there. A half-written last line is left out."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    lines = []
    for number, line in enumerate(text[:len(text) - _torn(text)].split("\n"), 1):
        try:
            lines += [_training(line)] if line.strip() else []
        except ValueError as error:
            raise NoTraining(f"{path}: line {number} is no training ({error}); take it out, "
                             "or name another file") from error
    return lines


def cut_torn_line(path):
    """Makes the file one that lines can be put behind."""
    if not os.path.exists(path):
        return
    with open(path, "r+", encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
        torn = _torn(text)
        if torn:
            file.seek(0)
            file.truncate(len(text[:-torn].encode()))
        elif text and not text.endswith("\n"):
            file.write("\n")


def percent(runs):
    return [100 * one["accuracy"] for one in runs]


def below(runs, plain):
    """Is the mean more than two standard errors of the difference under plain's?"""
    if len(runs) < 2 or len(plain) < 2:
        return False
    error = math.sqrt(statistics.variance(percent(runs)) / len(runs) +
                      statistics.variance(percent(plain)) / len(plain))
    return statistics.mean(percent(plain)) - statistics.mean(percent(runs)) > 2 * error


def lost(runs, plain):
    """How many trainings ended more than ten points under plain's mean: failures, which a large
    spread hides from below()."""
    return (sum(value < statistics.mean(percent(plain)) - 10 for value in percent(runs)) if plain
            else 0)


def cell(runs, plain):
    """One cell: test accuracy, spread, training loss, and what else has to be known."""
    if not runs:
        return "-"
    values = percent(runs)
    notes = ["**below**"] if runs is not plain and below(runs, plain) else []
    gone = lost(runs, plain)
    notes += [f"**{gone} of {len(runs)} lost**"] if gone else []
    acted = sum(bool(one.get("plan", {}).get("guard_decisions")) for one in runs)
    notes += [f"guard acted in {acted}"] if acted else []
    late = sum(not one.get("pinned", True) for one in runs)
    notes += [f"plan late in {late}"] if late else []
    notes += [] if all(one["replicas_equal"] for one in runs) else ["REPLICAS DIFFER"]
    notes += [f"{len(runs)} seeds"] if len(runs) != len(plain) else []
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    loss = statistics.mean(one["epoch_losses"][-1] for one in runs)
    return (f"{statistics.mean(values):.1f} ± {spread:.1f} ({loss:.3f})"
            + (f" [{'; '.join(notes)}]" if notes else ""))


def epochs_to(one, target):
    """Epochs until the test accuracy first reaches the target; None if it never does."""
    for number, accuracy in enumerate(one["epoch_accuracies"]):
        if accuracy >= target:
            return number + 1
    return None


def target_of(plain):
    """One point under what plain reaches in the mean."""
    return statistics.mean(one["accuracy"] for one in plain) - 0.01


def time_to_accuracy(runs, plain):
    """Epochs to the target, against plain's: the median over seeds, and how many never got
    there."""
    if not runs or not plain:
        return "-"
    target = target_of(plain)
    ours = [epochs_to(one, target) for one in runs]
    reached = [value for value in ours if value is not None]
    if not reached:
        return "never"
    missed = len(ours) - len(reached)
    return f"{statistics.mean(reached):.1f}" + (f" ({missed} of {len(ours)} never)" if missed
                                                else "")


def speeds(options):
    """{policy: {coverage rate: iteration time over that without deft}} from perf/policies, where
    it was measured."""
    path = os.path.join(os.path.dirname(options.out), "policies.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file).get("relative", {})
    except (OSError, ValueError):
        return {}


def table(title, options, rows, words):
    """Markdown: a row per policy, a column per optimizer; `rows` (policy, optimizer) -> text."""
    text = [title, "", "| policy | " + " | ".join(options.optimizers) + " |",
            "|---|" + "---|" * len(options.optimizers)]
    for policy in words:
        text.append(f"| {policy} | " +
                    " | ".join(rows(policy, optimizer) for optimizer in options.optimizers) + " |")
    return text + [""]


def summary(options, lines, chosen, warm_up):
    """What the tables come to, in counts: lines of Markdown."""
    text = []
    for title, default in (("as it is set by default (delayed and predicted, but for Nesterov; "
                            "Adam, AdamW and Nesterov merged; plain SGD neither)", True),
                           ("with plans that it does not choose by itself (not predicted, "
                            "merged and late, momentum merged, plain SGD)", False)):
        cells, acted, under, gone, telling, fine = 0, 0, [], 0, 0, 0
        for model in options.models:
            for optimizer in options.optimizers:
                plain = chosen(model, optimizer, "plain")
                for policy in options.policies:
                    runs = chosen(model, optimizer, policy)
                    late = policy.startswith(("delay", "merge"))
                    if not runs or len(plain) < 2 or not late:
                        continue
                    if may_choose(policy, optimizer) != default:
                        continue
                    cells += 1
                    # Where the guard acted in some trainings, it has said nothing of the others.
                    silent = [one for one in runs if not one.get("plan", {}).get("guard_decisions")]
                    acted += len(silent) < len(runs)
                    gone += lost(silent, plain)
                    bad = bool(lost(silent, plain)) or below(silent, plain)
                    under += [f"{model} {optimizer} {policy}"] if bad else []
                    if can_tell(runs, plain, warm_up):
                        telling, fine = telling + 1, fine + (not bad)
        text.append(f"* mode deft {title}: {cells} cells, {cells - len(under)} within two standard "
                    f"errors of plain or fallen back. {telling} of them can tell, {fine} of these "
                    "within. In the others plain is within a point of its final accuracy before "
                    "the plan is in force: they only show that nothing breaks. "
                    f"The guard acted in {acted}. {gone} trainings were lost (ten points or more "
                    "under plain) without it."
                    + (f" Under plain or lost where the guard did not act: {', '.join(under)}."
                       if under else ""))
    equal = sum(one["replicas_equal"] for one in lines)
    late = [one for one in lines if one["policy"] not in ("plain", "exact")]
    return [f"* {len(lines)} trainings; replicas equal in {equal} of {len(lines)}.",
            *exactness(lines),
            *text,
            f"* delayed, merged and covap: the plan came into force at the iteration it was to in "
            f"{sum(one.get('pinned', True) for one in late)} of {len(late)}.",
            ""]


def exactness(lines):
    """Whether exact has plain's bits, apart by whether a plan carried gradients at all: lines of
    Markdown."""
    plain = {(one["model"], one["optimizer"], one["seed"]): one["checksum"] for one in lines
             if one["policy"] == "plain"}
    text = []
    for what, carried in (("a plan carried gradients", True),
                          ("no plan in force (calls forwarded)", False)):
        chosen = [one for one in lines if one["policy"] == "exact"
                  and bool(one.get("plan", {}).get("delivered")) == carried]
        same = sum(one["checksum"] == plain.get((one["model"], one["optimizer"], one["seed"]))
                   for one in chosen)
        text += ([f"* exact: {what}, the same bits as plain in {same} of {len(chosen)} trainings."]
                 if chosen else [])
    return text


def write(options, lines, facts):
    def chosen(model, optimizer, policy):
        wanted = (model, optimizer, policy)
        return [one for one in lines if (one["model"], one["optimizer"], one["policy"]) == wanted]
    text = ["# Accuracy of delivery policies", "",
            "`python3 perf/accuracy/run.py` trains with 2 ranks on the software device, by "
            "DistributedDataParallel with several buckets. The first "
            f"{facts['warm_up']} iterations are synchronous, and learning rates are tuned for "
            f"plain. There are {max(one['seed'] for one in lines)} seeds, fewer where a cell says "
            "so; `-` was not run. Raw data are next to this file.", "",
            "A cell has the test accuracy in %, mean ± standard deviation over seeds, and the "
            "training loss of the last epoch. **below** means more than two standard errors under "
            "plain, lost means ten points or more under plain's mean.", "",
            *summary(options, lines, chosen, facts["warm_up"])]
    relative = speeds(options)

    def reached(policy, optimizer, model):
        return cell(chosen(model, optimizer, policy), chosen(model, optimizer, "plain"))

    def epochs(policy, optimizer, model):
        return time_to_accuracy(chosen(model, optimizer, policy),
                                chosen(model, optimizer, "plain"))

    for model in options.models:
        rates = ", ".join(f"{name} {facts['models'][model][name]}" for name in options.optimizers)
        text += table(f"## {model}\n\n"
                      f"{DATA[model]}, {facts['epochs'][model]} epochs, "
                      f"batch {facts['batch'][model]} a rank; learning rates: {rates}.", options,
                      functools.partial(reached, model=model), options.policies)
        text += table("Epochs to within one point of plain's final accuracy (mean over the seeds "
                      "that got there):", options,
                      functools.partial(epochs, model=model), options.policies)
    if relative:
        text += times(options, chosen, relative, facts["warm_up"])
    with open(options.out + ".md", "w", encoding="utf-8") as file:
        file.write(pages.wrapped("\n".join(text)))
    curves(options, lines)


def under_plan(one, warm_up):
    """(epochs before the plan of a training came into force, epochs it was in force at most);
    None: no plan carried anything."""
    plan = one.get("plan", {})
    if not plan.get("delivered"):
        return None
    an_epoch = one["iterations"] / len(one["epoch_accuracies"])
    if plan.get("guard_decisions"):  # it ended before the training did
        return warm_up / an_epoch, plan["iterations"] / an_epoch
    # The last iteration is under way when the counters are read.
    return max(0, one["iterations"] - plan["iterations"] - 1) / an_epoch, math.inf


def time_to(one, target, speed, warm_up):
    """Time to the target in epochs of plain: only what the plan in force did has its speed.
    Infinite if it is never reached."""
    epochs = epochs_to(one, target)
    if epochs is None:
        return math.inf
    before, at_most = under_plan(one, warm_up) or (math.inf, 0)
    fast = min(max(0, epochs - before), at_most)
    return epochs - fast + fast * speed


def can_tell(runs, plain, warm_up):
    """Was plain, in the median over seeds, still on its way to the target when the plan came
    into force? Else, or where no plan came, the plan had little left to lose."""
    spans = [under_plan(one, warm_up) for one in runs]
    if not plain or not runs or None in spans:
        return False
    target = target_of(plain)
    return statistics.median(time_to(one, target, 1, warm_up)
                             for one in plain) > statistics.median(before for before, _ in spans)


def time_ratio(runs, plain, speed, warm_up):
    """Time to accuracy over plain's, both medians over seeds; None where plain is there before
    the plan, or no plan came."""
    if not can_tell(runs, plain, warm_up):
        return None
    target = target_of(plain)
    theirs = statistics.median(time_to(one, target, 1, warm_up) for one in plain)
    if math.isinf(theirs):
        return None
    return statistics.median(time_to(one, target, speed, warm_up) for one in runs) / theirs


def times(options, chosen, relative, warm_up):
    """Time to accuracy: epochs to the target, those under the plan at the iteration time
    perf/policies measured."""
    rates = sorted({rate for by_rate in relative.values() for rate in by_rate}, key=float)
    text = ["## Time to accuracy", "",
            "A figure is the time of the epochs to the target (above), over plain's. Epochs before "
            "the plan is in force count at the iteration time of plain without deft, those after "
            "at what perf/policies measured for the policy. Figures are medians over seeds, then "
            "over models and optimizers; a seed that never gets there counts as infinite. Below 1 "
            "is sooner; never: half of the cells or more.", "",
            "Cells where plain reaches the target before the plan is in force, or where no plan "
            "was, are left out. `cells` says how many are not, and in how many half of the seeds "
            "or more never get there.", "",
            "| policy | " + " | ".join(f"coverage rate {rate}" for rate in rates) + " | cells |",
            "|---|" + "---|" * (len(rates) + 1)]
    for policy in options.policies:
        speed = relative.get(policy.replace("merge2late", "merge2-delay1").replace("+predict", ""))
        if policy == "plain" or not speed:
            continue
        pairs = [(chosen(model, optimizer, policy), chosen(model, optimizer, "plain"))
                 for model in options.models
                 for optimizer in options.optimizers]
        pairs = [pair for pair in pairs if all(pair)]
        figures, count, never = [], 0, 0
        for rate in rates:
            ratios = [time_ratio(runs, plain, speed.get(rate, 1), warm_up) for runs, plain in pairs]
            ratios = [ratio for ratio in ratios if ratio is not None]
            count, never = len(ratios), sum(math.isinf(ratio) for ratio in ratios)
            middle = statistics.median(ratios) if ratios and rate in speed else None
            figures.append("-" if middle is None else "never" if math.isinf(middle)
                           else f"{middle:.2f}")
        text.append(f"| {policy} | " + " | ".join(figures) + f" | {count} of {len(pairs)}" +
                    (f", {never} never" if never else "") + " |")
    return text + [""]


def curves(options, lines):
    """SVG: training loss by epoch, first seed, a panel per model and optimizer."""
    panels = [(model, optimizer) for model in options.models for optimizer in options.optimizers]
    width, height, columns = 300, 200, len(options.optimizers)
    rows = math.ceil(len(panels) / columns)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * columns} '
             f'{height * rows + 40}" font-size="11" font-family="sans-serif">',
             '<rect width="100%" height="100%" fill="#ffffff"/>']
    for index, (model, optimizer) in enumerate(panels):
        left, top = width * (index % columns), height * (index // columns)
        parts.append(f'<text x="{left + 30}" y="{top + 14}">{model}, {optimizer}: '
                     'training loss by epoch</text>')
        parts.append(f'<path d="M{left + 30},{top + 20} V{top + height - 30} H{left + width - 20}" '
                     'fill="none" stroke="#999999"/>')
        for level in (0, 1, 2):
            y = top + 20 + (height - 50) * (1 - level / 2.4)
            parts.append(f'<text x="{left + 26}" y="{y + 4:.1f}" text-anchor="end" '
                         f'fill="#666666">{level}</text>')
        for number, policy in enumerate(options.policies):
            for one in lines:
                key = (one["model"], one["optimizer"], one["policy"], one["seed"])
                if key == (model, optimizer, policy, 1):
                    losses = [loss if math.isfinite(loss) else 2.4 for loss in one["epoch_losses"]]
                    points = " ".join(
                        f"{left + 30 + (width - 50) * step / max(1, len(losses) - 1):.1f},"
                                      f"{top + 20 + (height - 50) * (1 - min(loss, 2.4) / 2.4):.1f}"
                                      for step, loss in enumerate(losses))
                    parts.append(f'<polyline points="{points}" fill="none" '
                                 f'stroke="{COLOURS[number % len(COLOURS)]}"/>')
    for number, policy in enumerate(options.policies):
        parts.append(f'<text x="{30 + 150 * number}" y="{height * rows + 24}" font-size="13" '
                     f'fill="{COLOURS[number % len(COLOURS)]}">{policy}</text>')
    with open(options.out + ".svg", "w", encoding="utf-8") as file:
        file.write("\n".join(parts + ["</svg>\n"]))
