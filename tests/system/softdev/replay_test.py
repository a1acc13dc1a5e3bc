# SPDX-License-Identifier: Apache-2.0
"""perf/jobs/replay on the software device: what it replays, that its sums are right, and what it
says about bad input.

usage: replay_test.py REPLAY
"""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPLAY = ""
DEADLINE = 120
PROFILE = {"format": "deft-profile", "version": 1, "name": "small", "forward_ms": 2.0,
           "backward_ms": 6.0,
           "buckets": [{"bytes": 4096, "ready_ms": 2.0}, {"bytes": 65540, "ready_ms": 6.0}]}
LAYERS = {**PROFILE, "buckets": [{**PROFILE["buckets"][0], "forward_ms": 0.5},
                                 {**PROFILE["buckets"][1], "forward_ms": 1.0}]}
# Sends bucket 1 in two pieces around bucket 0, the last two as one message.
PLAN = {"format": "deft-plan", "version": 1, "period": 1, "bucket_bytes": [4096, 65540],
        "transfers": [
            {"bucket": 0, "begin": 0, "end": 4096, "link": 0, "operation": "all-reduce", "order": 1,
             "message": 1},
            {"bucket": 1, "begin": 0, "end": 32768, "link": 0, "operation": "all-reduce",
             "order": 0, "message": 0},
            {"bucket": 1, "begin": 32768, "end": 65540, "link": 0, "operation": "all-reduce",
             "order": 2, "message": 1}]}
OBSERVED = {"format": "deft-observe", "version": 1,
            "iterations": {"compute_ms": {"median": 9.0, "n": 5}},
            "buckets": [{"bytes": 4096, "ready_ms": {"median": 3.0, "n": 5}},
                        {"bytes": 8192, "ready_ms": {"median": 2.5, "n": 5}}]}


