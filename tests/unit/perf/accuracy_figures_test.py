# SPDX-License-Identifier: Apache-2.0
"""What the accuracy benchmark computes from its trainings: tables, verdicts, deliveries."""

import json
import os
import re
import tempfile
import types
import unittest

from vectors import Vector

from perf.accuracy import report as accuracy_report
from perf.accuracy import run as accuracy
from perf.accuracy import swings

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def line(policy, value, seed=1, **more):
    return {"model": "tiny-mlp", "optimizer": "adam", "policy": policy, "seed": seed,
            "accuracy": value, "epoch_losses": [1.0, 0.1], "epoch_accuracies": [0.5, value],
            "replicas_equal": True, "checksum": "0", "iterations": 300, **more}


class Accuracy(unittest.TestCase):
    def test_a_cell_under_plain_says_so(self):
        plain = [line("plain", 0.97 + 0.002 * seed, seed) for seed in range(5)]
        same = [line("delay1", 0.968 + 0.002 * seed, seed) for seed in range(5)]
        worse = [line("delay1", 0.94 + 0.002 * seed, seed) for seed in range(5)]
        self.assertFalse(accuracy_report.below(same, plain))
        self.assertTrue(accuracy_report.below(worse, plain))
        self.assertIn("**below**", accuracy_report.cell(worse, plain))
        self.assertNotIn("below", accuracy_report.cell(same, plain))
        self.assertIn("REPLICAS DIFFER",
                      accuracy_report.cell([line("delay1", 0.9, replicas_equal=False)] * 5, plain))
        self.assertIn("guard acted in 1",
                      accuracy_report.cell([line("delay1", 0.97, plan={"guard_decisions": 2})],
                                           plain))

    def test_the_default_does_not_merge_plain_sgd(self):
        self.assertTrue(accuracy_report.may_choose("merge2", "adamw"))
        self.assertFalse(accuracy_report.may_choose("merge2", "momentum"))
        self.assertTrue(accuracy_report.may_choose("merge2", "nesterov"))
        self.assertFalse(accuracy_report.may_choose("delay1+predict", "nesterov"))
        self.assertFalse(accuracy_report.may_choose("merge2", "sgd"))
        self.assertFalse(accuracy_report.may_choose("delay1+predict", "sgd"))
        self.assertTrue(accuracy_report.may_choose("delay1+predict", "momentum"))
        self.assertFalse(accuracy_report.may_choose("delay1", "momentum"))

    def test_epochs_to_accuracy(self):
        plain = [line("plain", 0.97)]
        self.assertEqual(accuracy_report.time_to_accuracy([line("delay1", 0.961)], plain), "2.0")
        self.assertEqual(accuracy_report.time_to_accuracy([line("delay1", 0.95)], plain), "never")
        self.assertEqual(accuracy_report.time_to_accuracy([line("delay1", 0.961),
                                                           line("delay1", 0.9)], plain),
                         "2.0 (1 of 2 never)")

    def time_table(self, plain, runs):
        """The line that delay1 gets where an iteration under it takes half of plain's time; 30
        iterations an epoch."""
        with tempfile.TemporaryDirectory() as folder:
            options = types.SimpleNamespace(out=os.path.join(folder, "a"), models=["tiny-mlp"],
                                            optimizers=["adam"], policies=["plain", "delay1"],
                                            seeds=len(plain))
            with open(os.path.join(folder, "policies.json"), "w", encoding="utf-8") as file:
                json.dump({"relative": {"plain": {"1": 1.0}, "delay1": {"1": 0.5}}}, file)
            shape = {"iterations": 300, "epoch_losses": [0.1]}
            # in force from epoch 2 on
            plan = {"iterations": 300 - 60 - 1, "delivered": 9, "guard_decisions": 0}
            lines = [line("plain", 0.9, seed,
                          **{**shape,
                             "epoch_accuracies": [0.9 * (n + 1 >= epoch) for n in range(10)]})
                     for seed, epoch in enumerate(plain, 1)]
            lines += [line("delay1", 0.9, seed, plan=plan,
                           **{**shape,
                              "epoch_accuracies": [0.9 * (n + 1 >= epoch) for n in range(10)]})
                      for seed, epoch in enumerate(runs, 1)]
            accuracy_report.write(options, lines,
                                  {"models": accuracy.RATES, "warm_up": 60,
                                   "epochs": accuracy.EPOCHS, "batch": accuracy.BATCH})
            with open(options.out + ".md", encoding="utf-8") as file:
                return next(text for text in reversed(file.read().splitlines())
                            if text.startswith("| delay1 |"))

    def test_only_iterations_under_the_plan_have_its_speed(self):
        never = 11
        for plain, runs, expected in (
                # 2 epochs as plain, 6 in half the time: 5 of 8
                ([8], [8], "| 0.62 | 1 of 1 |"),
                ([2, 2], [2, 2], "| - | 0 of 1 |"),      # plain is there before the plan
                ([8, 8, 8], [8, 8, never], "| 0.62 | 1 of 1 |"),
                ([8, 8, 8], [8, never, never], "| never | 1 of 1, 1 never |"),
                ([8, 8, 8], [never] * 3, "| never | 1 of 1, 1 never |"),
                ([never] * 3, [8, 8, 8], "| - | 0 of 1 |")):
            with self.subTest(plain=plain, runs=runs):
                self.assertEqual(self.time_table(plain, runs), "| delay1 " + expected)

    def test_cells_that_cannot_show_a_loss_are_counted_apart(self):
        # 30 iterations an epoch, the plan in force from epoch 2 on: one model's plain is at its
        # target by then.
        plan = {"iterations": 300 - 60 - 1, "delivered": 9, "guard_decisions": 0}
        lines = [line(policy, 0.9 + 0.001 * seed, seed, model=model,
                      epoch_accuracies=[0.9 * (n >= first) for n in range(10)],
                      **({"plan": plan} if policy != "plain" else {}))
                 for model, first in (("tumor-mlp", 0), ("tiny-mlp", 5))
                 for policy in ("plain", "delay1+predict") for seed in (1, 2, 3)]
        options = types.SimpleNamespace(models=["tumor-mlp", "tiny-mlp"], optimizers=["adam"],
                                        policies=["plain", "delay1+predict"])
        text = accuracy_report.summary(options, lines, lambda *key: [
            one for one in lines if (one["model"], one["optimizer"], one["policy"]) == key], 60)
        self.assertIn("2 cells, 2 within two standard errors of plain or fallen back. "
                      "1 of them can tell, 1 of these within. ", text[1])

    def test_time_under_a_plan_that_the_guard_ended(self):
        one = line("delay1", 0.9, plan={"iterations": 30, "delivered": 9, "guard_decisions": 1},
                   epoch_accuracies=[0.0] * 7 + [0.9] * 3)
        self.assertEqual(accuracy_report.time_to(one, 0.9, 0.5, 60), 7.5)
        self.assertEqual(accuracy_report.time_to(line("plain", 0.9), 0.9, 0.5, 60), 2)

    def test_pinned(self):
        full = 300 - accuracy.WARM_UP
        self.assertTrue(accuracy.pinned(line("delay1", 0.9,
                                             plan={"iterations": full - 1, "guard_decisions": 0})))
        self.assertFalse(accuracy.pinned(line("delay1", 0.9,
                                              plan={"iterations": full - 2, "guard_decisions": 0})))
        self.assertFalse(accuracy.pinned(line("delay1", 0.9)))
        self.assertTrue(accuracy.pinned(line("plain", 0.9)))

    def test_exact_has_to_carry_gradients(self):
        self.assertFalse(accuracy.pinned(line("exact", 0.9)))
        self.assertFalse(accuracy.pinned(line("exact", 0.9,
                                              plan={"switched": 1, "iterations": 86,
                                                    "delivered": 0})))
        self.assertTrue(accuracy.pinned(line("exact", 0.9,
                                             plan={"switched": 1, "iterations": 86,
                                                   "delivered": 300})))
        # Mode exact takes no plan by name, and over one network it forwards calls as small as
        # these.
        self.assertEqual(accuracy.POLICIES["exact"]["DEFT_MODE"], "deft")
        self.assertEqual(accuracy.POLICIES["exact"]["DEFT_PLAN"], "delay0")
        self.assertEqual(accuracy.POLICIES["exact"]["DEFT_LANES"], "Socket")

    def test_exact_without_a_plan_is_counted_apart(self):
        plan = {"switched": 1, "iterations": 200, "delivered": 300, "guard_decisions": 0}
        lines = [line("plain", 0.9, seed) for seed in (1, 2, 3, 4)]
        lines += [line("exact", 0.9, seed, pinned=True,
                       plan={"switched": seed - 1, "iterations": 0, "delivered": 0})
                  for seed in (1, 2)]
        lines += [line("exact", 0.9, 3, plan=plan), line("exact", 0.9, 4, plan=plan, checksum="1"),
                  line("delay1", 0.9, pinned=False, plan=plan)]
        options = types.SimpleNamespace(models=["tiny-mlp"], optimizers=["adam"],
                                        policies=["plain", "exact", "delay1"])
        text = accuracy_report.summary(options, lines, lambda *key: [
            one for one in lines if (one["model"], one["optimizer"], one["policy"]) == key], 44)
        self.assertIn("* exact: no plan in force (calls forwarded), the same bits as plain in "
                      "2 of 2 trainings.", text)
        self.assertIn("* exact: a plan carried gradients, the same bits as plain in "
                      "1 of 2 trainings.", text)
        self.assertIn("* delayed, merged and covap: the plan came into force at the iteration it "
                      "was to in 0 of 1.", text)

    def test_exact_starts_its_job_over_two_networks(self):
        started = []

        def start(job, env, *_):
            started.append((job, env))
            return 0, "", ""
        options = types.SimpleNamespace(python="python3", build="build", guard="strict", timeout=1)
        for policy in ("exact", "delay1"):
            accuracy.run(options, types.SimpleNamespace(run=start), "adam", policy, [])
        (exact, environment), (_, late) = started
        self.assertEqual((environment["DEFT_INTERFACES"], late["DEFT_INTERFACES"]),
                         ("127.0.0.1@100mbit", "lo"))
        self.assertEqual((environment["DEFT_LANES"], late.get("DEFT_LANES")), ("Socket", None))
        self.assertGreater(int(exact[exact.index("--warm-up") + 1]), accuracy.WARM_UP)

    def test_tables_and_curves(self):
        with tempfile.TemporaryDirectory() as folder:
            options = types.SimpleNamespace(out=os.path.join(folder, "a"), models=["tiny-mlp"],
                                            optimizers=["adam"],
                                            policies=["plain", "exact", "delay1"], seeds=1)
            lines = [line("plain", 0.97), line("exact", 0.97),
                     line("delay1", 0.96, plan={"guard_decisions": 0})]
            accuracy_report.write(options, lines,
                                  {"models": accuracy.RATES, "warm_up": 44,
                                   "epochs": accuracy.EPOCHS, "batch": accuracy.BATCH})
            with open(options.out + ".md", encoding="utf-8") as file:
                text = file.read()
            self.assertIn("replicas equal in 3 of 3", text)
            self.assertIn("exact: no plan in force (calls forwarded), "
                          "the same bits as plain in 1 of 1", text)
            self.assertIn("| delay1 | 96.0 ± 0.0 (0.100) |", text)
            with open(options.out + ".svg", encoding="utf-8") as file:
                self.assertEqual(file.read().count("<polyline"), 3)


    def test_a_guard_that_acted_excuses_its_own_trainings_only(self):
        with tempfile.TemporaryDirectory() as folder:
            options = types.SimpleNamespace(out=os.path.join(folder, "a"), models=["tiny-mlp"],
                                            optimizers=["adam"], policies=["plain", "delay1"],
                                            seeds=3)
            # as plain, under it, lost
            for silent, mentioned in ((0.96, False), (0.92, True), (0.80, True)):
                lines = [dict(line("plain", 0.96 + 0.001 * seed), seed=seed) for seed in range(3)]
                lines += [dict(line("delay1", silent + 0.001 * seed,
                                    plan={"guard_decisions": int(seed == 0)}), seed=seed)
                          for seed in range(3)]
                lines[3]["accuracy"] = 0.5  # where the guard did act
                accuracy_report.write(options, lines,
                                      {"models": accuracy.RATES, "warm_up": 44,
                                       "epochs": accuracy.EPOCHS, "batch": accuracy.BATCH})
                with open(options.out + ".md", encoding="utf-8") as file:
                    self.assertEqual(
                        "where the guard did not act: tiny-mlp adam delay1"
                        in " ".join(file.read().split()),
                        mentioned, silent)


