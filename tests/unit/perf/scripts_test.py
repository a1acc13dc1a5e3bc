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


# Of exact sums, which change no training.
ORDERS = {"best", "bytescheduler", "us-byte", "dear"}


class Bounds(unittest.TestCase):
    def test_costs(self):
        # Two ranks send what a message holds once; four ranks one and a half times.
        self.assertAlmostEqual(bounds.costs([125_000_000], 1.0, 2)[0], 1.0)
        self.assertAlmostEqual(bounds.costs([125_000_000], 2.0, 4)[0], 0.75)

    def test_synchronous(self):
        self.assertAlmostEqual(bounds.synchronous(10, [4, 9], [2, 3]), 12)   # the last one is late
        # Forward takes 3 of 9; the layers of the first bucket are needed 2 after it begins.
        self.assertAlmostEqual(bounds.waiting_layers(9, [5, 9], [2, 3], 3), 12)
        self.assertAlmostEqual(bounds.waiting_layers(9, [5, 9], [7, 1], 3), 11)
        self.assertAlmostEqual(bounds.synchronous(9, [5, 9], [7, 1]), 13)
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
        self.assertLessEqual(set(known) - {"delay0", *ORDERS}, given)

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
                file.write("\nWritten by hand.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end.\n")
            mode.update({"of_carried_bound": 1.5, "carried_bound_ms": 1.3, "carry_ms": 0.3})
            e2e.save(path, {}, results)
            with open(os.path.join(folder, "e2e.md"), encoding="utf-8") as file:
                text = file.read()
        self.assertIn("x, 2 cores (replay)", text)
        self.assertIn("| 1.500 of 1.3 |", text)
        self.assertTrue(text.endswith(
            " | - |\n\nWritten by hand.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end.\n"), text)


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
                       "accuracy/run.py", "accuracy/price.py", "accuracy/swings.py", "demo/run.py",
                       "gpu/ddp_modes.py"):
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
                (("accuracy", "price.py"), ["--optimizers", "sgd"], "'sgd'"),
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
