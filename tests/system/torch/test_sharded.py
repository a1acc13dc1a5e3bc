# SPDX-License-Identifier: Apache-2.0
"""FSDP2 and HSDP are recognised, and left alone in every mode where there is no other network: the
bits of plain, whatever the operator asks for."""

import json
import os
import subprocess

import support

SCRIPT = os.path.join(support.HERE, "sharded_kinds.py")
RANKS = {"fsdp2": 2, "hsdp": 4}
SCATTERED = "gradients travel by reduce-scatter (FSDP or a distributed optimizer)"
# Said of a communicator beside the two of HSDP, which PyTorch 2.15 makes.
OTHER = "the gradients travel over another communicator"
REASON = f"{SCATTERED}, which nothing but other networks would help (DEFT_LANES)"
MODES = {"observe": {}, "exact": {},
         "deft": {"DEFT_GRADIENTS": "trust", "DEFT_PLAN": "delay1"},
         "covap": {"DEFT_GRADIENTS": "trust", "DEFT_PLAN": "covap2"}}


class Sharded(support.TorchTest):
    def setUp(self):
        if subprocess.run([self.python, "-c", "from torch.distributed.fsdp import fully_shard"],
                          capture_output=True, timeout=60, check=False).returncode != 0:
            self.skipTest("PyTorch has fully_shard from 2.6 on")

    def results(self, kind, prefix=(), **env):
        job = self.job(RANKS[kind], SCRIPT, env={"OUT": "out.json", "KINDS": kind, **env},
                       prefix=prefix)
        self.succeed(job)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def under_deft(self, kind, mode):
        results, job = self.results(kind, [support.DEFT, "run", "--mode", mode, "--log", "info",
                                           "--out", "seen-%r.json", "--library", support.LIBRARY,
                                           "--"],
                                    DEFT_WARMUP="0", **MODES[mode])
        seen = []
        for rank in range(RANKS[kind]):
            with open(os.path.join(job.folder.name, f"seen-{rank}.json"), encoding="utf-8") as file:
                seen.append(json.load(file))
        return results, seen, job

    def left_alone(self, kind):
        plain, _ = self.results(kind)
        self.assertTrue(plain[kind]["equal"])
        self.assertLess(plain[kind]["losses"][-1], plain[kind]["losses"][0])
        for mode in MODES:
            with self.subTest(mode=mode):
                results, seen, job = self.under_deft(kind, mode)
                self.assertEqual(results, plain)
                for report in seen:
                    calls = report["calls"]
                    self.assertGreater(calls["ncclReduceScatter"], 100, calls)
                    self.assertEqual(sum(plan["switched"] for plan in report["plans"]), 0,
                                     job.outputs())
                self.assertNotIn("plan in force", job.outputs())
                if mode != "observe":
                    # Rank 0 leads its communicators, and tells; not of one made at the very end.
                    reasons = [plan["reason"] for plan in seen[0]["plans"]]
                    self.assertIn(REASON, reasons)
                    self.assertLessEqual(set(reasons), {REASON, SCATTERED, OTHER, ""})

    def test_fsdp2(self):
        self.left_alone("fsdp2")

    def test_hsdp(self):
        self.left_alone("hsdp")


support.main(__name__)