def alive(pid):
    """Is there such a process, other than one that has ended and is only waited for?"""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="replay test ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, content, name="profile.json"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def run_it(self, *arguments, **environment):
        clean = {name: value for name, value in os.environ.items()
                 if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
                 and not name.startswith(("NCCL_", "DEFT_"))}
        return subprocess.run([REPLAY, *arguments], capture_output=True, text=True,
                              timeout=DEADLINE, check=False,
                              env={**clean, "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": "none",
                                   "TMPDIR": self.folder, **environment})

    def replay(self, profile, *arguments):
        done = self.run_it("--profile", self.write(profile), "--ranks", "2", "--iterations", "6",
                           "--skip", "2", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def test_sums_and_times(self):
        result = self.replay(PROFILE)
        self.assertEqual(result["zero_gradients"], [])
        self.assertEqual((result["ranks"], result["gradient_bytes"], result["compute_ms"]),
                         (2, 69636, 8.0))
        self.assertEqual(result["elements_not_the_sum"], 0)
        self.assertTrue(result["replicas_equal"])
        times = result["iteration_ms"]
        self.assertEqual((times["n"], len(times["raw"])), (4, 6))
        # A kernel may end late on a busy machine, never early.
        self.assertGreaterEqual(min(result["alone_ms"]["raw"]), 8.0 - 0.01)
        self.assertGreaterEqual(min(times["raw"]), 8.0 - 0.01)
        self.assertLessEqual(times["p10"], times["median"])

    def test_three_ranks_in_step(self):
        done = self.run_it("--profile", self.write(PROFILE), "--ranks", "3", "--iterations", "3",
                           "--ahead", "0", "--alone", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["elements_not_the_sum"], result["alone_ms"]["median"]), (0, None))

    def test_scaled(self):
        result = self.replay(PROFILE, "--time-scale", "0.5", "--size-scale", "0.1", "--look")
        self.assertEqual(result["zero_gradients"], [0] * 6)
        self.assertEqual(result["compute_ms"], 4.0)
        self.assertEqual([bucket["bytes"] for bucket in result["buckets"]], [408, 6556])
        self.assertEqual([bucket["ready_ms"] for bucket in result["buckets"]], [2.0, 4.0])

    def test_pieces_of_a_schedule(self):
        plan = self.write(PLAN, "plan.json")
        for arguments in ((), ("--size-scale", "0.001"), ("--ahead", "3")):
            with self.subTest(arguments=arguments):
                result = self.replay(LAYERS, "--schedule", plan, *arguments)
                self.assertEqual(result["elements_not_the_sum"], 0)
                self.assertTrue(result["replicas_equal"])
                self.assertGreaterEqual(min(result["iteration_ms"]["raw"][1:]), 8.0 - 0.01)

    def test_bad_schedules_are_one_line(self):
        def changed(which, **members):
            return {**PLAN, "transfers": [{**one, **(members if at == which else {})}
                                          for at, one in enumerate(PLAN["transfers"])]}
        good = self.write(LAYERS, "good.json")
        for content, mention in (("{", "no plan"), (LAYERS, "no plan"),
                                 ({**PLAN, "period": 2}, "period is not 1"),
                                 ({**PLAN, "bucket_bytes": [4096]}, "another profile"),
                                 (changed(1, end=32764), "bucket 1 are sent twice or never"),
                                 (changed(1, begin=4), "bucket 1 are sent twice or never"),
                                 (changed(2, begin=0), "bucket 1 are sent twice or never"),
                                 ({**PLAN, "transfers": PLAN["transfers"][1:]},
                                  "bucket 0 are sent twice or never"),
                                 (changed(0, bucket=2), "transfers[0]: there is no such bucket"),
                                 (changed(0, link=1),
                                  "transfers[0]: not an all-reduce on the first link"),
                                 (changed(0, operation="all-gather"),
                                  "transfers[0]: not an all-reduce"),
                                 (changed(0, order=-1), "order is missing or no whole number")):
            with self.subTest(content=content):
                self.one_line(mention, "--profile", good, "--ranks", "2", "--schedule",
                              self.write(content, "plan.json"))
        self.one_line("/nosuch: cannot be read", "--profile", good, "--ranks", "2", "--schedule",
                      "/nosuch")

    def test_recorded(self):
        result = self.replay(OBSERVED)
        self.assertEqual(result["compute_ms"], 9.0)
        self.assertEqual([bucket["ready_ms"] for bucket in result["buckets"]], [3.0, 3.0])

    def test_of_a_simulation(self):
        result = self.replay({"format": "deft-sim", "version": 1, "profile": PROFILE})
        self.assertEqual(result["gradient_bytes"], 69636)

    def test_ranks_of_a_launcher_meet_in_a_file(self):
        path, out = self.write(PROFILE), os.path.join(self.folder, "out.json")
        clean = {name: value
                 for name, value in os.environ.items() if not name.startswith(("NCCL_", "DEFT_"))}
        ranks = [subprocess.Popen([REPLAY, "--profile", path, "--iterations", "3", "--id-file",
                                   os.path.join(self.folder, "id"), "--json", out],
                                  env={**clean, "RANK": str(rank), "WORLD_SIZE": "2",
                                       "LOCAL_RANK": "0", "NCCL_HOSTID": f"h{rank}",
                                       "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": "none"})
                 for rank in range(2)]
        self.assertEqual([rank.wait(DEADLINE) for rank in ranks], [0, 0])
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["elements_not_the_sum"], 0)

    def test_a_rank_that_fails_ends_the_job(self):
        done = self.run_it("--profile", self.write(PROFILE), "--ranks", "2", "--iterations", "3",
                           "--json", "/nosuch/out.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("replay: rank 0: /nosuch/out.json: No such file or directory", done.stderr)

    def start_long_job(self):
        """A job that does not end by itself, at work: (process, its ranks)."""
        clean = {name: value for name, value in os.environ.items()
                 if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
                 and not name.startswith(("NCCL_", "DEFT_"))}
        job = subprocess.Popen([REPLAY, "--profile", self.write(PROFILE), "--ranks", "2",
                                "--iterations", "1000000"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**clean, "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": "none",
                                    "TMPDIR": self.folder})
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        self.until(lambda: glob.glob(os.path.join(glob.escape(self.folder), "replay-*", "id")),
                   "the ranks do not meet")
        with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as file:
            ranks = [int(pid) for pid in file.read().split()]
        self.assertEqual(len(ranks), 2)
        for pid in ranks:
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        return job, ranks

    def until(self, condition, otherwise):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, otherwise)
            time.sleep(0.02)

    def test_a_signal_ends_the_ranks_and_leaves_no_folder(self):
        job, ranks = self.start_long_job()
        job.terminate()
        self.assertEqual(job.wait(DEADLINE), 128 + signal.SIGTERM)
        self.assertFalse(any(alive(pid) for pid in ranks))
        self.assertEqual(glob.glob(os.path.join(glob.escape(self.folder), "replay-*")), [])

    def test_ranks_do_not_outlive_their_parent(self):
        job, ranks = self.start_long_job()
        job.kill()
        job.wait(DEADLINE)
        self.until(lambda: not any(alive(pid) for pid in ranks), "ranks live on")

    def test_bad_input_is_one_line(self):
        def changed(**members):
            return {**PROFILE, **members}
        bucket = {"bytes": 4096, "ready_ms": 2.0}
        cases = [
            ("{", "not a JSON object"), ("[]", "not a JSON object"), ({}, "format is missing"),
            (changed(format="gpx"), "deft-profile, deft-sim, deft-observe"),
            (changed(buckets=[]), "buckets is no list"),
            (changed(buckets=[3]), "buckets[0]: bytes is missing"),
            (changed(buckets=[{**bucket, "bytes": 0}]), "buckets[0]: bytes is no size"),
            (changed(buckets=[{**bucket, "bytes": -4}]), "buckets[0]: bytes is no size"),
            (changed(buckets=[{**bucket, "bytes": 2 ** 40}, {**bucket, "bytes": 2 ** 40}]),
             "more than 2^40 bytes"),
            (changed(buckets=[{"bytes": 4}]), "buckets[0]: ready_ms is missing"),
            (changed(buckets=[{**bucket, "ready_ms": 7}]),
             "ready_ms is before the bucket in front of it or after"),
            (changed(buckets=[{**bucket, "ready_ms": 3}, bucket]),
             "buckets[1]: ready_ms is before"),
            (changed(forward_ms="2"), "forward_ms is no time"),
            (changed(backward_ms=-1), "backward_ms is no time"),
            ({**OBSERVED, "buckets": [{"bytes": 4, "ready_ms": {"median": None, "n": 0}}]},
             "ready_ms was not measured"),
            (changed(buckets=[{**bucket, "forward_ms": 2.5}]), "the buckets' forward_ms exceed"),
            ({"format": "deft-sim"}, "profile is missing")]
        for content, mention in cases:
            with self.subTest(content=content):
                self.one_line(mention, "--profile", self.write(content), "--ranks", "2")
        good = self.write(PROFILE, "good.json")
        self.one_line("/nosuch: cannot be read", "--profile", "/nosuch", "--ranks", "2")
        self.one_line("--profile is required", "--ranks", "2")
        self.one_line("try --ranks 2", "--profile", good)
        for option, value in (("--ranks", "0"), ("--ranks", "x"), ("--time-scale", "0"),
                              ("--size-scale", "-1"), ("--time-scale", "nan"),
                              ("--size-scale", "nan"), ("--time-scale", "inf"),
                              ("--iterations", "0"), ("--ahead", "-1")):
            with self.subTest(option=option, value=value):
                self.one_line(option, "--profile", good, "--ranks", "2", option, value)
        self.one_line("RANK=two", "--profile", good, RANK="two", WORLD_SIZE="2")
        self.one_line("RANK 2 is none of WORLD_SIZE 2", "--profile", good, RANK="2", WORLD_SIZE="2")
        self.one_line("--id-file is needed", "--profile", good, RANK="0", WORLD_SIZE="2")

    def one_line(self, mention, *arguments, **environment):
        done = self.run_it(*arguments, **environment)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1),
                         done.stderr)
        self.assertTrue(done.stderr.startswith("replay: "), done.stderr)
        self.assertIn(mention, done.stderr)


if __name__ == "__main__":
    REPLAY = sys.argv.pop(1)
    unittest.main(verbosity=2)
