# SPDX-License-Identifier: Apache-2.0
"""A benchmark that fails is told from one that misses a bar, by the script itself and by
perf/run.sh. Runs no benchmark."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

from perf.e2e import run as e2e
from perf.links import __main__ as links

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
MET, MISSED, FAILED = 0, 1, 4


def code_of(module, **stand_ins):
    """What main() returns; its output goes nowhere."""
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, before)
        stack.enter_context(unittest.mock.patch.object(module.hosts, "choose",
                                                       lambda _kind: ("root", "")))
        for name, value in stand_ins.items():
            stack.enter_context(unittest.mock.patch.object(module, name, value))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        return module.main()


def refuse(error):
    def measure(*_):
        raise error
    return measure


class Scripts(unittest.TestCase):
    def test_e2e(self):
        options = types.SimpleNamespace(build="", jobs=["ddp"], cases=[["1gbit"]], before=None,
                                        json=None, nccl=None)
        for bars, code in (([{"met": True}], MET), ([{"met": False}], MISSED)):
            result = {"case": "1gbit", "job": "ddp", "bars": bars}
            self.assertEqual(code_of(e2e, parse=lambda _, chosen=options: chosen,
                                     measure=lambda *_, found=result: found, show=lambda _: None,
                                     ranks=types.SimpleNamespace(Parts=lambda *_: None,
                                                                 RunFailed=OSError)), code)
        dead = refuse(e2e.ranks.RunFailed("rank 1 ended with code -11"))
        with unittest.mock.patch.object(e2e.ranks, "Parts", lambda *_: None):
            self.assertEqual(code_of(e2e, parse=lambda _: options, measure=dead), FAILED)

    def test_links(self):
        options = types.SimpleNamespace(cases=["unequal"], json=None)
        for bars, code in (([{"met": True}], MET), ([{"met": False}], MISSED)):
            self.assertEqual(code_of(links, parse=lambda _: options,
                                     run_case=lambda *_, found=bars: {"bars": found},
                                     show=lambda *_: None), code)
        self.assertEqual(code_of(links, parse=lambda _: options,
                                 run_case=refuse(links.tools.RunFailed("netperf died"))), FAILED)

    def test_an_unexpected_exception_is_one_line(self):
        for body, code, mention in (("return {}['a\\nb']", FAILED, "bench: failed: KeyError: "),
                                    ("return 1", MISSED, ""), ("sys.exit(3)", 3, ""),
                                    ("raise KeyboardInterrupt", 130, "")):
            with self.subTest(body=body):
                done = subprocess.run([sys.executable, "-c",
                                       "import sys\nfrom perf.common import exits\n"
                                       f"def main():\n    {body}\nexits.run('bench', main)"],
                                      capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual((done.returncode, done.stderr.count("\n")),
                                 (code, 1 if mention else 0), done.stderr)
                self.assertIn(mention, done.stderr)

    def test_every_script_has_the_handler(self):
        for name in ("e2e/run.py", "faults/__main__.py", "links/__main__.py", "policies/run.py",
                     "accuracy/run.py", "accuracy/price.py", "accuracy/swings.py"):
            with open(os.path.join(ROOT, "perf", name), encoding="utf-8") as file:
                self.assertTrue('if __name__ == "__main__":\n    exits.run("' in file.read(), name)


class Bench(unittest.TestCase):
    """perf/run.sh with stand-ins for all benchmarks."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft bench ", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        shutil.copy(os.path.join(ROOT, "perf", "run.sh"), os.path.dirname(self.put("perf/none")))
        for name in ("perf/preload/startup", "perf/links/__main__.py", "perf/e2e/run.py"):
            self.put(name,
                     "import os, sys\n"
                     "name = os.path.basename(os.path.dirname(os.path.abspath(__file__)))\n"
                           "sys.exit(int(os.environ.get('CODE_' + name, '0')))\n")
        for name in ("bin/ninja", "build/perf/netperf/netperf",
                     "build/packaging/libnccl-net-deft.so"):
            self.put(name, "#!/bin/sh\n")
        self.put("build/perf/headlines/headlines", "#!/bin/sh\nexit ${CODE_headlines:-0}\n")
        self.put("build/perf/preload/hook_cost", '#!/bin/sh\necho "$HOOK"\n')

    def put(self, name, text=""):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def bench(self, **environment):
        done = subprocess.run(["/bin/bash", os.path.join(self.root, "perf", "run.sh"),
                               os.path.join(self.root, "build")],
                              capture_output=True, text=True, check=False, timeout=60,
                              env={"PATH": os.path.join(self.root, "bin") + ":/usr/bin:/bin",
                                   "HOOK": '{"no_preload": [{"median": 1}], "added": {}}',
                                   **environment})
        return done.returncode, [text for text in done.stderr.splitlines()
                                 if text.startswith("failed:")]

    def test_a_missed_bar_is_no_failure(self):
        self.assertEqual(self.bench(), (0, []))
        self.assertEqual(self.bench(CODE_links="1", CODE_e2e="1"), (0, []))

    def test_a_run_that_failed_is_one(self):
        self.assertEqual(self.bench(CODE_links="4", CODE_e2e="143"), (1, ["failed: links e2e"]))

    def test_of_benchmarks_without_that_code_one_is_a_failure(self):
        self.assertEqual(self.bench(CODE_preload="1", CODE_headlines="1"),
                         (1, ["failed: headlines startup"]))
        self.assertEqual(self.bench(HOOK="no JSON"), (1, ["failed: hook"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
