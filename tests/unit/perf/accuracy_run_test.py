# SPDX-License-Identifier: Apache-2.0
"""perf/accuracy/run.py where something goes wrong: one line, an exit code, and nobody left
behind. The job is a stand-in."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SCRIPT = os.path.join(ROOT, "perf", "accuracy", "run.py")
DEADLINE = 60
# Stands in for python3 launch.py train.py: trains nothing, writes the lines, and ends as HOW says.
JOB = f"""#!{sys.executable}
import json, os, signal, subprocess, sys, time
option = lambda name: sys.argv[sys.argv.index(name) + 1]
how = os.environ["HOW"]
if how in ("hang", "hang-hard"):
    if how == "hang":
        signal.signal(signal.SIGTERM, lambda *_: (rank.kill(), sys.exit(143)))
    rank = subprocess.Popen(["sleep", "300"])
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{{os.getpid()}}\\n{{rank.pid}}\\n")
    rank.wait()
with open(option("--work")) as file, open(option("--out"), "w") as out:
    for work in json.load(file) if how != "nothing" else []:
        out.write(json.dumps({{**work, "accuracy": 0.9, "epoch_accuracies": [0.9],
                               "epoch_losses": [0.1], "iterations": 9, "checksum": "0",
                               "replicas_equal": True}}) + "\\n")
if how != "good":
    sys.exit("the end of the process went wrong")
"""


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


class AccuracyRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft accuracy ")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for part in ("tools/deft", "packaging/libnccl-net-deft.so",
                     "softdev/nccl/libnccl.so.2", "softdev/cuda/libcuda.so.1"):
            self.put("build/" + part)
        self.python = self.put("python", JOB)
        self.out, self.pids = os.path.join(self.root, "out"), os.path.join(self.root, "pids")
        os.mkdir(os.path.join(self.root, "tmp"))

    def put(self, name, text=""):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def start(self, how, *arguments):
        return subprocess.Popen([sys.executable, SCRIPT, "--build",
                                 os.path.join(self.root, "build"), "--python", self.python, "--out",
                                 self.out, "--models", "tiny-mlp", "--policies", "plain", "--seeds",
                                 "2", *arguments],
                                env={**os.environ, "HOW": how, "PIDS": self.pids,
                                     "TMPDIR": os.path.join(self.root, "tmp")},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=ignore_nothing)

    def run_it(self, how, *arguments):
        """(exit code, standard output, standard error)."""
        with self.start(how, "--optimizers", "adam", *arguments) as script:
            out, errors = script.communicate(timeout=DEADLINE)
        return script.returncode, out, errors

    def one_line(self, code, mention, how="good", *arguments):
        ended, _, errors = self.run_it(how, *arguments)
        self.assertEqual((ended, errors.count("\n")), (code, 1), errors)
        self.assertIn(mention, errors)

    def lines(self):
        with open(self.out + ".jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_good(self):
        self.assertEqual(self.run_it("good")[::2], (0, ""))
        self.assertEqual(len(self.lines()), 2)

    def test_a_crash_behind_the_last_training_is_a_failure(self):
        code, out, _ = self.run_it("crash")
        self.assertEqual(code, 4)
        self.assertIn("failed: the end of the process went wrong", out)
        self.assertEqual(len(self.lines()), 2, "what was trained is kept")

    def test_no_training_at_all(self):
        self.one_line(4, "has no training", "nothing")
        self.one_line(4, "has no training", "good", "--report")

    def test_a_missing_part(self):
        os.remove(os.path.join(self.root, "build", "tools", "deft"))
        self.one_line(3, "tools/deft is missing; remedy: ./dev build")

    def test_out_that_cannot_be_written(self):
        self.put("file")
        self.one_line(2, "--out", "good", "--out", os.path.join(self.root, "file", "out"))
        os.mkdir(self.out + ".svg")
        self.one_line(2, "is a folder")

    def test_a_half_written_line_is_trained_again(self):
        self.assertEqual(self.run_it("good")[0], 0)
        whole = self.lines()
        first, second = map(json.dumps, whole)
        # a whole line without its end is a training
        for left in (first, first + "\n" + second[:len(second) // 2]):
            with self.subTest(left=left):
                with open(self.out + ".jsonl", "w", encoding="utf-8") as file:
                    file.write(left)
                self.assertEqual(self.run_it("good")[::2], (0, ""))
                self.assertEqual(self.lines(), whole)

    def test_other_lines_are_told(self):
        self.assertEqual(self.run_it("good")[0], 0)
        with open(self.out + ".jsonl", "a", encoding="utf-8") as file:
            file.write("{\n{}\n")
        self.one_line(2, "line 3 is no training")

    def hanging(self, how, *arguments):
        """A matrix of several cells, two of whose jobs run and do not end: (script, their
        processes)."""
        script = self.start(how, *arguments)
        self.addCleanup(script.communicate)
        self.addCleanup(script.kill)

        def known():
            if not os.path.exists(self.pids):
                return []
            with open(self.pids, encoding="ascii") as file:
                return [int(line) for line in file.read().split("\n")[:-1]]
        self.until(lambda: len(known()) == 4, "the jobs do not start")
        for pid in known():
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        return script, known

    def until(self, condition, otherwise):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, otherwise)
            time.sleep(0.02)

    def test_a_signal_ends_all_jobs_and_starts_no_other(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number=number):
                script, known = self.hanging("hang-hard")
                script.send_signal(number)
                self.assertEqual(script.wait(DEADLINE), code)
                self.assertEqual(len(known()), 4, "more cells were begun")
                self.assertFalse(any(alive(pid) for pid in known()))
                self.assertEqual(os.listdir(os.path.join(self.root, "tmp")), [])
                os.remove(self.pids)

    def test_jobs_do_not_outlive_the_matrix(self):
        script, known = self.hanging("hang")
        script.kill()
        self.until(lambda: not any(alive(pid) for pid in known()), "jobs live on")

    def test_a_job_that_takes_too_long_leaves_no_rank(self):
        code, out, _ = self.run_it("hang-hard", "--timeout", "1")
        with open(self.pids, encoding="ascii") as file:
            pids = [int(line) for line in file]
        for pid in pids:
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        self.assertEqual(code, 4)
        self.assertIn("failed: not done after 1 s", out)
        self.until(lambda: not any(alive(pid) for pid in pids), "ranks live on")


if __name__ == "__main__":
    unittest.main(verbosity=2)
