# SPDX-License-Identifier: Apache-2.0
"""DDP's options give with NCCL the numbers that they give with gloo, with and without deft preloaded."""

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
                            self.assertAlmostEqual(left, right, delta=1e-5 * max(1.0, abs(right)), msg=key)

    def test_two_ranks(self):
        gloo, _ = self.results(2, "gloo", launcher=False)
        plain, _ = self.results(2, "nccl", env={"CLOSING": "plain"})
        self.compare(plain, gloo, exactly=True)

    def test_four_ranks(self):
        few = {"OPTIONS": "default,find_unused_parameters,new_group"}
        gloo, _ = self.results(4, "gloo", launcher=False, env=few)
        nccl, _ = self.results(4, "nccl", env=few)
        self.compare(nccl, gloo, exactly=False)


support.main(__name__)