class Swings(unittest.TestCase):
    """Numbers stand for gradients."""

    def deliver(self, policy, optimizer="adam", count=8):
        delivery = swings.Delivery(policy, optimizer)
        found = [delivery.next(Vector([at * at])) for at in range(1, swings.WARM_UP + count + 1)]
        return [(update[0], sent and sent[0]) for update, sent in found[swings.WARM_UP:]]

    def test_deliveries(self):
        """What update t gets, and the sum that is sent in it: of the squares of 45, 46, ..."""
        g = [(swings.WARM_UP + 1 + at) ** 2 for at in range(8)]
        self.assertEqual(self.deliver("plain"), [(value, value) for value in g])
        self.assertEqual(self.deliver("delay1"), list(zip([0, *g[:-1]], g)))
        self.assertEqual(self.deliver("merge2", count=4),
                         [(0, None), (g[0] + g[1], g[0] + g[1]), (0, None),
                          (g[2] + g[3], g[2] + g[3])])
        self.assertEqual(self.deliver("merge2late", count=4),
                         [(0, None), (0, g[0] + g[1]), (g[0] + g[1], None), (0, g[2] + g[3])])

    def test_predictions(self):
        g = [(swings.WARM_UP + 1 + at) ** 2 for at in range(8)]
        quad = [delivered for delivered, _ in self.deliver("delay1+predict", "momentum")]
        self.assertEqual(quad[:3], [0, g[0], 2 * g[1] - g[0]])
        self.assertEqual(quad[3:], g[3:])  # squares lie on a parabola
        lead = [delivered for delivered, _ in self.deliver("delay1+predict", "adam")]
        self.assertAlmostEqual(lead[2], g[1] + 0.9 * (g[1] - g[0]))

    def test_the_rule_is_the_guards(self):
        with open(os.path.join(ROOT, "shim", "guard", "guard.h"), encoding="utf-8") as file:
            guard = file.read()
        with open(os.path.join(ROOT, "shim", "executor", "correlation.h"),
                  encoding="utf-8") as file:
            back = re.search(r"kBack = (\d+);", file.read())
        values = {name: float(re.search(rf" {name} = ([0-9.]+);", guard).group(1))
                  for name in ("swing", "swing_low", "swing_earlier", "swing_window")}
        self.assertEqual(values,
                         {"swing": swings.SWING, "swing_low": swings.SWING_LOW,
                          "swing_earlier": swings.EARLIER, "swing_window": swings.WINDOW})
        self.assertEqual(int(back.group(1)), swings.BACK)


if __name__ == "__main__":
    unittest.main()
