#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module deft.py, in a process with the library preloaded and in one without; its
counters are those of deft.h.

usage: python_module_test.py LIBRARY SOURCE_ROOT
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LIBRARY, ROOT = map(os.path.abspath, sys.argv[1:3])
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def header_counters():
    """The fields of deft_stats_t after `size`, in order."""
    text = pathlib.Path(ROOT, "include", "deft", "deft.h").read_text(encoding="utf-8")
    return re.findall(r"uint64_t (\w+);",
                      text[text.index("typedef struct"):text.index("} deft_stats_t;")])


def answers(expression, preload):
    """What the expression is in a process that has imported the module, through JSON."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.path.join(ROOT, "tools", "python"),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if preload:  # the loader splits LD_PRELOAD at blanks: by a path that has none
            environment["LD_PRELOAD"] = os.path.join(folder, os.path.basename(LIBRARY))
            os.symlink(LIBRARY, environment["LD_PRELOAD"])
        result = subprocess.run([PYTHON, "-c",
                                 f"import deft, json; print(json.dumps({expression}))"],
                                env=environment, capture_output=True, text=True, timeout=60,
                                check=False)
    return json.loads(result.stdout) if result.returncode == 0 else result.stderr.splitlines()[-1]


class PythonModule(unittest.TestCase):
    def test_without_deft_a_job_trains_as_it_is(self):
        for expression, expected in (("deft.available()", False), ("deft.version()", None),
                                     ("deft.should_step()", True), ("deft.flush()", 0),
                                     ("deft.stats()", None),
                                     ("deft.set_optimizer('nonsense')", None)):
            with self.subTest(expression):
                self.assertEqual(answers(expression, False), expected)

    def test_under_deft_before_the_first_communicator(self):
        self.assertIs(answers("deft.available()", True), True)
        self.assertRegex(answers("deft.version()", True), r"^\d+\.\d+")
        self.assertIs(answers("deft.should_step()", True), True)
        self.assertEqual(answers("deft.flush()", True), 0)
        self.assertEqual(answers("deft.stats()", True), {name: 0 for name in header_counters()})
        self.assertEqual(list(answers("deft.stats()", True)), header_counters())

    def test_the_optimizer_is_taken_or_refused_in_one_line(self):
        self.assertIsNone(answers("deft.set_optimizer('sgd:momentum=0.9,lr=0.1')", True))
        self.assertIsNone(answers("deft.set_optimizer('adamw:momentum=0.95')", True))
        self.assertEqual(answers("deft.set_optimizer('nonsense')", True),
                         "ValueError: deft.set_optimizer('nonsense'): not understood; "
                         "see DEFT_OPTIMIZER in docs/configuration.md")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
