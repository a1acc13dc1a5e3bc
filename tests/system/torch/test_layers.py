# SPDX-License-Identifier: Apache-2.0
"""Layers that wait for their own gradients give the bits of plain, or the job stays plain.

Here a few kinds of training; all of them, of three ranks, where TEST_TORCH_MAJOR asks for a current
PyTorch. And a few in the order of ByteScheduler, of US-Byte and of DeAR.
"""

import json
import os
import re

import support

SCRIPT = os.path.join(support.HERE, "layer_kinds.py")
FEW = ("adam", "nesterov", "to_zero", "views", "evaluates_inside", "looks", "tied", "clips",
       "hooked", "aliases", "swaps", "freezes", "keeps_states", "arrays")
# Trainings that stay plain, and why.
PLAIN = {
    "clips": r"are used outside of its forward pass \(layer_kinds\.py:\d+\)",
    "if_there": r"are used outside of its forward pass \(layer_kinds\.py:\d+\)",
    "averages_always": r"are used outside of its forward pass \(layer_kinds\.py:\d+\)",
    "autocasts_all": "its optimizer steps under autocast",
    "aliases": r"the memory of a parameter, .* is used by aten::\w+ of another tensor \(layer_kin",
    "arrays": r"is given to NumPy or by DLPack \(layer_kinds\.py:\d+\)",
    "shares": "parameters share memory",
    "hooked": "a communication hook of its own",
    "unused": "it looks for unused parameters",
    "two": "trained in turns",
    "two_apart": "trained in turns",
    "compiled": None,
    "compiled_part": "the job compiles",
}
# With a number of ranks that is no power of two.
PLAIN_OF_THREE = {"views": "gradient_as_bucket_view is used, and the number of ranks is no power",
                  "views_to_zero": "gradient_as_bucket_view is used, and the number of ranks is no"}


class LayerJobs(support.TorchTest):
    """Trainings of a script, with and without deft."""

    script = SCRIPT

    def results(self, ranks, kinds, prefix=(), **env):
        job = self.job(ranks, self.script, env={"OUT": "out.json", "KINDS": ",".join(kinds), **env},
                       prefix=prefix)
        self.succeed(job, 6 * support.DEADLINE)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def under(self, mode, ranks, kinds, **env):
        return self.results(ranks, kinds, **env, prefix=[
            support.DEFT, "run", "--mode", mode, "--log", "info", "--library", support.LIBRARY,
            "--"])

    def order(self, ranks, plan, kinds):
        """Long enough for a plan to come into force; it may end again."""
        env = {"ITERATIONS": "240", "PACE": "0.015"}
        plain, _ = self.results(ranks, kinds, **env)
        results, job = self.under("exact", ranks, kinds, DEFT_LAYERWISE="auto", DEFT_PLAN=plan,
                                  **env)
        for kind, result in results.items():
            with self.subTest(kind=kind, plan=plan, log=job.outputs()):
                self.assertEqual(result["digest"], plain[kind]["digest"])
                self.assertGreater(result["planned"], 15)
                self.assertGreater(result["forwards"], 15)
        self.assertIn(f"plan: {plan}: ", job.outputs())
        self.assertEqual(re.findall("stands down.*", job.outputs()), [])
        return job


class LayersTest(LayerJobs):
    def compare(self, ranks, kinds):
        plain, _ = self.results(ranks, kinds)
        results, job = self.under("exact", ranks, kinds, DEFT_LAYERWISE="auto")
        log = job.outputs()
        stays_plain = {**PLAIN, **(PLAIN_OF_THREE if ranks == 3 else {})}
        self.assertEqual(list(results), list(plain))
        for kind, result in results.items():
            with self.subTest(kind=kind):
                self.assertEqual(result["digest"], plain[kind]["digest"])
                if kind in stays_plain:
                    self.assertLessEqual(result["forwards"], 1)
                    if stays_plain[kind]:
                        self.assertRegex(log, "companion: module \\d+: .*" + stays_plain[kind])
                else:
                    self.assertGreater(result["forwards"], 8)
        self.assertEqual(re.findall("stands down.*", log), [])
        return results

    def test_a_few_kinds(self):
        self.compare(2, FEW)

    def test_all_kinds(self):
        if "TEST_TORCH_MAJOR" not in os.environ:
            self.skipTest("long: with TEST_TORCH_MAJOR")
        self.compare(3, os.environ.get("KINDS", "").split(",") if "KINDS" in os.environ
                     else self.kinds())

    def test_the_order_of_bytescheduler(self):
        job = self.order(2, "bytescheduler", ("clips_at_last",))
        # Plain from then on, while the plan is in force or not.
        self.assertRegex(job.outputs(), "companion: module \\d+: .*outside of its forward pass")

    def test_the_order_of_dear(self):
        self.order(2, "dear", ("momentum", "adamw"))

    def test_halves_are_not_sent_of_three_ranks(self):
        if "TEST_TORCH_MAJOR" not in os.environ:
            self.skipTest("long: with TEST_TORCH_MAJOR")
        env = {"ITERATIONS": "120", "PACE": "0.01"}
        plain, _ = self.results(3, ("momentum",), **env)
        results, job = self.under("exact", 3, ("momentum",), DEFT_LAYERWISE="auto",
                                  DEFT_PLAN="dear", **env)
        self.assertEqual(results["momentum"]["digest"], plain["momentum"]["digest"])
        self.assertEqual(results["momentum"]["planned"], 0)
        self.assertIn("DEFT_PLAN=dear is carried out between two ranks only", job.outputs())

    def test_other_orders(self):
        if "TEST_TORCH_MAJOR" not in os.environ:
            self.skipTest("long: with TEST_TORCH_MAJOR")
        self.order(2, "us-byte", ("adam", "views"))
        for plan in ("bytescheduler", "us-byte"):
            self.order(3, plan, ("adam", "momentum", "looks"))

    def kinds(self):
        """By their names in the script: what this PyTorch does not have is left out there."""
        with open(SCRIPT, encoding="utf-8") as file:
            return re.findall(r'^    "(\w+)": (?:job|two)\(', file.read(), re.M)

    def test_off_is_off(self):
        results, job = self.under("exact", 2, ["adam"])
        self.assertEqual(results["adam"]["forwards"], 0)
        self.assertNotIn("companion: ", job.outputs())


support.main(__name__)
