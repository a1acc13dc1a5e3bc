# SPDX-License-Identifier: Apache-2.0
"""All collectives of torch.distributed on the launcher's backend "nccl"."""

import os
import tempfile

import support

SCRIPT = os.path.join(support.HERE, "collectives.py")
NICE = """
import os, threading, torch, torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4))
values = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
print("mine", mine, "least", min(values), flush=True)
dist.destroy_process_group()
"""


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

    def test_compute_gives_way(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "nice.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(NICE)
            usual = os.getpriority(os.PRIO_PROCESS, 0)
            for value in ("", "19"):
                job = self.job(2, script, env={"SOFTDEV_NICE": value})
                self.succeed(job)
                for rank in range(2):
                    self.assertIn(f"mine {value or usual} least {usual}\n", job.output(rank))


support.main(__name__)
