#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone: who includes one needs to know of no other.

usage: headers_test.py ROOT softdev|noverbs|plain COMPILER...   (with what it needs for vendors'
headers; noverbs: those of softdev/verbs cannot be compiled, for want of rdma-core's)
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import unittest

ROOT, COMPILER = pathlib.Path(sys.argv[1]), sys.argv[3:]
ROOMS = ["include", "base", "topology", "planner", "plugin", "shim", "tools"]
if sys.argv[2] != "plain":
    ROOMS.append("softdev")


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
                   if sys.argv[2] != "noverbs" or path.parent.name != "verbs"]
        self.assertGreater(len(headers), 100)
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            wrong = [text for text in pool.map(complaint, headers) if text]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
