#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone: who includes one needs to know of no other.

A header that a source of this build includes before anything else is proven by the build; the
others are compiled here.

usage: headers_test.py ROOT BUILD softdev|noverbs|plain[,noucx] COMPILER...   (with what it needs
for vendors' headers; noverbs: those of softdev/verbs cannot be compiled, for want of rdma-core's;
noucx: nor those of plugin/ucx/module)
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT, BUILD, ROOMS_WANTED, COMPILER = *map(pathlib.Path, sys.argv[1:3]), sys.argv[3], sys.argv[4:]
ROOMS = ["include", "base", "topology", "planner", "plugin", "shim", "tools"]
if not ROOMS_WANTED.startswith("plain"):
    ROOMS.append("softdev")


def proven():
    """The headers that a compiled source includes in its first preprocessor line."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    sources = {pathlib.Path(one["directory"], one["file"]).resolve() for one in commands}
    first = (re.search(r"^\s*#.*", source.read_text(), re.M) for source in sources
             if source.suffix == ".cpp" and source.is_file())
    names = (re.fullmatch(r'#include "(.*)"', line[0]) for line in first if line)
    return {ROOT / name[1] for name in names if name}


def complaint(path):
    """The compiler's first lines about a source that includes this header alone; empty: none."""
    name = path.relative_to(ROOT)
    command = [*COMPILER, "-fsyntax-only", "-x", "c++", "-I", ROOT, "-I", ROOT / "include", "-"]
    done = subprocess.run(command, input=f'#include "{name}"\n', capture_output=True, text=True,
                          timeout=300)
    return "" if done.returncode == 0 else "\n".join([f"{name}:", *done.stderr.splitlines()[:5]])


class Headers(unittest.TestCase):
    def test_compile_alone(self):
        headers = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.h"))
                   if ("noverbs" not in ROOMS_WANTED or path.parent.name != "verbs")
                   and ("noucx" not in ROOMS_WANTED or path.parent.name != "module")]
        self.assertGreater(len(headers), 100)
        headers = sorted(set(headers) - proven())
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            wrong = [text for text in pool.map(complaint, headers) if text]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
