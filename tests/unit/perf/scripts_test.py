# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks compute from their samples, and what they say about wrong usage. Runs no
benchmark."""

import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest

from perf.accuracy import report as accuracy_report
from perf.accuracy import run as accuracy
from perf.accuracy import swings
from perf.common import bounds, iterations
from perf.e2e import run as e2e
from perf.links import slices
from perf.policies import run as policies

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))



class Slices(unittest.TestCase):
    def test_neighbours_are_paired(self):
        # The machine halves its speed in the middle: ratios of neighbours do not see it.
        theirs = [(10.0, 2.0)] * 4 + [(5.0, 4.0)] * 4
        mine = [(9.0, 2.2)] * 4 + [(4.5, 4.4)] * 4
        for which, expected in ((0, 0.9), (1, 1.1)):
            for value in slices.ratio(mine, theirs, which):
                self.assertAlmostEqual(value, expected)


class Iterations(unittest.TestCase):
    def test_periods_are_taken_whole(self):
        # Under a plan that merges two: 80 ms and 120 ms take turns. Their middle is 80, 120 or 100
        # by chance.
        self.assertEqual(iterations.typical([120, 80, 120] * 1, 2), 100)
        self.assertEqual(iterations.typical([500, *([80, 120] * 15)], 2), 100)
        self.assertEqual(iterations.typical([80, 80, 90, 120, 120]), 90)
        self.assertEqual(iterations.typical([80, 120], 4), 100)   # less than a period
        self.assertEqual(iterations.typical([]), 0)

    def test_a_plan_that_is_not_in_force_has_no_period(self):
        self.assertEqual(iterations.period_of({"state": "running", "period": 2}), 2)
        self.assertEqual(iterations.period_of({"state": "resting", "period": 2}), 1)
        self.assertEqual(iterations.period_of({}), 1)


class Bounds(unittest.TestCase):
    def test_costs(self):
        # Two ranks send what a message holds once; four ranks one and a half times.
        self.assertAlmostEqual(bounds.costs([125_000_000], 1.0, 2)[0], 1.0)
        self.assertAlmostEqual(bounds.costs([125_000_000], 2.0, 4)[0], 0.75)

    def test_synchronous(self):
        self.assertAlmostEqual(bounds.synchronous(10, [4, 9], [2, 3]), 12)   # the last one is late
        # the first one holds the second up
        self.assertAlmostEqual(bounds.synchronous(10, [4, 9], [7, 3]), 14)
        self.assertAlmostEqual(bounds.synchronous(10, [4, 6], [2, 3]), 10)   # all hidden

    def test_delayed(self):
        self.assertAlmostEqual(bounds.delayed(10, [7, 8], 1), 15)
        self.assertAlmostEqual(bounds.of_mode("covap", 10, [4, 9], [9, 15]), 12)
        self.assertAlmostEqual(bounds.of_mode("exact", 10, [4, 9], [9, 15]), 28)

    def test_late_or_merged(self):
        # late, all hidden
        self.assertAlmostEqual(bounds.of_mode("deft", 10, [4, 9], [4, 6]), 10)
        # late: the volume; merged 13
        self.assertAlmostEqual(bounds.of_mode("deft", 10, [4, 9], [5, 7]), 12)
        # merged: 10 and 13 in turns; late 12
        self.assertAlmostEqual(bounds.of_mode("deft", 10, [1, 2], [5, 7]), 11.5)
        # merged: 10 and 28 in turns; late 24
        self.assertAlmostEqual(bounds.of_mode("deft", 10, [4, 9], [9, 15]), 19)

    def test_carried(self):
        ready, cost = [4, 9], [2, 3]
        self.assertAlmostEqual(bounds.carried(10, ready, cost, 0),
                               bounds.synchronous(10, ready, cost))
        # The first transfer takes half of the core for two seconds, so that the second bucket is
        # ready one second later.
        self.assertAlmostEqual(bounds.carried(10, ready, cost, 2.5), 13)
        # all hidden, and half of three seconds dearer
        self.assertAlmostEqual(bounds.carried(10, [4, 6], [2, 1], 1.5), 11.5)
        # compute, slow for ten seconds, ends last
        self.assertAlmostEqual(bounds.carried(10, [4, 5], [4, 6], 5), 15)
        self.assertAlmostEqual(bounds.of_mode_carried("exact", 10, ready, cost, 2.5), 13)
        self.assertAlmostEqual(bounds.of_mode_carried("deft", 10, ready, cost, 0),
                               bounds.of_mode("deft", 10, ready, cost))
        # merged: 13 and 10 in turns; late 12.5
        self.assertAlmostEqual(bounds.of_mode_carried("deft", 10, ready, cost, 2.5), 11.5)


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
        delivery = swings.Delivery(policy, optimizer, 0)
        return [delivery.next(at * at)
                for at in range(1, swings.WARM_UP + count + 1)][swings.WARM_UP:]

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


class Policies(unittest.TestCase):
    def cell(self, policy, took, **more):
        return {"model": "vgg19", "coverage": 2.0, "policy": policy, "iteration_ms": took,
                "error": 0.1, "in_force": True, **more}

    def test_every_plan_that_can_be_given_has_a_row(self):
        with open(os.path.join(ROOT, "base", "config_table.def"),
                  encoding="utf-8") as file:
            known = re.search(r'"DEFT_PLAN", Choice, "", "auto", "([^"]*)"',
                              file.read()).group(1).split("|")
        given = {settings.get("DEFT_PLAN", "auto") for _, settings,
                 *_ in policies.POLICIES.values()}
        # over one network nothing but the job as it is
        self.assertLessEqual(set(known) - {"delay0"}, given)

    def test_covap_chooses_for_itself_too(self):
        mode, settings, *asked = policies.POLICIES["covap"]
        self.assertEqual((mode, settings.get("DEFT_PLAN")), ("covap", None))
        self.assertEqual(asked, [("covap", 1, int(settings["DEFT_MAX_MERGE"]))])

    def test_relative_and_table(self):
        cells = [self.cell("plain", 100.0), self.cell("deft", 50.0), self.cell("us-byte", 80.0),
                 self.cell("bytescheduler", 90.0), self.cell("delay1", 70.0, in_force=False)]
        self.assertEqual(policies.relative(cells)["deft"], {"2": 0.5})
        text = policies.markdown({"cells": cells, "links": "a", "compute_ms": 40,
                                  "machine": {"cpu": "x", "cpus": 2}})
        self.assertIn("| vgg19, deft | 1.60 |", text)   # the better stand-in over deft
        self.assertIn("| delay1 | 70.0 (+10 %)* |", text)
        # a plan that was not in force is no prediction's fault
        self.assertIn("over 4 cells", text)


class EndToEnd(unittest.TestCase):
    def test_profile_has_the_coverage(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "p.json")
            e2e.profile(path, 80.0, 1.5, 1.0, 2)
            with open(path, encoding="utf-8") as file:
                made = json.load(file)
        sizes = [bucket["bytes"] for bucket in made["buckets"]]
        self.assertAlmostEqual(sum(bounds.costs(sizes, 1.0, 2)), 1.5 * 0.080, places=4)
        self.assertLessEqual(made["buckets"][-1]["ready_ms"], made["backward_ms"])

    def test_ddp_alone(self):
        # What deft reports is of other iterations than those looked at: only the proportions are
        # taken. The slower rank counts.
        def run(took, cpu, ready):
            return types.SimpleNamespace(
                results={"iteration_ms": {"raw": [900.0] * e2e.ALONE[1] + [took] * 70},
                         "cpu_ms": {"raw": [cpu] * 80}},
                observed={"buckets": [{"bytes": 4, "ready_ms": {"median": at}} for at in ready]})
        first, second = [run(100.0, 99.0, [60, 120]),
                         run(90.0, 81.0, [45, 90])], [run(100.0, 99.0, [50, 100]),
                                                      run(90.0, 81.0, [45, 90])]
        self.assertEqual(e2e.shape_of_ddp([first, second]), (0.1, [0.05, 0.1], [4, 4], 0.099))
        # CPU time is rank 0's, also where it is the faster one: only rank 0 tells what a run with
        # transfers takes.
        self.assertEqual(e2e.shape_of_ddp([first[::-1], second[::-1]]),
                         (0.1, [0.05, 0.1], [4, 4], 0.081))

    def test_words_below_the_table_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            mode = {"iteration_ms": 2.0, "bound_ms": 1.0, "of_bound": 2.0, "of_plain": 1.0,
                    "plan": "-"}
            results = [{"case": "1gbit", "job": "replay, coverage 1", "rounds": [{}],
                        "modes": {"plain": mode}, "machine": {"cpu": "x", "cpus": 2}}]
            path = os.path.join(folder, "e2e.json")
            e2e.save(path, {}, results)
            with open(os.path.join(folder, "e2e.md"), "a", encoding="utf-8") as file:
                file.write("\nWritten by hand.\n")
            mode.update({"of_carried_bound": 1.5, "carried_bound_ms": 1.3, "carry_ms": 0.3})
            e2e.save(path, {}, results)
            with open(os.path.join(folder, "e2e.md"), encoding="utf-8") as file:
                text = file.read()
        self.assertIn("x, 2 cores (replay)", text)
        self.assertIn("| 1.500 of 1.3 |", text)
        self.assertTrue(text.endswith("\n\nWritten by hand.\n"), text)


class Entries(unittest.TestCase):
    """Every script is called by its path, from anywhere, and finds the package it belongs to."""

    def help_of(self, *command, folder, path=None):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True,
                              check=False, timeout=60, cwd=folder,
                              env={**environment, **({"PYTHONPATH": path} if path else {})})
        self.assertEqual((done.returncode, done.stderr), (0, ""), command)
        return done.stdout

    def test_by_path_as_by_name(self):
        for script in ("links", "faults", "rdma/run.py", "e2e/run.py", "policies/run.py",
                       "accuracy/run.py", "accuracy/swings.py", "demo/run.py", "gpu/ddp_modes.py"):
            with self.subTest(script=script):
                name = "perf." + os.path.splitext(script)[0].replace("/", ".")
                self.assertEqual(self.help_of(os.path.join(ROOT, "perf", script), folder="/"),
                                 self.help_of("-m", name, folder=ROOT))

    def test_another_package_of_that_name_is_not_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "perf"))
            with open(os.path.join(folder, "perf", "__init__.py"), "w", encoding="utf-8") as file:
                file.write("raise ImportError('the wrong one')\n")
            self.assertIn("perf/links", self.help_of(os.path.join(ROOT, "perf", "links"),
                                                     folder=folder, path=folder))


class Usage(unittest.TestCase):
    def test_wrong_usage_is_one_line(self):
        for script, arguments, mention in (
                ("e2e", ["--jobs", "x"], "--jobs: 'x'"), ("e2e", ["--cases", "2gbits"], "2gbits"),
                ("e2e", ["--cases", "unshaped"], "links with a rate"),
                ("e2e", ["--coverage", "0"], "--coverage"),
                ("e2e", ["--modes", "deft"], "plain is what"),
                ("e2e", ["--iterations", "60"], "--iterations"),
                ("policies", ["--policies", "best"], "'best'"),
                ("policies", ["--coverage", "a"], "'a'"),
                ("e2e", ["--json", "/no/such/x.json"], "no folder /no/such"),
                ("policies", ["--json", "/no/such/x.json"], "no folder /no/such"),
                ("e2e", ["--json", ROOT], "is a folder"),
                ("e2e", ["--json", __file__], "no earlier record"),
                ("policies", ["--json", __file__], "no earlier record"),
                ("policies", ["--links", "fast"], "fast"),
                ("policies", ["--window", "0"], "--window"),
                ("accuracy", ["--policies", "delay9"], "'delay9'"),
                ("accuracy", ["--seeds", "0"], "--seeds"),
                ("accuracy", ["--models", "gpt"], "'gpt'")):
            with self.subTest(script=script, arguments=arguments):
                done = subprocess.run([sys.executable, os.path.join(ROOT, "perf", script, "run.py"),
                                       *arguments],
                                      capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")),
                                 (2, "", 1), done.stderr)
                self.assertIn(mention, done.stderr)

    def test_an_earlier_record_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "e2e.json")
            self.assertIsNone(e2e.parse(["--json", path]).before)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"machine": {}, "results": [{"case": "1gbit"}]}, file)
            self.assertEqual(e2e.parse(["--json", path]).before["results"], [{"case": "1gbit"}])

    def test_scripts_with_other_names(self):
        for script, arguments, mention in (
                (("preload", "startup"), ["--runs", "x"], "'x'"),
                (("preload", "startup"), ["--library", "/no/such"], "/no/such"),
                (("links", "__main__.py"), ["--pairs", "x"], "'x'"),
                (("links", "__main__.py"), ["--case", "x"], "'x'"),
                (("links", "__main__.py"), ["--json", "/no/such/x.json"], "no folder /no/such"),
                (("accuracy", "swings.py"), ["--optimizers", "sgd"], "'sgd'"),
                (("accuracy", "swings.py"), ["--batches", "a"], "'a'"),
                (("accuracy", "swings.py"), ["--seeds", "0"], "--seeds"),
                (("gpu", "ddp_modes.py"), [], "--library")):
            with self.subTest(script=script, arguments=arguments):
                done = subprocess.run([sys.executable, os.path.join(ROOT, "perf", *script),
                                       *arguments],
                                      capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")),
                                 (2, "", 1), done.stderr)
                self.assertIn(mention, done.stderr)

    def test_the_job_names_the_module_it_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "numpy.py"), "w", encoding="utf-8") as file:
                file.write("raise ModuleNotFoundError('none', name='numpy')\n")
            done = subprocess.run([sys.executable, os.path.join(ROOT, "perf", "jobs", "ddp.py")],
                                  capture_output=True, text=True, check=False, timeout=60,
                                  env=dict(os.environ, PYTHONPATH=folder))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("'numpy'", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
