# SPDX-License-Identifier: Apache-2.0
"""All collectives of torch.distributed on the launcher's backend "nccl"."""

import os

import support

SCRIPT = os.path.join(support.HERE, "collectives.py")


class Collectives(support.TorchTest):
    def check(self, ranks, **named):
        job = self.job(ranks, SCRIPT, **named)
        self.succeed(job)
        for rank in range(ranks):
            self.assertIn("all collectives are right", job.output(rank))
            self.assertNotIn("softdev: error", job.output(rank))

    def test_two_ranks(self):
        self.check(2)

    def test_four_ranks(self):
        self.check(4)


support.main(__name__)
