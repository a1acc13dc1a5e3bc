#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every function of NCCL that a current PyTorch calls is one the shim knows, and forwards.

usage: functions_test.py NAMES TABLE LIBRARY GUEST [NCCL]
    NAMES: a list of functions; TABLE: nccl_functions.def; NCCL: the software device's, if any.
"""
import re
import subprocess
import sys
import unittest

NAMES, TABLE, LIBRARY, GUEST, *NCCL = sys.argv[1:]


def exported(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                            capture_output=True, timeout=60).stdout
    return {line.split()[-1] for line in listed.splitlines()}


def wanted():
    with open(NAMES, encoding="ascii") as file:
        return {line.strip() for line in file if not line.startswith("#")}


def table():
    """The functions of the table, and those of them that the shim asks and does not interpose."""
    with open(TABLE, encoding="utf-8") as file:
        entries = re.findall(r"^DEFT_NCCL_(FUNCTION|QUERY)\((\w+),", file.read(), re.M)
    queries = {"nccl" + name for kind, name in entries if kind == "QUERY"}
    return {"nccl" + name for _, name in entries}, queries


class Functions(unittest.TestCase):
    def test_the_table_has_all_of_them(self):
        self.assertGreater(len(wanted()), 50)
        self.assertEqual(wanted() - table()[0], set())

    def test_the_library_and_the_guest_show_the_table(self):
        known, queries = table()
        for library in (LIBRARY, GUEST):
            with self.subTest(library=library):
                shown = {name for name in exported(library)
                         if name.startswith("nccl")
                         and not name.startswith(("ncclNetPlugin", "ncclTunerPlugin"))}
                self.assertEqual(shown, known - queries)

    def test_the_stand_in_shows_all_of_them(self):
        if not NCCL:
            self.skipTest("the software device is not built")
        shown = exported(NCCL[0])
        self.assertEqual(wanted() - shown, set())
        self.assertEqual({"p" + name for name in wanted()} - shown, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
