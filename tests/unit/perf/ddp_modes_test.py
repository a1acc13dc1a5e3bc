# SPDX-License-Identifier: Apache-2.0
"""perf/gpu/ddp_modes.py: its ranks end with it, however it ends, and which modes it judges how.
The ranks are stand-ins."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from perf.gpu import ddp_modes

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SCRIPT = os.path.join(ROOT, "perf", "gpu", "ddp_modes.py")
DEADLINE = 60


def alive(pid):
    """Is there such a process, other than one that has ended and is only waited for?"""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ignore_nothing():
    """Where the tests are run by nohup, or in the background of a shell, signals are ignored;
    the script would ignore them too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Ranks(unittest.TestCase):
    def until(self, condition, otherwise):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, otherwise)
            time.sleep(0.02)

    def start(self):
        """(the script, its two ranks)."""
        folder = tempfile.TemporaryDirectory(prefix="deft modes ")
        self.addCleanup(folder.cleanup)
        python, pids = os.path.join(folder.name, "python"), os.path.join(folder.name, "pids")
        with open(python, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\necho $$ >>"$PIDS"\nexec sleep 300\n')
        os.chmod(python, 0o755)
        script = subprocess.Popen([sys.executable, SCRIPT, "--library", python, "--python", python,
                                   "--prefix", "launcher", "--modes", "plain"],
                                  env={**os.environ, "PIDS": pids, "TMPDIR": folder.name},
                                  stderr=subprocess.PIPE, preexec_fn=ignore_nothing)
        self.addCleanup(script.communicate)
        self.addCleanup(script.kill)

        def ranks():
            if not os.path.exists(pids):
                return []
            with open(pids, encoding="ascii") as file:
                return [int(line) for line in file.read().split("\n")[:-1]]
        self.until(lambda: len(ranks()) == 2, "the ranks do not start")
        for pid in ranks():
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        return script, ranks(), folder.name

    def test_a_signal_ends_them(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
            with self.subTest(number=number):
                script, ranks, folder = self.start()
                script.send_signal(number)
                self.assertEqual((script.wait(DEADLINE), script.stderr.read()), (code, b""))
                # One that was just being started ends with its parent, which has ended.
                self.until(lambda ranks=ranks: not any(alive(pid) for pid in ranks),
                           "ranks live on")
                self.assertEqual(sorted(os.listdir(folder)), ["pids", "python"])

    def test_the_end_of_the_script_ends_them(self):
        script, ranks, _ = self.start()
        script.kill()
        self.until(lambda: not any(alive(pid) for pid in ranks), "ranks live on")


class Modes(unittest.TestCase):
    def test_every_mode_and_kind_of_plan(self):
        settings = [one for one in ddp_modes.MODES.values() if one]
        self.assertEqual({one["DEFT_MODE"] for one in settings},
                         {"observe", "exact", "deft", "covap"})
        self.assertLessEqual({"delay1", "merge2", "covap2"},
                             {one.get("DEFT_PLAN") for one in settings})
        self.assertIn("Socket", {one.get("DEFT_LANES") for one in settings})
        named = {mode for mode, one in ddp_modes.MODES.items() if one and "DEFT_PLAN" in one}
        self.assertEqual(set(ddp_modes.PLANNED), named | {"proven", "fsdp-lanes", "hsdp-lanes"})
        self.assertNotIn("DEFT_GRADIENTS", ddp_modes.MODES["proven"])

    def judge(self, mode, losses, switched, carried=1, reason=""):
        plan = {"switched": switched, "lane_bytes": [5, carried], "reason": reason}
        reports = [{"hooks": {"in_path": True}, "plugin": {"loaded": True},
                    "plans": [plan]}] * ddp_modes.ranks_of(mode)
        return ddp_modes.judge(mode, {"replicas_equal": True, "epoch_losses": losses}, reports,
                                 {"replicas_equal": True, "epoch_losses": [1.0, 0.5]})

    def test_what_each_promises(self):
        for mode, settings in ddp_modes.MODES.items():
            with self.subTest(mode=mode):
                self.assertEqual(self.judge(mode, [1.0, 0.5], 1), [])
                exact = settings and (settings["DEFT_MODE"] in ("observe", "exact")
                                      or settings.get("DEFT_PLAN") == "delay0")
                self.assertEqual(bool(self.judge(mode, [1.0, 0.5], 1, carried=0)),
                                 mode.endswith("lanes"))
                self.assertEqual(bool(self.judge(mode, [1.0, 0.6], 1)), bool(exact))
                self.assertEqual(bool(self.judge(mode, [1.0, 0.5], 0)),
                                 mode in ddp_modes.PLANNED)
                dear = "gradients late by 1 would be 9 % faster; rate x curvature 1, bound 0.1"
                self.assertEqual(bool(self.judge(mode, [1.0, 0.5], 0, reason=dear)),
                                 mode in ddp_modes.PLANNED and mode != "proven")


if __name__ == "__main__":
    unittest.main(verbosity=2)
