# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, fails or just ends: the others end in time with a plain message, and nothing
hangs or crashes."""

import os
import signal
import subprocess

import support

SCRIPT = os.path.join(support.HERE, "failing.py")
STILL = os.path.join(support.HERE, "still_rank.py")


class Failures(support.TorchTest):
    def run_case(self, case, ranks=2, **env):
        job = self.job(ranks, SCRIPT, env={"CASE": case, **env})
        codes = job.wait()
        self.assertNotIn(None, codes, f"{case}: a rank hangs\n{job.outputs()}")
        return job, codes

    def test_killed_rank_is_noticed_by_the_others(self):
        for case in ("killed", "killed-ddp"):
            with self.subTest(case=case):
                job, codes = self.run_case(case)
                self.assertEqual(codes[1], -9)
                self.assertEqual(codes[0], 1, job.output(0))
                self.assertIn("under way", job.output(0))
                self.assertRegex(job.output(0), "ncclAllReduce.*(remote|system error|network)")

    def test_a_rank_that_fails_takes_the_others_along(self):
        job, codes = self.run_case("exception")
        self.assertEqual(codes[1], 1, job.output(1))
        self.assertIn("rank 1 has had enough", job.output(1))
        self.assertEqual(codes[0], 1, job.output(0))
        self.assertIn("NcclError", job.output(0))

    def stand_still(self, prefix=(), **env):
        """Rank 1 does. How rank 0 ends, and its log."""
        if not os.environ.get("TEST_TORCH_MAJOR"):   # since 2.2 by itself; torchrun sets it
            env["NCCL_ASYNC_ERROR_HANDLING"] = "1"
        job = self.job(2, STILL, prefix=prefix, env={"TIMEOUT": "30", **env})
        try:
            code = job.ranks[0].wait(2 * support.DEADLINE)
        except subprocess.TimeoutExpired:
            code = None
        job.kill()
        log = job.output(0)
        self.assertIsNotNone(code, f"rank 0 hangs\n{job.outputs()}")
        self.assertIn("stands still", log)
        self.assertNotIn("went on", log)
        self.assertIn("timed out", log)
        return code, log

    def test_a_rank_that_stands_still_ends_the_others_after_the_timeout(self):
        self.assertEqual(self.stand_still()[0], 1)

    def test_a_rank_that_stands_still_while_layers_wait_for_themselves(self):
        """No work of PyTorch's is open then."""
        deft = [support.DEFT, "run", "--mode", "exact", "--library", support.LIBRARY, "--"]
        code, log = self.stand_still(deft, DEFT_LAYERWISE="auto", DEFT_PLAN="bytescheduler",
                                     PLANNED="4")
        self.assertEqual(code, -signal.SIGABRT, log)
        self.assertRegex(log, "companion: rank 0: the sum of a bucket .* timed out")

    def test_a_stream_that_waits_for_ever(self):
        """With a stand-in for the stream."""
        script = os.path.join(support.HERE, "overdue_sums.py")
        package = os.path.join(support.ROOT, "companion")
        handling = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        for case, settings, code, text in (
                ("never", {handling: "1"}, -signal.SIGABRT, "timed out"),
                ("comes", {handling: "1"}, 0, "over 0 \n"),
                ("never", {handling: "0"}, 0, "over 1 \n"),
                ("never", {handling: "0", "NCCL_BLOCKING_WAIT": "1"}, 0, "is set"),
                ("comes", {handling: "2"}, 0, "is set")):
            with self.subTest(case=case, settings=settings):
                done = subprocess.run([self.python, script, package], capture_output=True,
                                      text=True, check=False, timeout=support.DEADLINE,
                                      env=dict(os.environ, CASE=case, **settings))
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn(text, done.stdout + done.stderr)

    def test_ending_with_work_outstanding_and_without_destroy(self):
        job, codes = self.run_case("unwaited")
        self.assertEqual(codes, [0, 0], job.outputs())

    def test_destroy_and_start_again(self):
        job, codes = self.run_case("destroyed", SECOND_PORT=str(support.free_port()))
        self.assertEqual(codes, [0, 0], job.outputs())


class Launcher(support.TorchTest):
    def launch(self, *arguments, **env):
        return subprocess.run([self.python, support.LAUNCHER, *arguments], capture_output=True,
                              text=True, check=False, timeout=support.DEADLINE,
                              env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **env))

    def test_bad_input_is_one_line(self):
        for arguments, text in ((["nosuch.py"], "there is no script 'nosuch.py'"),
                                (["--ranks", "0", SCRIPT], "--ranks must be at least 1, not 0"),
                                (["--libs", "/nonexistent", SCRIPT], "--libs DIR")):
            with self.subTest(arguments=arguments):
                done = self.launch(*arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(text, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_ranks_option_ends_all_when_one_ends_badly_and_returns_their_code(self):
        done = self.launch("--libs", support.LIBRARIES, "--ranks", "2", SCRIPT, CASE="exit-code")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ended with code", done.stderr)

    def test_a_script_for_gpus_with_cuda_mapped_to_the_cpu(self):
        script = os.path.join(support.HERE, "cuda_script.py")
        done = self.launch("--libs", support.LIBRARIES, "--map-cuda", "--ranks", "2", script)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("cuda script done"), 2)


support.main(__name__)
