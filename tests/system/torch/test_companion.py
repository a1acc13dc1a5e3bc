# SPDX-License-Identifier: Apache-2.0
"""What the companion proves, and what it refuses and why: small jobs in mode deft, of which a plan
is to come into force in those alone that are proven."""

import json
import math
import os
import re
import subprocess
import tempfile

import support

SCRIPT = os.path.join(support.HERE, "companion_kinds.py")
IN_FORCE = "rank 0: plan in force"
# What is said of each kind.
SAID = {
    "plain": IN_FORCE,
    "plain_views": IN_FORCE,
    "plain_static": IN_FORCE,
    "plain_cleared": IN_FORCE,
    "heavy_ball": IN_FORCE,
    "by_hand": IN_FORCE,
    "by_hand_twice": IN_FORCE,
    "accumulated": IN_FORCE,
    "unused": "looks for unused parameters",
    "twice": "summed several times before a step",
    "sharp": r"summed several times before a step|used between backward and step|read between",
    "closure": "steps with a closure",
    "own_optimizer": r"__main__\.Own\) is not PyTorch's own",
    # PyTorch 1.13 has no Adafactor, and SparseAdam's gradients have to be made.
    "factored": r"Adafactor\) does not treat each element by itself|a gradient is read between",
    "by_hand_scaled_first": IN_FORCE,
    "by_hand_anew": r"scaled by a number \(0\.5\d\) that is not the number of ranks",
    "by_hand_constant": r"scaled by a number \(0\.25\) that is not the number of ranks",
    "by_hand_sharp": r"used between backward and step by aten::\w+ \(companion_|is changed outside",
    "by_hand_local": r"used between backward and step by aten::\w+ \(companion_|is changed outside",
    "by_hand_compressed": r"is used between backward and step by aten::add \(companion_by_hand|"
                          "is not the gradient of one parameter|not each of its gradients is",
    "sharp_apart": "a parameter is changed outside of a step",
    "local_apart": "a parameter is changed outside of a step",
    "temperature": IN_FORCE,
    "temperature_read": r"a gradient is read between backward and step \(companion_kinds\.py:\d+\)",
    "temperature_decayed": r"is used between backward and step by aten::mul_ \(companion_kinds",
    "rolled_back": "a parameter is changed outside of a step",
    "evaluated": r"too little is seen .*, because of a forward pass \(companion_kinds\.py:\d+\)",
    "by_hand_tensor": r"a gradient is used between backward and step by aten::mul_ \(companion_k",
    "by_hand_into": r"a gradient is used between backward and step by aten::(zeros_like|mul_) \(co",
    "ahead": "a parameter is changed outside of a step",
    "by_hand_in_part": "not each of its gradients is summed once before a step",
    "quasi_newton": "steps with a closure",
    "a_part": "steps only a part of its parameters",
    "and_more": "steps other parameters too",
    "read": r"a gradient is read between backward and step \(companion_kinds\.py:\d+\)",
    "read_apart": r"a gradient is used between backward and step by aten::sum \(companion_kinds",
    "decayed": r"a parameter is used between backward and step by aten::mul_ \(companion_kinds",
    "clamped": "a parameter is changed outside of a step",
    "clamped_data": "a parameter is changed outside of a step",
    "replaced": "a parameter is changed outside of a step",
    "never_cleared": "not cleared between two steps",
    "hooked": "a communication hook of the job's own",
    "hooked_late": "a communication hook of the job's own",
    "flat": "between backward and step is not the gradient of one parameter",
    "averaged": "is made outside of backward",
    "averager": "is made outside of backward",
    "divided": "is made outside of backward|is made in backward",
    "contrasted": "is made in backward and is no bucket",
    "in_turns": "trained in turns",
    "low_rank": r"a sum of \d+ bytes is made in a communication hook of the job's own",
    "forked": IN_FORCE,
    "trainer": "a parameter is changed outside of a step",
}


def hasattr_of(python, thing, name):
    done = subprocess.run([python, "-c", f"import torch, sys; sys.exit(not hasattr({thing}, "
                                         f"{name!r}))"], check=False)
    return done.returncode == 0


