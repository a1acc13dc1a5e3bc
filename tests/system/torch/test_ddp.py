# SPDX-License-Identifier: Apache-2.0
"""DDP's options give with NCCL the numbers that they give with gloo, with and without deft
preloaded, and under its plans."""

import glob
import json
import os

import support

SCRIPT = os.path.join(support.HERE, "ddp_options.py")


class DdpOptions(support.TorchTest):
    def results(self, ranks, backend, **named):
        environment = dict(named.pop("env", {}), BACKEND=backend, OUT="out.json")
        job = self.job(ranks, SCRIPT, env=environment, **named)
        self.succeed(job)
        with open(os.path.join(job.folder.name, "out.json"), encoding="utf-8") as file:
            return json.load(file), job

    def compare(self, found, expected, exactly):
        self.assertEqual(list(found), list(expected))
        for option, result in found.items():
            with self.subTest(option=option):
                self.assertTrue(result["replicas"], "replicas differ")
                self.assertTrue(result["objects"])
                self.assertEqual(result["int32"], expected[option]["int32"])
                for key in ("sums", "losses"):
                    for left, right in zip(result[key], expected[option][key]):
                        if exactly:
                            self.assertEqual(left, right, key)
                        else:  # with more ranks the order of summation differs
                            self.assertAlmostEqual(left, right, delta=1e-5 * max(1.0, abs(right)),
                                                   msg=key)

    def test_two_ranks(self):
        gloo, _ = self.results(2, "gloo", launcher=False)
        plain, _ = self.results(2, "nccl", env={"CLOSING": "plain"})
        self.compare(plain, gloo, exactly=True)

    def planned(self, plan, paced):
        """The results under a plan, and for how many iterations it was in force on each rank."""
        results, job = self.results(2, "nccl", env={**paced, "DEFT_GRADIENTS": "trust",
                                                    "DEFT_PLAN": plan, "DEFT_WARMUP": "0",
                                                    "DEFT_GUARD": "off"},
                                    prefix=[support.DEFT, "run", "--mode", "deft", "--log", "info",
                                            "--out", "observed-%r.json", "--library",
                                            support.LIBRARY, "--"])
        iterations = []
        for path in sorted(glob.glob(os.path.join(job.folder.name, "observed-*.json"))):
            with open(path, encoding="utf-8") as file:
                iterations.append(sum(plan["iterations"] for plan in json.load(file)["plans"]))
        return results, iterations, job

    def test_under_a_plan(self):
        paced = {"ITERATIONS": "45", "PACE": "0.02"}
        plain, _ = self.results(2, "nccl", env={"ITERATIONS": "45"})
        synchronous, iterations, job = self.planned("delay0", paced)
        self.compare(synchronous, plain, exactly=True)
        self.assertEqual(len(iterations), 2, job.outputs())
        self.assertGreater(min(iterations), 0, job.outputs())
        late, iterations, job = self.planned("delay1",
                                             {**paced, "OPTIONS": "no_sync,find_unused_parameters"})
        self.assertGreater(min(iterations), 0, job.outputs())
        self.assertTrue(all(result["replicas"] for result in late.values()))
        self.assertTrue(any(result["losses"] != plain[option]["losses"]
                            for option, result in late.items()), "nothing came late")

    def test_four_ranks(self):
        few = {"OPTIONS": "default,find_unused_parameters,new_group"}
        gloo, _ = self.results(4, "gloo", launcher=False, env=few)
        nccl, _ = self.results(4, "nccl", env=few)
        self.compare(nccl, gloo, exactly=False)


support.main(__name__)
