# SPDX-License-Identifier: Apache-2.0
"""DEFT_PLAN=deft in a whole job: DeFT's own queues are what is carried out, and no plan that has
their name. Two hosts in namespaces, a link with a rate, a replayed job whose gradients take longer
than its compute.

usage: queues_test.py SOURCE_ROOT BUILD
"""
import json
import sys
import tempfile
import unittest
from pathlib import Path

from perf.common import hosts, iterations, ranks

SOURCE, BUILD = sys.argv[1:3]
DELAY, MERGE = 3, 3
RATE, GBIT, COMPUTE_MS = "400mbit", 0.4, 40.0
ITERATIONS, WINDOW = 120, 12


def profile(coverage):
    """Six gradients that take `coverage` times as long as the compute. Their sizes differ: equal
    calls in a row would be learned as iterations of one gradient each."""
    total = coverage * COMPUTE_MS / 1e3 * GBIT * 1e9 / 8
    return {"format": "deft-profile", "version": 1, "name": "even", "forward_ms": COMPUTE_MS / 3,
            "backward_ms": COMPUTE_MS * 2 / 3,
            "buckets": [{"bytes": int(total * (10 + at) / 75) // 4 * 4,
                         "ready_ms": COMPUTE_MS * 2 / 3 * (at + 1) / 6} for at in range(6)]}


class Queues(unittest.TestCase):
    def job(self, coverage):
        with tempfile.TemporaryDirectory(prefix="deft-queues-") as folder:
            path = Path(folder) / "profile.json"
            path.write_text(json.dumps(profile(coverage)))
            run = ranks.run(NETWORK, PARTS, lambda results, scratch: [
                PARTS.replay, "--profile", str(path), "--iterations", str(ITERATIONS), "--alone",
                "3", "--look", "--id-file", f"{scratch}/id", "--json", results], "deft", {
                    "DEFT_GRADIENTS": "trust", "DEFT_WARMUP": "5", "DEFT_GUARD": "off",
                    "DEFT_PLAN": "deft", "DEFT_MAX_DELAY": str(DELAY),
                    "DEFT_MAX_MERGE": str(MERGE)}, timeout=90)
        self.assertTrue(run.results["replicas_equal"])
        return run

    def test_updates_come_in_a_fraction_of_iterations(self):
        """In which one, the queues' lengths say, which a busy machine makes longer."""
        run = self.job(1.25)
        plan = run.plan
        self.assertEqual((plan["state"], plan["policy"]), ("running", "deft"), plan)
        self.assertLessEqual(plan["max_delay"], DELAY)
        self.assertLessEqual(plan["max_merge"], MERGE)
        period, zeros = iterations.period_of(plan), run.results["zero_gradients"]
        last = zeros[-max(WINDOW // period, 1) * period:]
        seen = sum(not zero for zero in last) / len(last)
        self.assertLess(seen, 1)
        self.assertAlmostEqual(seen, plan["updates_per_iteration"])
        self.assertEqual(set(last), {0, 6}, "whole generations: an update has all or nothing")


if __name__ == "__main__":
    try:
        PARTS = ranks.Parts(BUILD, SOURCE)
        if hosts.choose("namespaces")[0] == "userns":
            hosts.enter_user_namespace()
        with hosts.create(2, [RATE], "namespaces") as NETWORK:
            unittest.main(argv=sys.argv[:1])
    except hosts.SetupError as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
