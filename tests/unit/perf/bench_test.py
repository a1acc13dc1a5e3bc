# SPDX-License-Identifier: Apache-2.0
"""Which library ./dev bench measures: the one of the build it was given, really preloaded. The
benchmarks are stand-ins, but for a hook_cost whose preload cannot work, and a short run of it that
can.

usage: bench_test.py HOOK_COST LIBRARY [device]      device: hook_cost knows the software device
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
HOOK_COST, LIBRARY = map(os.path.abspath, sys.argv[1:3])
DEVICE = sys.argv[3:] == ["device"]
SAY = """import json, os, sys
path = sys.argv[sys.argv.index("--library") + 1] if "--library" in sys.argv else ""
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), path, os.path.realpath(path)]) + "\\n")
print('{"no_preload": [{"median": 1}], "added": {}}')
"""


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft bench ", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def put(self, name, text=""):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def test_the_library_of_the_build_is_measured(self):
        shutil.copy(os.path.join(ROOT, "perf", "run.sh"), os.path.dirname(self.put("perf/none")))
        for name in ("perf/preload/startup", "perf/links/__main__.py", "perf/e2e/run.py"):
            self.put(name, SAY)
        for name in ("bin/ninja", "build/perf/netperf/netperf", "build/perf/headlines/headlines"):
            self.put(name, "#!/bin/sh\n")
        self.put("build/perf/preload/hook_cost", f"#!{sys.executable}\n{SAY}")
        library = os.path.realpath(self.put("build/packaging/libnccl-net-deft.so"))
        log = os.path.join(self.root, "log")
        done = subprocess.run(["/bin/bash", os.path.join(self.root, "perf", "run.sh"),
                               os.path.join(self.root, "build")], capture_output=True,
                              text=True, check=False, timeout=60,
                              env={"PATH": os.path.join(self.root, "bin") + ":/usr/bin:/bin",
                                   "LOG": log})
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(log, encoding="utf-8") as file:
            given = {name: (path, real) for name, path, real in map(json.loads, file)}
        for name in ("startup", "hook_cost"):
            self.assertEqual(given[name][1], library, name)
            self.assertNotIn(" ", given[name][0], "the loader would cut it")

    def test_a_preload_that_does_not_work_is_no_figure(self):
        library = os.path.join(self.root, os.path.basename(LIBRARY))
        open(library, "wb").close()  # the loader says so, and goes on without it
        done = subprocess.run([HOOK_COST, "--library", library, "--rounds", "1"],
                              capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("is not in the process", done.stderr)

    def test_what_a_hook_adds_is_measured_with_a_director_too(self):
        if not DEVICE:
            self.skipTest("this build has no software device")
        folder = tempfile.TemporaryDirectory(prefix="deft-bench-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        # LD_PRELOAD can carry this path
        library = os.path.join(folder.name, os.path.basename(LIBRARY))
        os.symlink(LIBRARY, library)
        # Below 0 it may be in so short a run; that the ranks agree, and the director watches, the
        # program itself sees to.
        done = subprocess.run([HOOK_COST, "--library", library, "--rounds", "1", "--batches", "50"],
                              capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        result = json.loads(done.stdout)
        self.assertEqual(set(result["added"]),
                         {"off", "observe", "exact", "device_observe", "device_exact"})
        self.assertEqual(set(result["device_calls"]), {"cuStreamIsCapturing", "cuEventRecord"})
        for setup in ("device_no_preload", "device_observe", "device_exact"):
            self.assertGreater(result[setup][0]["median"], 0, setup)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
