# SPDX-License-Identifier: Apache-2.0
"""Whatever a training sums, modes exact and deft give plain's bits, until its large sums are
proven to be gradients, or the operator says that they are."""

import json
import os

import support

SCRIPT = os.path.join(support.HERE, "training_kinds.py")
KINDS = ("heavy_ball", "by_hand", "averaged", "averager", "divided", "contrasted", "in_turns",
         "low_rank", "accumulated", "evaluated", "forked")
# into which a plan that is named comes, with trust
TAKEN = ("heavy_ball", "averaged", "divided", "contrasted", "in_turns")
ASK = "DEFT_GRADIENTS=trust"
# which the companion proves
PROVEN = ("heavy_ball", "by_hand", "accumulated", "evaluated")
# which the companion refuses
REFUSED = ("averaged", "averager", "divided", "contrasted", "in_turns", "low_rank")


class Gradients(support.TorchTest):
    def results(self, prefix=(), ranks=2, **env):
        job = self.job(ranks, SCRIPT, env={"OUT": "out.json", **env}, prefix=prefix)
        self.succeed(job)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def under_deft(self, mode, **env):
        """The results, the plans that came into force over all communicators of rank 0, the job."""
        results, job = self.results([support.DEFT, "run", "--mode", mode, "--log", "info", "--out",
                                     "seen-%r.json", "--library", support.LIBRARY, "--"],
                                    DEFT_WARMUP="0", **env)
        with open(os.path.join(job.folder.name, "seen-0.json"), encoding="utf-8") as file:
            seen = json.load(file)
        return results, sum(plan["switched"] for plan in seen["plans"]), seen, job

    def test_what_the_companion_refuses_gives_the_bits_of_plain(self):
        kinds = ",".join(REFUSED)
        plain, _ = self.results(KINDS=kinds)
        for mode, plan in (("deft", "delay1"), ("covap", "covap2")):
            results, switched, _, job = self.under_deft(mode, DEFT_PLAN=plan, KINDS=kinds)
            self.assertEqual(switched, 0, job.outputs())
            for kind, result in results.items():
                with self.subTest(mode=mode, kind=kind):
                    self.assertEqual(result, plain[kind])
            self.assertRegex(job.output(0), r"does what exact does: rank \d: (?!nothing proves)",
                             "by the companion, which is there")

    def test_what_the_companion_proves_gives_the_bits_of_plain_without_a_cap(self):
        """Of three ranks, by whose number not each way to divide gives the same bits."""
        kinds = ",".join(PROVEN)
        plain, _ = self.results(ranks=3, KINDS=kinds)
        results, switched, _, job = self.under_deft("deft", ranks=3, KINDS=kinds)
        self.assertEqual(switched, 0, job.outputs())
        self.assertIn("bear smaller learning rates", job.output(0), "all but a cap is there")
        self.assertEqual(results, plain)

    def test_every_kind_gives_the_bits_of_plain(self):
        """Nothing is proven where there is no companion."""
        plain, _ = self.results()
        self.assertEqual(tuple(plain), KINDS)
        # A plan is named, so that one would come into each of them.
        for mode, plan in (("exact", "auto"), ("deft", "delay1"), ("covap", "covap2")):
            results, switched, seen, job = self.under_deft(mode, DEFT_PLAN=plan,
                                                           DEFT_COMPANION="off")
            self.assertEqual(seen["gradients"], "proven")
            self.assertEqual(switched, 0, job.outputs())
            for kind, result in results.items():
                with self.subTest(mode=mode, kind=kind):
                    self.assertEqual(result, plain[kind])
                    self.assertTrue(result["equal"] or kind == "averager", "replicas differ")
            warnings = [line for line in job.output(0).splitlines() if " WARN " in line]
            self.assertEqual(len(warnings), 0 if mode == "exact" else 1, job.output(0))
            self.assertTrue(all(ASK in line and "docs/accuracy.md" in line for line in warnings),
                            warnings)

    def test_with_trust_a_plan_comes_into_them(self):
        results, switched, seen, job = self.under_deft("deft", DEFT_GRADIENTS="trust",
                                                       DEFT_PLAN="delay1", DEFT_GUARD="off",
                                                       KINDS=",".join(TAKEN), UNTIL_PLANNED="1")
        self.assertEqual(seen["gradients"], "trust")
        self.assertGreaterEqual(switched, len(TAKEN), job.outputs())
        self.assertTrue(all(result["iterations"] < 1500 for result in results.values()), results)


support.main(__name__)
