# SPDX-License-Identifier: Apache-2.0
"""The library's answers to the sweep of trainings: `accuracy_decisions_test.py BUILD`."""

import sys
import unittest

from perf.accuracy import decisions, delivery

BUILD = sys.argv.pop()
PROFILE = {"ranks": 2, "forward_ms": 30.0, "backward_ms": 60.0,
           "buckets": [{"bytes": 25 << 20, "ready_ms": 15.0 * (number + 1), "forward_ms": 7.5}
                       for number in range(4)]}


class Asked(unittest.TestCase):
    def plans(self, coverage=1.0, policy=None, **settings):
        return decisions.Decisions(BUILD).plans(decisions.with_coverage(PROFILE, coverage),
                                                {"DEFT_MODE": "deft", **settings}, policy)

    def test_by_default_nothing_proven_is_late(self):
        self.assertEqual([delivery.identity(one) for one in self.plans(DEFT_OPTIMIZER="adam")],
                         ["plain"])

    def test_a_cap_allows_what_it_names_at_a_price(self):
        """Momentum 0.9, late by one, predicted by the parabola: a quarter of 0.488."""
        first, *_, last = self.plans(DEFT_OPTIMIZER="sgd:momentum=0.9", DEFT_MAX_DELAY="1")
        self.assertEqual(first["prediction"], "quad")
        self.assertAlmostEqual(first["bound"], 0.122, delta=0.002)
        self.assertEqual((first["plan"]["predicted"]["max_delay"],
                          first["plan"]["predicted"]["max_merge"]), (1, 1))
        self.assertIn([[1, 1, 1, 1], [3, -3, 1]], first["factors"])
        self.assertEqual((delivery.identity(last), last["bound"]), ("plain", None))

    def test_layers_that_wait_change_nothing_but_time(self):
        only, = self.plans(DEFT_MODE="exact", DEFT_LAYERWISE="auto")
        self.assertEqual(delivery.identity(only), "plain")
        predicted = only["plan"]["predicted"]
        self.assertLess(predicted["iteration_s"], 0.95 * predicted["baseline_s"])

    def test_a_policy_is_the_planners(self):
        only, = self.plans(1.6, "covap")
        self.assertEqual(only["plan"]["policy"], "covap")
        self.assertNotEqual(delivery.identity(only), "plain")

    def test_what_is_no_profile_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "ranks"):
            decisions.Decisions(BUILD).plans({}, {})


class Watching(unittest.TestCase):
    def guard(self):
        watch = decisions.Guard(BUILD, {"DEFT_MODE": "deft", "DEFT_OPTIMIZER": "adam"})
        self.addCleanup(watch.close)
        late = Asked().plans(DEFT_OPTIMIZER="adam", DEFT_MAX_DELAY="1")[0]["plan"]
        self.assertEqual(watch.tell(iteration=10, plan=late)["action"], "keep")
        return watch

    def test_values_that_are_not_finite_end_the_plan(self):
        watch = self.guard()
        sound = {"bytes": 400, "merged": 1, "not_finite": 0, "reduced": 4.0, "local": [1.0, 1.0]}
        self.assertEqual(watch.tell(iteration=11, **sound)["action"], "keep")
        decision = watch.tell(iteration=12, **{**sound, "reduced": None, "not_finite": 3})
        self.assertEqual((decision["action"], decision["act"]), ("fall back", True))
        self.assertIn("3 values that are not finite", decision["reason"])
        self.assertEqual(watch.tell(iteration=13, plan=None)["action"], "keep")
        self.assertEqual(watch.tell(iteration=14 + 200)["action"], "resume")

    def test_swings_end_the_plan(self):
        watch = self.guard()
        swing = {"bytes": 400, "merged": 1, "not_finite": 0, "reduced": 4.0,
                 "cosine_before": 0.8, "cosine_earlier": -0.3}
        actions = [watch.tell(iteration=11 + number, **swing)["action"] for number in range(20)]
        self.assertEqual(actions, ["keep"] * 19 + ["fall back"])


if __name__ == "__main__":
    unittest.main()
