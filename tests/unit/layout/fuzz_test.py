#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every decoder that a header declares is run by a fuzz target, or stands in the list below with
the reason.

usage: fuzz_test.py SOURCE_ROOT
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])
ROOMS = ("base", "topology", "planner", "plugin", "shim", "tools")
# Readers of what this library or the kernel has made, or that another target runs.
LEFT_OUT = {
    "parse_observe_file": "planner_fuzz runs it, by the profile reader",
    "parse_json_text": "host_fuzz and planner_fuzz run it, by their readers",
    "parse_xml": "topology_fuzz runs it, by read_machine_text",
    "parse_toml": "planner_fuzz runs it, by the readers of links",
    "parse_json": "planner_fuzz runs it, by the readers of profiles",
}
# `decode` is many functions: the type that it fills tells them apart.
DECODE = re.compile(r"\b(?:bool|Decoded) (decode)\(([^;{]*)\)")
NAMED = re.compile(r"^\s*(?:static )?[\w:<>]+ ((?:decode_|parse_)\w+)\(", re.M)


def decoders(text):
    """(how a fuzz target names it, what it is called)"""
    for match in DECODE.finditer(text):
        filled = re.findall(r"(\w+)&(?: \w+)?$", match[2].strip())
        yield (filled[0] if filled else "decode"), f"decode({match[2]})"
    for match in NAMED.finditer(text):
        yield match[1], match[1]


class Fuzzed(unittest.TestCase):
    def test_every_decoder_has_a_target(self):
        targets = "\n".join(path.read_text() for path in (ROOT / "tests/fuzz").glob("*.cpp"))
        known, missing = set(), []
        for room in ROOMS:
            for header in sorted((ROOT / room).rglob("*.h")):
                for name, what in decoders(header.read_text()):
                    known.add(name)
                    if name not in LEFT_OUT and not re.search(rf"\b{name}\b", targets):
                        missing.append(f"{header.relative_to(ROOT)}: {what}")
        self.assertGreater(len(known), 30, "nothing was recognised")
        self.assertEqual(missing, [], "add them to a target of tests/fuzz")
        self.assertEqual(set(LEFT_OUT) - known, set(), "these are no longer there")

    def test_every_target_is_built(self):
        built = (ROOT / "tests/fuzz/meson.build").read_text()
        for path in (ROOT / "tests/fuzz").glob("*_fuzz.cpp"):
            self.assertIn(f"'{path.name}'", built)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
