#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures by which one sees whether the house is in order: circles between its rooms, the largest
class, long and branchy functions, and how its pages read.

usage: figures.py [--pages | --functions | --classes] [--root DIR]

Rooms are directories: each folder of shim/ is one, and so is each folder at the top. A room is in
a circle if its includes lead back to it over other rooms. Functions and classes are those of the
product: tests, perf and the software device are counted in the graph of rooms alone. A function
has complexity 1, and 1 more for each if, for, while, case, catch, &&, || and ?. Its lines are those
with code on them, its head included. Sentences are those of paragraphs and list items of every
tracked page but the changelog; a word is what stands between blanks."""

import argparse
import pathlib
import posixpath
import signal
import statistics

import files
import prose
import sources

SOURCES = (".cpp", ".h", ".c", ".cu", ".def", ".S")
NO_PRODUCT = ("tests", "perf", "softdev")
COMPLEX = 15


def room_of_shim(name):
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "shim" and len(parts) > 2 else None


def room_at_top(name):
    return name.split("/")[0]


def include_graph(read, names, room_of):
    """Which rooms each room includes files of."""
    known, graph = set(names), {}
    for source in read:
        room = room_of(source.path)
        if room is None:
            continue
        graph.setdefault(room, set())
        here = posixpath.dirname(source.path)
        for include in source.includes:
            for name in (posixpath.normpath(posixpath.join(here, include)), include,
                         "include/" + include):
                if name in known:
                    other = room_of(name)
                    if other not in (None, room):
                        graph[room].add(other)
                    break
    return graph


def in_circles(graph):
    """The rooms that can be reached from themselves."""
    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for other in graph.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen
    return sorted(room for room in graph if room in reached(room))


def percentile(values, share):
    """The smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else 0


class Figures:
    def __init__(self, root):
        names = files.tracked(root)
        self.read = [sources.read(name, files.read(root, name)) for name in names
                     if name.endswith(SOURCES)]
        self.shim = in_circles(include_graph(self.read, names, room_of_shim))
        self.top = in_circles(include_graph(self.read, names, room_at_top))
        product = [source for source in self.read if room_at_top(source.path) not in NO_PRODUCT]
        self.functions = [function for source in product for function in source.functions]
        self.classes = [found for source in product for found in source.classes]
        self.pages = {name: files.read(root, name) for name in names
                      if name.endswith(".md") and name != "CHANGELOG.md"}

    def rows(self):
        def listed(rooms):
            return f"{len(rooms)}" + (f" ({', '.join(rooms)})" if rooms else "")

        none = sources.Class("none", "", 0, 0)
        largest = max(self.classes, key=lambda found: found.members, default=none)
        longest = max(self.functions, key=lambda function: function.lines,
                      default=sources.Function("none", "", 0, 0, 0))
        branchy = [found for found in self.functions if found.complexity > COMPLEX]
        lengths = [length for text in self.pages.values() for length in
                   prose.sentence_lengths(text)] or [0]
        wide = [prose.may_be_wide(text.splitlines()[offence.line - 1])
                for text in self.pages.values() for offence in prose.wide_lines(text)]
        yield "rooms of shim/ in circles", listed(self.shim)
        yield "rooms at the top in circles", listed(self.top)
        yield ("largest class, data members",
               f"{largest.members} ({largest.name}, {largest.path}:{largest.line})")
        yield (f"functions above complexity {COMPLEX}",
               f"{100 * len(branchy) / max(1, len(self.functions)):.1f} % "
               f"({len(branchy)} of {len(self.functions)})")
        yield ("longest function, lines of code",
               f"{longest.lines} ({longest.name}, {longest.path}:{longest.line})")
        yield ("words in a sentence of the docs",
               f"median {statistics.median(lengths):.0f}, p90 {percentile(lengths, 90)}")
        yield (f"docs lines above {prose.COLUMNS} columns",
               f"{len(wide)}, of them {sum(wide)} rows of tables or long addresses")
        yield (f"table cells above {prose.CELL_WORDS} words",
               f"{sum(len(prose.long_cells(text)) for text in self.pages.values())}")

    def page_rows(self):
        for name, text in self.pages.items():
            lengths = prose.sentence_lengths(text)
            wide, cells = prose.wide_lines(text), prose.long_cells(text)
            if lengths or wide or cells:
                yield (name, statistics.median(lengths) if lengths else 0, percentile(lengths, 90),
                       max(lengths, default=0), len(wide), len(cells))


def table(head, rows):
    rows = [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, tuple("-" * width for width in widths), *rows]:
        print("| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=files.ROOT,
                        help="the tree to look at (default: this one)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pages", action="store_true", help="one row for each page, worst first")
    which.add_argument("--functions", action="store_true",
                       help=f"the functions above complexity {COMPLEX}, and the 20 longest")
    which.add_argument("--classes", action="store_true", help="the 20 largest classes")
    wanted = parser.parse_args()
    figures = Figures(wanted.root.resolve())
    if wanted.pages:
        table(("page", "median", "p90", "longest", "wide lines", "long cells"),
              sorted(figures.page_rows(), key=lambda row: (-row[2], row[0])))
    elif wanted.functions:
        longest = sorted(figures.functions, key=lambda found: -found.lines)[:20]
        shown = {id(found): found for found in [*longest, *figures.functions]
                 if found.complexity > COMPLEX or any(found is one for one in longest)}
        table(("function", "place", "complexity", "lines"),
              ((found.name, f"{found.path}:{found.line}", found.complexity, found.lines)
               for found in sorted(shown.values(), key=lambda found: -found.complexity)))
    elif wanted.classes:
        table(("class", "place", "data members"),
              ((found.name, f"{found.path}:{found.line}", found.members) for found in
               sorted(figures.classes, key=lambda found: -found.members)[:20]))
    else:
        table(("figure", "value"), figures.rows())


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `figures.py --pages | head` ends in silence
    main()
