# SPDX-License-Identifier: Apache-2.0
"""The accuracy guard hears the loss of a PyTorch job, which says nothing of it: a plan that ruins a
training ends on all ranks at one call, soon, and deft says what came of it. One that does not stays
in force."""

import json
import os
import re
import subprocess

import support

SCRIPT = os.path.join(support.HERE, "guarded_kinds.py")
SOON = 20   # iterations from the damage to the end of the plan


class Guarded(support.TorchTest):
    def run_kinds(self, *kinds, **env):
        """The results by kind, each with the plan's part of rank 0's report; and the job."""
        named = {"OUT": "out.json", "KINDS": ",".join(kinds), "DEFT_PLAN": "delay1",
                 "DEFT_PREDICT": "none", "DEFT_WARMUP": "60", **env}
        prefix = [support.DEFT, "run", "--mode", "deft", "--log", "info", "--out", "seen-%r.json",
                  "--library", support.LIBRARY, "--"]
        job = self.job(2, SCRIPT, env=named, prefix=prefix)
        self.succeed(job, 2 * support.DEADLINE)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            results = json.load(file)
        with open(os.path.join(job.folder.name, "seen-0.json"), encoding="utf-8") as file:
            plans = [plan for plan in json.load(file)["plans"] if plan["switched"] > 0]
        self.assertEqual(len(plans), len(kinds), job.output(0))
        for plan, result in zip(plans, results.values()):
            result["plan"] = plan
        return results, job

    def test_what_ruins_a_training_ends_at_one_call_and_is_told(self):
        results, job = self.run_kinds("rate", "delay")
        for kind, result in results.items():
            with self.subTest(kind=kind):
                said = result["plan"]["guard_history"]
                self.assertEqual(result["in_force"], [0, 0], job.output(0))
                self.assertEqual(*result["executed"], "the ranks ended it at different calls")
                self.assertEqual([event["action"] for event in said], ["fall back"], said)
                event = said[0]
                damage = result["planted"] if kind == "rate" else event["from"]
                self.assertRegex(event["reason"], "^the (loss rose|norm of what updates get)")
                self.assertLessEqual(event["to"] - damage, SOON, (event, result["losses"]))
                self.assertGreater(event["to"], damage)
                self.assertGreater(event["loss_seen"], event["loss_expected"])
                self.assertEqual(event["dropped"], 1, "of what was on its way")
        line = re.search("job of 2 ranks has ended: .*", job.output(0)).group(0)
        self.assertRegex(line, r"it ended a plan that was in force in iterations \d+ to \d+: the ")
        self.assertRegex(line, r"1 generations were dropped, and the loss was [\d.e+]+ where its t")

    def test_one_that_ruins_nothing_stays_and_a_guard_that_warns_ends_none(self):
        results, job = self.run_kinds("calm", "delay", DEFT_GUARD="warn")
        self.assertEqual(results["calm"]["in_force"], [1, 1], job.output(0))
        self.assertEqual(results["calm"]["plan"]["guard_decisions"], 0, job.output(0))
        self.assertEqual(results["delay"]["in_force"], [1, 1], job.output(0))
        said = results["delay"]["plan"]["guard_history"]
        self.assertEqual({event["acted"] for event in said}, {False}, job.output(0))
        self.assertIn("the plan goes on", job.output(0))
        self.assertNotIn("it ended a plan", job.output(0))


class Told(support.TorchTest):
    """What the companion tells of a loss."""

    def test_of_each_iteration_what_is_known(self):
        done = subprocess.run([self.python, os.path.join(support.HERE, "losses_told.py")],
                              check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        both = 3   # loss and norm are asked for
        self.assertEqual(told["one"], [[0, both, 2.0, 5.0, 0.2], [1, both, 1.5, 5.0, 0.2],
                                       [2, both, 1.0, 5.0, 0.2]])
        self.assertEqual([what[2] for what in told["accumulated"]],
                         [0.75, 0.75, "nan", "nan", 0.75], "of another number of passes")
        self.assertEqual([what[2] for what in told["no_number"]], ["nan"] * 3)
        self.assertEqual([what[2] for what in told["of_a_kind"]], ["nan"])
        self.assertEqual([what[2] for what in told["half"]], [0.5])
        self.assertEqual([what[2] for what in told["not_finite"]], ["inf", "inf"])
        gpu = told["on_a_gpu"]
        self.assertEqual(gpu["before"], 0, "nobody waits")
        self.assertEqual(gpu["told"][:33], [[number, number, 5] for number in range(32)] +
                         [[100, 100, 5]], "the others were left out")
        self.assertEqual(gpu["told"][-1], [199, 199, 5])
        self.assertEqual(gpu["free"], [128], "all are given back")


support.main(__name__)
