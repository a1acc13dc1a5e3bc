# SPDX-License-Identifier: Apache-2.0
"""What the sweep of trainings computes: deliveries, equal time, verdicts, and how it goes on."""

import json
import math
import os
import tempfile
import types
import unittest

from vectors import Vector

from perf.accuracy import delivery, sweep, sweep_report


def answer(deliveries, period=1, buckets=(400, 400), factors=(), **more):
    """A plan's; each delivery (iteration, bucket, begin, end, first, count)."""
    names = ("iteration", "bucket", "begin", "end", "first", "count")
    return {"plan": {"period": period, "bucket_bytes": list(buckets),
                     "deliveries": [dict(zip(names, one)) for one in deliveries],
                     "predicted": {"iteration_s": 0.1, "baseline_s": 0.15}},
            "factors": [[list(key), list(value)] for key, value in factors], "bound": None, **more}


def whole(first, count=1, iteration=0):
    return [(iteration, bucket, 0, 400, first, count) for bucket in range(2)]


def delivered(asked, gradients, sizes=(1, 1)):
    carried = delivery.Delivery(asked, list(sizes))
    return [carried.next(Vector([float(one)] * sum(sizes))) for one in gradients]


class Deliveries(unittest.TestCase):
    def updates(self, *arguments, **named):
        return [list(update) for update, _ in delivered(*arguments, **named)]

    def test_late_sums_come_an_iteration_later_and_the_first_brings_nothing(self):
        self.assertEqual(self.updates(answer(whole(-1)), [1, 2, 3]), [[0, 0], [1, 1], [2, 2]])

    def test_of_mixed_ages_only_a_part_is_late(self):
        asked = answer([(0, 0, 0, 400, 0, 1), (0, 1, 0, 400, -1, 1)])
        self.assertEqual(self.updates(asked, [1, 2, 3]), [[1, 0], [2, 1], [3, 2]])

    def test_a_part_of_a_bucket_is_late(self):
        asked = answer([(0, 0, 0, 100, 0, 1), (0, 0, 100, 400, -1, 1)], buckets=[400])
        self.assertEqual(self.updates(asked, [1, 2], sizes=[4]), [[1, 0, 0, 0], [2, 1, 1, 1]])

    def test_merged_sums_come_once_and_zeros_between(self):
        asked = answer(whole(0, 2, iteration=1), period=2)
        found = delivered(asked, [1, 2, 3, 4])
        self.assertEqual([list(update) for update, _ in found], [[0, 0], [3, 3], [0, 0], [7, 7]])
        self.assertEqual([merged for _, merged in found], [0, 2, 0, 2])

    def test_every_gradient_comes_once(self):
        """k = 3/2: generations of one and of two."""
        asked = answer([*whole(0, 1, iteration=0), *whole(1, 2, iteration=2)], period=3)
        total = sum(update[0] for update in self.updates(asked, range(1, 10)))
        self.assertEqual(total, sum(range(1, 10)))

    def test_late_sums_are_extrapolated_from_those_before(self):
        factors = [((1, 1, 1, 0), (2, -1, 0)), ((1, 1, 0, 0), (1, 0, 0)),
                   ((1, 1, 1, 1), (3, -3, 1))]
        asked = answer(whole(-1), factors=factors)
        # The parabola through 1, 4, 9 goes on with 16.
        self.assertEqual([update[0] for update in self.updates(asked, [1, 4, 9, 16, 25])],
                         [0, 1, 2 * 4 - 1, 3 * 9 - 3 * 4 + 1, 25])

    def test_what_is_not_sent_is_kept_less_at_first(self):
        asked = answer(whole(0, 2, iteration=1), period=2, residual=True)
        self.assertEqual(self.updates(asked, [8, 1])[1], [9, 9], "g + e, of a whole bucket")
        asked = answer(whole(0, 3, iteration=2), period=3, residual=True)
        self.assertEqual(self.updates(asked, [8, 1, 1])[2], [6, 6], "1 + (1 + 8 / 2)")
        self.assertEqual([delivery.kappa(*one) for one in ((0, 2), (50, 2), (999, 2), (0, 9))],
                         [0.5, 0.6, 1.0, 0.2])

    def test_plain_is_known_by_what_is_delivered(self):
        cut = [(0, 0, 0, 100, 0, 1), (0, 0, 100, 400, 0, 1), (0, 1, 0, 400, 0, 1)]
        self.assertEqual(delivery.identity(answer(cut)), "plain")
        late = delivery.identity(answer(whole(-1)))
        self.assertNotEqual(late, "plain")
        self.assertNotEqual(late, delivery.identity(answer(whole(0, 2, 1), period=2)))
        predicted = answer(whole(-1), factors=[((1, 1, 1, 0), (2, -1, 0))])
        self.assertNotEqual(late, delivery.identity(predicted))


def training(points, **more):
    return {"points": [[at, loss, loss, 0.5] for at, loss in points], "in_force": [],
            "ended": [], "ruined_at": None, "rate_curvature": 0.05, **more}


