#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Includes go one way: from a room to the rooms further down its line (docs/architecture.md). What
gives the fixed-width integers is included, because newer standard libraries no longer bring it
along.

usage: includes_test.py ROOT
"""
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1])
PLANNER = "planner planner/policies planner/simulator planner/solver planner/model"
# A room may include those in later places of a line that names it, not those in its own place.
LINES = (
    "shim/hooks > shim/runtime > shim/control > shim/guard shim/settings"
    " > shim/executor shim/learning shim/tuning"
    f" > shim/agreement shim/nccl shim/cuda {PLANNER} > topology > base > include",
    "plugin > plugin/tcp plugin/verbs plugin/ucx > plugin/core > topology > base > include",
    "plugin/ucx/module > include",
    f"tools > shim/settings topology/discovery {PLANNER} > topology > base > include",
    "topology/discovery > topology > base > include",
    "packaging > base > include",
    "softdev > softdev/nccl > softdev/cuda softdev/net > base > include",
)
# The planner is pure: it includes itself and these files of base/, nothing else below it.
PURE = PLANNER.replace(" ", " > ")
PURE_BASE = ("base/hash.h", "base/json.h", "base/json_writer.h")
# The guest stands outside of the lines.
ALONE = {"shim/preload": ("include/deft/deft.h", "base/guest.h", "shim/nccl/nccl_functions.def")}
# Made at the build, in the folder of a meson.build; and where from.
GENERATED = {"shim/kernels_packed.inc": "shim/executor/kernels_ptx.inc"}
PLACES = [[place.split() for place in line.split(" > ")] for line in (PURE, *LINES)]
ROOMS = {room for line in PLACES for place in line for room in place} | set(ALONE)


def room_of(path):
    """The innermost room that holds the file; None: none does."""
    return next((str(folder) for folder in path.parents if str(folder) in ROOMS), None)


def may_include(room, path):
    target = room_of(path)
    if target == room or str(path) in ALONE.get(room, ()):
        return True
    if room.startswith("planner") and str(path) in PURE_BASE:
        return True
    for line in PLACES[:1] if room.startswith("planner") else PLACES[1:]:
        places = [index for index, place in enumerate(line) if room in place]
        if places and any(target in place for place in line[places[0] + 1:]):
            return True
    return False


def wrong_includes(root):
    """What is wrong, one line each; and how many includes there are."""
    wrong, seen = [], 0
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        room = room_of(name)
        if room is None or path.suffix not in (".h", ".cpp", ".c", ".S", ".def", ".inc", ".cu"):
            continue
        text = path.read_text(encoding="utf-8")
        for what in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
            seen += 1
            target = pathlib.Path(GENERATED.get(what, what))
            if room_of(target) is None:
                target = "include" / target
            if not (root / target).is_file():
                wrong.append(f"{name}: {what} is in no room")
            elif not may_include(room, target):
                wrong.append(f"{name}: {room} may not include {what}")
    return wrong, seen


def without_integers(root):
    """Files that name std::uint8_t and its like, where neither they nor what they include of the
    project includes <cstdint>."""
    texts = {path.relative_to(root): path.read_text(encoding="utf-8")
             for path in root.rglob("*") if path.suffix in (".h", ".cpp")
             and room_of(path.relative_to(root)) is not None}

    def gives(path, seen):
        if path in seen or path not in texts:
            return False
        seen.add(path)
        own = re.findall(r'^#include [<"]([^">]+)', texts[path], re.M)
        return "cstdint" in own or any(gives(pathlib.Path(parent, one), seen)
                                       for one in own for parent in ("", "include"))

    return [str(path) for path, text in sorted(texts.items())
            if re.search(r"std::u?int(8|16|32|64)_t", text) and not gives(path, set())]


class Includes(unittest.TestCase):
    def test_go_one_way(self):
        wrong, seen = wrong_includes(ROOT)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertGreater(seen, 500)

    def test_give_the_integers(self):
        self.assertEqual(without_integers(ROOT), [])

    def test_a_file_without_the_integers_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            room = pathlib.Path(folder, "plugin", "core")
            room.mkdir(parents=True)
            use = "std::uint8_t byte();\n"
            (room / "gives.h").write_text("#include <cstdint>\n", encoding="utf-8")
            (room / "bare.h").write_text("#include <string>\n" + use, encoding="utf-8")
            (room / "good.h").write_text('#include "plugin/core/gives.h"\n' + use,
                                         encoding="utf-8")
            self.assertEqual(without_integers(pathlib.Path(folder)), ["plugin/core/bare.h"])

    def test_a_planted_one_that_does_not_is_found(self):
        planted = {
            "shim/nccl/a.h": "shim/hooks/b.h",
            "shim/guard/a.h": "shim/settings/b.h",
            "plugin/core/a.h": "plugin/tcp/b.h",
            "plugin/a.h": "shim/nccl/b.h",
            "topology/a.h": "topology/discovery/b.h",
            "planner/model/a.h": "base/b.h",
            "shim/preload/a.c": "base/b.h",
            "base/a.h": "tests/b.h",
        }
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for source, target in planted.items():
                for name, text in ((source, f'#include "{target}"\n'), (target, "")):
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_text(text, encoding="utf-8")
            found = [line.split(":")[0] for line in wrong_includes(root)[0]]
            self.assertEqual(sorted(found), sorted(planted))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
