# SPDX-License-Identifier: Apache-2.0
"""Trainings that take a turn while layers wait for their own gradients keep the bits of plain."""

import os
import re

import support
from test_layers import LayerJobs

SCRIPT = os.path.join(support.HERE, "layer_turns.py")
# What is said of a training then.
SAID = {
    "leaves": "its process group is another one from now on",
    "converts": "a parameter is swapped for another tensor",
    "streams": r"its forward pass runs on several streams \(layer_turns\.py:\d+\)",
    "fails_once": r"was not made as a whole before destroy_process_group\(\): a test's",
    "forks_inside": None,
    "read_aside": None,
    "transforms": None,
    "adapts": None,
    "applies": None,
    "resets": None,
    "forgets": None,
    "new_param": None,
    "step_none": None,
    "step_hook": "the job has a hook on its optimizer's steps",
    "step_hook_of_all": "the job has a hook on its optimizer's steps",
    "beside": "several threads are in backward at once",   # nothing waits any more: the last
}


class LayerTurns(LayerJobs):
    script = SCRIPT

    def compare(self, kinds, mode="exact", **env):
        """The results and the log. What this PyTorch does not have is left out."""
        plain, _ = self.results(2, kinds)
        if not plain:
            self.skipTest("this PyTorch has none of it")
        results, job = self.under(mode, 2, kinds, **env)
        self.assertEqual(list(results), list(plain))
        for kind, result in results.items():
            with self.subTest(kind=kind):
                self.assertEqual(result["digest"], plain[kind]["digest"])
        self.assertEqual(re.findall("stands down.*", job.outputs()), [])
        return results, job.outputs()

    def test_each_keeps_the_bits_of_plain(self):
        kinds = os.environ["KINDS"].split(",") if "KINDS" in os.environ else list(SAID)
        results, log = self.compare(kinds, DEFT_LAYERWISE="auto")
        for kind, result in results.items():
            with self.subTest(kind=kind):
                self.assertGreater(result["forwards"], 8)
                if SAID[kind]:
                    self.assertRegex(log, SAID[kind])
        self.assertNotIn("waited for too early", log)

    def test_parameters_are_swapped_where_the_job_sums_by_itself(self):
        _, log = self.compare(["converts_by_hand"], mode="deft")
        self.assertIn(SAID["converts"], log)

    def test_a_module_of_the_job_that_fails_when_it_is_asked(self):
        """The companion ends then, and not the job."""
        plain, _ = self.results(2, ["shy"])
        results, job = self.under("exact", 2, ["shy"], DEFT_LAYERWISE="auto")
        self.assertEqual(results["shy"]["digest"], plain["shy"]["digest"])
        self.assertGreater(results["shy"]["forwards"], 4)
        self.assertRegex(job.outputs(), "stands down.*RuntimeError.*: a test's")

    def test_what_is_compiled_reads_gradients(self):
        for kind in ("step_compiled", "clip_compiled"):
            _, log = self.compare([kind], mode="deft")
            self.assertIn("a gradient is read between backward and step", log)


support.main(__name__)
