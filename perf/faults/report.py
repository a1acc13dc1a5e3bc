# SPDX-License-Identifier: Apache-2.0
"""The tables of perf/faults, as text and as Markdown, and its record: one run a line."""

import json

from ..common import records
from . import cases, ratios, verdict

HEADINGS = ("case", "links", "deft", "ms p50 / p99 / max", "Socket", "ms p50 / p99 / max")


def figures(results):
    values = verdict.stalls(results)
    return "-" if values is None else " / ".join(f"{value:.0f}" for value in values)


def rows(results):
    """[(cells, complaints)], a row for each case and place that has runs."""
    table = []
    for case in cases.CASES.values():
        for where in case.where:
            ours, others = ([result for result in results if result["case"] == case.name
                             and result["where"] == where
                             and result["transport"] == name and "failed" not in result]
                            for name in verdict.TRANSPORTS)
            if not ours and not others:
                continue
            cells = [case.name, where]
            for side in (ours, others):
                wrong = sum(result["wrong_bytes"] for result in side)
                cells += [(verdict.ends(case, side) if side else "-") +
                          (f", {wrong} B wrong" if wrong else ""), figures(side)]
            table.append((cells, verdict.complaints(case, ours, others) if ours else []))
    return table


def counts(results):
    """A sentence for each transport."""
    lines = []
    for name in verdict.TRANSPORTS:
        runs = [result for result in results if result["transport"] == name
                and "failed" not in result
                and result["case"] in cases.CASES and result["where"] != "ratios"]
        if runs:
            found = verdict.count(runs, cases.CASES)
            lines.append(f"{name}: {found['runs']} runs, {found['ended']} of them to end well: "
                         f"{found['killed']} killed, {found['hung']} hung; "
                         f"{found['wrong']} bytes wrong")
    return lines


def show(results, out):
    """Prints the table; returns [(case, where, complaint)]."""
    missed = []
    widths = (32, 5, 26, 20, 26, 20)

    def line(cells):
        return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths)).rstrip()

    print("\n" + line(HEADINGS), file=out)
    for cells, found in rows(results):
        missed += [(cells[0], cells[1], words) for words in found]
        print(line(cells) + (f"   NOT: {'; '.join(found)}" if found else ""), file=out)
    print("\n".join(counts(results)), file=out, flush=True)
    return missed


def markdown(path, out):
    """The tables of a record. Returns an exit code."""
    with open(path, encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    matrix = [result for result in runs if result["where"] != "ratios"]
    print("| " + " | ".join(HEADINGS) + " | |\n|" + "---|" * (len(HEADINGS) + 1), file=out)
    for cells, found in rows(matrix):
        print("| " + " | ".join(cells) + " | " + "; ".join(found) + " |", file=out)
    print("\n" + "\n".join(f"* {sentence}." for sentence in counts(matrix)), file=out)
    pairs = [result for result in runs if result["where"] == "ratios" and "failed" not in result]
    if pairs:
        print("\n| link 0 | times the rate of | ratio | |\n|---|---|---|---|", file=out)
        for name in ratios.BESIDE:
            values = sorted(pair["ratio"] for pair in pairs if pair["case"] == name)
            if values:
                middle = values[len(values) // 2]
                print(f"| {name} | {ratios.reference(name)} | {middle:.3f} ({values[0]:.3f} .. "
                      f"{values[-1]:.3f}, "
                      f"n={len(values)}) | "
                      f"{'' if middle >= ratios.BAR else 'below ' + str(ratios.BAR)} |", file=out)
    return 0


def write(path, document, results):
    """The record, "-" for standard output."""
    records.write(path, {**document, "runs": results}, one_a_line=("runs",))