def release_of(python):
    """(2, 15)"""
    script = "import importlib.metadata as m; print(m.version('torch'))"
    told = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
    return tuple(map(int, told.stdout.split(".")[:2]))


class Companion(support.TorchTest):
    def run_kinds(self, kinds, env=None, ranks=None):
        """The results, and the job."""
        named = {"OUT": "out.json", "SEEN": "seen-0.log", "KINDS": ",".join(kinds),
                 "DEFT_LOG_FILE": "seen-%r.log", "DEFT_WARMUP": "0", "DEFT_PLAN": "delay1",
                 "DEFT_GUARD": "off", **(env or {})}
        prefix = [support.DEFT, "run", "--mode", "deft", "--log", "info", "--out", "out-%r.json",
                  "--library", support.LIBRARY, "--"]
        job = self.job(2, SCRIPT, env=named, prefix=prefix, rank_env=ranks or {})
        self.succeed(job, 4 * support.DEADLINE)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def log(self, job, rank):
        with open(os.path.join(job.folder.name, f"seen-{rank}.log"), encoding="utf-8") as file:
            return file.read()

    def test_a_hook_on_steps_is_refused(self):
        if not hasattr_of(self.python, "torch.optim.Optimizer", "register_step_pre_hook"):
            self.skipTest("this PyTorch has no such hooks")
        results, _ = self.run_kinds(["step_hook"])
        said = results["step_hook"]["said"]
        self.assertTrue(any("has a hook on its optimizer's steps" in line for line in said), said)

    def test_what_is_compiled_is_not_judged(self):
        """The job's numbers are its own, and nothing is proven."""
        if not (2, 6) <= release_of(self.python) < (2, 15):
            self.skipTest("this PyTorch does not compile the software device's process groups")
        results, job = self.run_kinds(["compiled"])
        said = results["compiled"]["said"]
        self.assertTrue(any(re.search("does what exact does", line) for line in said), said)
        self.assertFalse(any(IN_FORCE in line for line in said), said)
        self.assertNotIn("stands down", self.log(job, 0) + self.log(job, 1))

    def test_each_kind_is_judged_and_the_reason_is_named(self):
        results, job = self.run_kinds(SAID)
        for kind, wanted in SAID.items():
            with self.subTest(kind=kind):
                said = results[kind]["said"]
                self.assertTrue(any(re.search(wanted, line) for line in said), said)
                self.assertEqual(any(IN_FORCE in line for line in said), wanted == IN_FORCE, said)
        self.assertNotIn("stands down", self.log(job, 0) + self.log(job, 1))

    def test_a_plan_ends_where_the_proof_does(self):
        results, _ = self.run_kinds(["reads_later", "sums_later", "seldom", "by_hand_later",
                                     "stopped_early"])
        said = results["stopped_early"]["said"]
        refused = "is made outside of backward|a parameter is changed outside of a step"
        self.assertTrue(any(re.search(refused, line) for line in said), said)
        said = results["by_hand_later"]["said"]
        self.assertTrue(any(IN_FORCE in line for line in said), said)
        ended = "(has ended, because|in force ends:).* is changed behind its sum in another way"
        self.assertTrue(any(re.search(ended, line) for line in said), said)
        said = results["seldom"]["said"]
        self.assertTrue(any("a parameter is changed outside of a step" in line for line in said),
                        said)
        said = results["reads_later"]["said"]
        self.assertTrue(any(IN_FORCE in line for line in said), said)
        ended = r"(has ended, because|in force ends:).* a gradient is read between"
        self.assertTrue(any(re.search(ended, line) for line in said), said)
        said = results["sums_later"]["said"]
        self.assertTrue(any("not the bucket of gradients" in line for line in said), said)

    def test_a_rank_that_skips_a_backward_ends_the_plan_with_all_others(self):
        kinds = ("skips", "skips_apart")
        results, _ = self.run_kinds(kinds)
        for kind in kinds:
            said = results[kind]["said"]
            self.assertTrue(any(IN_FORCE in line for line in said), said)
            ended = ("(has ended, because|in force ends:).* (not each of its gradients is summed|"
                     "a sum came that is not the bucket)")
            self.assertTrue(any(re.search(ended, line) for line in said), said)

    def test_a_rank_without_it_means_none_for_all(self):
        results, _ = self.run_kinds(["plain"], ranks={1: {"DEFT_COMPANION": "off"}})
        said = results["plain"]["said"]
        self.assertTrue(any("rank 1: nothing proves" in line for line in said), said)
        self.assertFalse(any(IN_FORCE in line for line in said), said)

    def test_without_a_cap_nothing_proven_is_late(self):
        """Of whichever optimizer. What is refused is told its own reason."""
        plans = {"DEFT_PLAN": "auto", "DEFT_MAX_DELAY": "0"}   # which is no cap
        results, job = self.run_kinds(["plain", "heavy_ball", "twice"], plans)
        for kind, wanted in (("plain", "bear smaller learning rates"),
                             ("heavy_ball", "bear smaller learning rates"),
                             ("twice", SAID["twice"])):
            said = results[kind]["said"]
            self.assertTrue(any(re.search(wanted, line) for line in said), said)
        self.assertNotIn(IN_FORCE, self.log(job, 0))
        self.assertEqual(len(re.findall(r"companion: module \d+: ", self.log(job, 0))), 1,
                         "refused is the last kind alone")

    def test_a_plan_that_the_steps_do_not_bear_is_not_taken(self):
        """Momentum 0.9 bears a tenth of the rate with gradients that are late by one."""
        env = {"DEFT_PLAN": "auto", "DEFT_MAX_DELAY": "1"}
        results, job = self.run_kinds(["steep", "gentle", "steeper"], env)
        priced = r"rate x curvature [\d.e-]+, bound 0\.12"
        dear = r"a plan is not taken: gradients late by 1 would be \d+ % faster; " + priced
        said = results["steep"]["said"]
        self.assertTrue(any(re.search(dear, line) for line in said), said)
        self.assertFalse(any(IN_FORCE in line for line in said), said)
        said = results["gentle"]["said"]
        self.assertTrue(any(IN_FORCE in line for line in said), said)
        said = results["steeper"]["said"]
        self.assertTrue(any(IN_FORCE in line for line in said), said)
        self.assertTrue(any(re.search("in force ends: gradients late by 1 .*" + priced, line)
                            for line in said), said)
        with open(os.path.join(job.folder.name, "out-0.json"), encoding="utf-8") as file:
            self.assertRegex(file.read(), priced)

    def test_the_measure_of_steps_is_true(self):
        """Of a quadratic, with noise that is as large as the gradient."""
        done = subprocess.run([self.python, os.path.join(support.HERE, "companion_steps.py"),
                               os.path.join(support.ROOT, "companion")], check=True,
                              capture_output=True, text=True, timeout=support.DEADLINE)
        results = json.loads(done.stdout)
        self.assertEqual(results.pop("amsgrad"), [], "it is not measured")
        # A rate that is a tensor or stays 0, a gradient that is no number.
        for kind in ("tensor", "rests", "breaks", "bursts"):
            self.assertTrue(math.isnan(results.pop(kind)[0]), kind)
        whole, unasked, stood_down = results.pop("looks")
        # At 26, to see where they are, and every fourth one from 27 on; at 35 it stands down.
        self.assertEqual((unasked, stood_down), (0, 2 * (1 + 2) + 1))
        self.assertEqual(whole, 2 * (1 + 2 * 3), "it ends")
        told, true, _ = results.pop("cuts")
        self.assertAlmostEqual(told, true / 2, delta=0.01 + 0.25 * true)
        self.assertEqual(results.pop("kept"), 0)
        for kind, (told, true, _) in results.items():
            with self.subTest(kind=kind):
                self.assertAlmostEqual(told, true, delta=0.01 + 0.25 * true)
        self.assertEqual(results["quiet"][2], 0, "it has no noise")
        self.assertFalse(0 <= results["flat"][2] <= 30, "it has nothing else, if that is known")

    def test_steps_are_measured_where_plans_are_priced(self):
        script = ("import sys; sys.path.insert(0, sys.argv[1]); "
                  "from deft_companion.library import library; "
                  "print(library().proof, library().note_steps(1, -1, -1))")
        command = [support.DEFT, "run", "--mode", "deft", "--library", support.LIBRARY, "--",
                   self.python, "-c", script, os.path.join(support.ROOT, "companion")]
        for settings, asked in (({"DEFT_MAX_DELAY": "1"}, 1), ({}, 0),
                                ({"DEFT_MAX_DELAY": "1", "DEFT_PLAN": "delay1"}, 0)):
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith("DEFT_")}
            done = subprocess.run(command, env={**environment, **settings}, check=True,
                                  stdout=subprocess.PIPE, text=True, timeout=support.DEADLINE)
            self.assertEqual(done.stdout, f"True {asked}\n", settings)

    def test_trust_needs_no_companion(self):
        results, _ = self.run_kinds(["plain"], {"DEFT_GRADIENTS": "trust", "DEFT_COMPANION": "off"})
        self.assertTrue(any(IN_FORCE in line for line in results["plain"]["said"]), results)