class EqualTime(unittest.TestCase):
    def test_iterations_in_the_time_of_plain(self):
        """Twice as fast from iteration 52 on; and only until iteration 60."""
        on = training([], in_force=[[52, None]])
        self.assertEqual(sweep_report.iterations_in(52, on, 0.5), 52)
        self.assertEqual(sweep_report.iterations_in(152, on, 0.5), 252)
        fell = training([], in_force=[[52, 60]])
        self.assertEqual(sweep_report.iterations_in(152, fell, 0.5), 156)
        self.assertEqual(sweep_report.iterations_in(57, fell, 0.5), 61)
        self.assertEqual(sweep_report.iterations_in(30, on, 0.5), 30)
        self.assertEqual(sweep_report.iterations_in(152, training([]), 0.5, True), 252)
        again = training([], in_force=[[52, 60], [80, None]])
        self.assertEqual(sweep_report.iterations_in(86, again, 0.5), 100)

    def test_loss_between_two_measurements(self):
        record = training([(20, 2.0), (40, 1.0)])
        self.assertEqual(sweep_report.loss_at(record, 30), 1.5)
        self.assertEqual(sweep_report.loss_at(record, 10), 2.0)
        both = training([]) | {"points": [[20, 1.0, 5.0, 0.5]]}
        self.assertEqual([sweep_report.loss_at(both, 20, which) for which in (1, 2)], [1.0, 5.0])
        self.assertEqual(sweep_report.loss_at(record, 99), 1.0)
        lost = training([(20, 2.0), (40, math.nan)], ruined_at=35)
        self.assertEqual(sweep_report.loss_at(lost, 99), sweep_report.RUINED)

    def test_a_plan_that_the_steps_do_not_bear_is_not_taken(self):
        first, last = {"bound": 0.1}, {"bound": None}
        self.assertIs(sweep_report.taken([first, last], 0.05), first)
        self.assertIs(sweep_report.taken([first, last], 0.2), last)
        self.assertIs(sweep_report.taken([first, last], None), first, "it was not measured")

    def lines(self, late_losses, plain_losses=(1.0, 1.1, 0.9)):
        cell = {"model": "digits", "optimizer": "adam", "batch": 32, "rate": 0.1}
        tries = [{"delivery": "late", "bound": 0.1, "iteration_s": 0.1, "baseline_s": 0.2,
                  "max_delay": 1, "max_merge": 1}]
        lines = [{"what": "plan", "model": "digits", "optimizer": "adam", "mode": "deft",
                  "coverage": 1.0, "tries": tries}]
        for seed, (plain, late) in enumerate(zip(plain_losses, late_losses)):
            lines += [{"what": "training", **cell, "seed": seed, "delivery": "plain",
                       "guarded": False, **training([(52, 3.0), (400, plain)])},
                      {"what": "training", **cell, "seed": seed, "delivery": "late",
                       "guarded": True,
                       **training([(52, 3.0), (400, late)], in_force=[[52, None]])}]
        return lines, tuple(cell.values())

    def word(self, losses):
        lines, cell = self.lines(losses)
        results = sweep_report.Results(lines)
        return sweep_report.word(results.compare(cell, "deft", 1.0, 226))

    def test_ahead_level_and_behind(self):
        self.assertEqual(self.word([1.0, 1.1, 0.9]), "ahead", "the same curve in half of the time")
        self.assertEqual(self.word([5.0, 5.1, 4.9]), "behind")
        self.assertEqual(self.word([1.9, 3.2, 1.0]), "level")
        self.assertEqual(self.word([1.6, 2.2, 2.0]), "level", "a little ahead in the mean")

    def test_the_pages_say_so(self):
        lines, _ = self.lines([5.0, 5.1, 4.9])
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "sweep")
            sweep_report.write(out, lines, {"iterations": {"digits": 226}, "command": "x"})
            with open(out + ".md", encoding="utf-8") as file:
                page = file.read()
            with open(out + ".html", encoding="utf-8") as file:
                pictures = file.read()
        self.assertIn("| deft | 1 | 1 | 0 | 0 | 1 | 0 |", page)
        self.assertIn("**+", page)
        self.assertIn("<polyline", pictures)


class Resumed(unittest.TestCase):
    def test_a_stopped_sweep_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "sweep")
            line = {"what": "training", "model": "digits", "optimizer": "adam", "batch": 32,
                    "rate": 0.1, "seed": 1, "delivery": "plain", "guarded": False}
            with open(out + ".jsonl", "w", encoding="utf-8") as file:
                file.write(json.dumps(line) + '\n{"what": "trai')
            options = types.SimpleNamespace(out=out, report=False, minutes=None)
            begun = sweep.Sweep(options)
            self.assertIn(begun.key(line), begun.done)
            begun.keep({**line, "seed": 2})
            with open(out + ".jsonl", encoding="utf-8") as file:
                kept = [json.loads(one) for one in file]
        self.assertEqual([one["seed"] for one in kept], [1, 2])


if __name__ == "__main__":
    unittest.main()
