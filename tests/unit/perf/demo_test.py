# SPDX-License-Identifier: Apache-2.0
"""What the demo says of its runs, in words and on its page. Its lower bound has a compute that was
measured while the same cores carried bytes. Runs no job."""

import contextlib
import html
import io
import os
import platform
import re
import tempfile
import time
import types
import unittest
import unittest.mock

from perf.demo import report, timeline
from perf.demo import run as demo


def phase(took, **more):
    times = {"raw": [took] * 4, "median": took, "p10": took, "p90": took}
    return {"job": {"loss": 0.5, "test_accuracy": 0.9, "iteration_ms": times, "iterations": 4,
                    "epoch_losses": [0.5], "checksum": 0, "replicas_equal": True},
            "traffic": [{"eth0": {"sent": 1000}}], "transport": "", "seconds": 1.0, **more}


OBSERVED = {"buckets": [{"bytes": 1000, "ready_ms": {"median": 5.0},
                         "transfer_ms": {"median": 2.0}}],
            "iterations": {"compute_ms": {"median": 10.0}}}
PHASES = {"plain": phase(20.0),
          "exact": phase(15.0, mode="exact", observed=[OBSERVED], complaints=[])}


class Conclusion(unittest.TestCase):
    def conclude(self, rates):
        """What is printed, and the page."""
        with tempfile.TemporaryDirectory() as folder:
            options = demo.parse(["--modes", "exact", "--links", ",".join(rates)])
            network = types.SimpleNamespace(shaped=True, kind="namespaces", hosts=[],
                                            describe=lambda: "two <hosts>")
            said = io.StringIO()
            with (contextlib.redirect_stdout(said),
                  unittest.mock.patch.object(demo, "judge",
                                             lambda *_: (True, {"exact": "bitwise"}))):
                demo.conclude(options, network, "", {name: {**one} for name, one in PHASES.items()},
                              folder, 1.0)
            with open(os.path.join(folder, "timeline.html"), encoding="utf-8") as file:
                return said.getvalue(), file.read()

    def test_it_says_what_it_is_of(self):
        printed, page = self.conclude(["400mbit"])
        self.assertIn(report.BOUND, printed)
        self.assertIn(html.escape(report.BOUND), page)
        for text in (printed, page):
            self.assertNotIn("can be shorter", text)
        for word in ("beside the transfers", "carry the bytes", "come below it"):
            self.assertIn(word, report.BOUND)

    def test_without_one_nothing_is_said_of_it(self):
        self.assertNotIn(report.BOUND, self.conclude(["unshaped"])[0])

    def test_the_page_says_what_came_out_where_when_and_with_which_settings(self):
        page = self.conclude(["400mbit", "200mbit"])[1]
        self.assertIn("<strong>Every run ended as it should: mode exact took 0.75 of the time "
                      "without deft, with equal losses.</strong>", page)
        for words in (time.strftime("%F"), platform.node(), "two &lt;hosts&gt;",
                      "400mbit, 200mbit", "batch 32", 'name="viewport"'):
            self.assertIn(words, page)

    def test_the_verdict_says_what_went_wrong(self):
        for good, same, shaped, words in (
                (False, "no", True,
                 "NOT every run ended as it should, see what was printed: mode exact took 0.75 of "
                 "the time without deft, with other losses."),
                (True, "within 2 %", False, "Every run ended as it should: mode exact ran, with "
                                            "losses within 2 %.")):
            self.assertEqual(report.verdict_sentence(PHASES, good, {"exact": same}, shaped), words)

    def test_time_to_a_loss_counts_iterations_by_epochs(self):
        for losses, loss, iterations in (([4.0, 2.0, 1.0], 1.0, 30), ([4.0, 2.0, 1.0], 1.5, 25),
                                         ([4.0, 2.0, 1.0], 4.5, 10),
                                         ([4.0, 1.0, 2.0], 2.0, 10 + 20 / 3)):
            run = {"job": {"epoch_losses": losses, "iterations": 30}}
            self.assertAlmostEqual(report.iterations_to(run, loss), iterations, msg=str(losses))
        self.assertRegex(self.conclude(["400mbit"])[0], r"time to loss 0\.500, s +0\.1 +0\.1")

    def test_a_bucket_has_a_colour_of_its_own(self):
        page = self.conclude(["400mbit"])[1]
        drawn = re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"[^>]*><title>(\w+)', page)
        buckets = {colour for colour, what in drawn if what == "bucket"}
        others = {colour for colour, what in drawn if what != "bucket"}
        self.assertEqual(buckets, {timeline.BUCKETS[0]})
        self.assertGreaterEqual(len(others), 5, "compute, waiting, link, iteration, bound")
        self.assertEqual(others & set(timeline.BUCKETS), set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