class Guest(support.TorchTest):
    """What the companion does to the job, beside what it says of it."""

    def observe(self, **env):
        prefix = [support.DEFT, "run", "--mode", "deft", "--log", "info", "--out", "out-%r.json",
                  "--library", support.LIBRARY, "--"]
        job = self.job(2, os.path.join(support.HERE, "companion_guest.py"), prefix=prefix,
                       env={"OUT": "out.json", "DEFT_LOG_FILE": "seen-%r.log", **env})
        self.succeed(job)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def test_a_process_that_the_job_spawns_has_it(self):
        with tempfile.TemporaryDirectory() as site:
            with open(os.path.join(site, "sitecustomize.py"), "w", encoding="ascii") as file:
                file.write("MINE = 'mine'")
            job = self.job(1, os.path.join(support.HERE, "companion_spawn.py"), launcher=False,
                           env={"PYTHONPATH": site},
                           prefix=[support.DEFT, "run", "--mode", "deft", "--library",
                                   support.LIBRARY, "--"])
            self.succeed(job)
        self.assertIn("[2, 'mine']", job.output(0), "proof")

    def test_the_job_stays_as_it_is(self):
        seen, job = self.observe()
        self.assertEqual(seen["carried"], [], "what cannot be copied or kept in a file")
        self.assertEqual(seen["copies_train"], [[True, [1]], [True, [1]]], "the sums; watched")
        self.assertEqual(seen["modes_in_evaluation"], {"module": 0, "other": 0})
        self.assertEqual(seen["inference_between"], 0)
        self.assertEqual(seen["modes_in_a_worker"], {"worker": 0, "job": 1})
        self.assertEqual(seen["complaints"], "")
        self.assertEqual(seen["read_beside_a_clipping_thread"], ["REFUSED"])
        few, many = seen["calls_for_sums"]
        self.assertLess(many, 4.5 * few, "four times as many sums")
        self.assertEqual(seen["attributes"], 1, "changes of nn.Parameter")
        with open(os.path.join(job.folder.name, "seen-0.log"), encoding="utf-8") as file:
            log = file.read()
        self.assertRegex(log, r"a gradient is read between backward and step \(companion_guest")
        self.assertRegex(log, r"is used between backward and step by c10d::broadcast_ \(compan")
        self.assertNotIn("c10d::allreduce_", log)
        self.assertEqual(seen["wanted_when_it_ends"], [2], "proof")
        self.assertEqual(re.findall("stands down: (.*)", log), ["a test"])
        # Where deft is not.
        script = ("import os, sys, torch, torch.distributed as d; d.init_process_group('gloo', "
                  "init_method='file://' + os.path.abspath('meet'), rank=0, world_size=1); "
                  "assert 'deft_companion' not in sys.modules; "
                  "import inspect; old = {'weights_only': False} "
                  "if 'weights_only' in inspect.signature(torch.load).parameters else {}; "
                  "print([torch.load(name, **old)(torch.zeros(1, 12)).shape[1] for name in "
                  "('before.pt', 'after.pt')])")
        done = subprocess.run([self.python, "-c", script], cwd=job.folder.name, check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.stdout, "[5, 5]\n", done.stderr)


support.main(__name__)
