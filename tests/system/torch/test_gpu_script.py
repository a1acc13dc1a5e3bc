# SPDX-License-Identifier: Apache-2.0
"""perf/gpu without a GPU: run.sh says so and exits with 77; its DDP part runs on the software
device and sees what is wrong."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

import support

FOLDER = os.path.join(support.ROOT, "perf", "gpu")


class GpuScript(support.TorchTest):
    def modes(self, folder, *arguments):
        out = os.path.join(folder, "out.json")
        prefix = shlex.join([support.LAUNCHER, "--libs", support.LIBRARIES])
        done = subprocess.run([sys.executable, os.path.join(FOLDER, "ddp_modes.py"), "--library",
                               support.LIBRARY, "--python", self.python, "--prefix", prefix,
                               "--model", "small", "--bucket-cap-mb", "0.2", "--iterations", "40",
                               "--timeout", str(support.DEADLINE), "--json", out, *arguments],
                              capture_output=True, text=True, check=False)
        with open(out, encoding="utf-8") as file:
            return done, json.load(file)

    def test_modes_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            done, result = self.modes(folder, "--modes", "plain,exact,deft")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue(result["good"])
            self.assertEqual(list(result["modes"]), ["plain", "exact", "deft"])
            links = [link["bytes_sent"] for rank in result["modes"]["exact"]["links"]
                     for link in rank]
            self.assertEqual(len(links), 4, "two links on each of two ranks")
            self.assertGreater(min(links), 0, "both links were used")

    def test_a_job_that_fails_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            done, result = self.modes(folder, "--modes", "plain", "--model", "nosuch")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("invalid choice: 'nosuch'", done.stderr)
            self.assertFalse(result["good"])

    def test_without_a_gpu_nothing_runs(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("there is a GPU here")
        done = subprocess.run(["/bin/bash", os.path.join(FOLDER, "run.sh")], capture_output=True,
                              text=True, check=False, timeout=support.DEADLINE)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (77, 1), done.stderr)
        self.assertIn("no NVIDIA GPU", done.stderr)


support.main(__name__)
