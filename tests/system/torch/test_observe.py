# SPDX-License-Identifier: Apache-2.0
"""What deft sees of real DDP jobs: the sequences of calls, in mode observe; nothing in mode off; a bypass is detected."""

import json
import os

import support

SCRIPT = os.path.join(support.HERE, "ddp_options.py")
MLP = os.path.join(support.ROOT, "perf", "jobs", "ddp.py")


class Observe(support.TorchTest):
    def under_deft(self, mode, script, arguments=(), env=None, options=()):
        prefix = [support.DEFT, "run", "--mode", mode, "--out", "observe-%r.json", "--library", support.LIBRARY, "--"]
        job = self.job(2, script, arguments, env=env, prefix=prefix, options=options)
        self.succeed(job)
        files = []
        for rank in range(2):
            path = os.path.join(job.folder.name, f"observe-{rank}.json")
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    files.append(json.load(file))
        return job, files

    def out(self, job, name="out.json"):
        with open(os.path.join(job.folder.name, name), encoding="utf-8") as file:
            return json.load(file)

    def test_the_iteration_of_an_mlp_is_learned(self):
        """One call in iteration 0, then two buckets: the first of at least 1 MiB, the rest."""
        arguments = ["--model", "mlp", "--iterations", "12", "--json", "out.json"]
        job, files = self.under_deft("observe", MLP, arguments)
        plain = self.job(2, MLP, arguments)
        self.succeed(plain)
        with_deft, without = self.out(job), self.out(plain)
        self.assertEqual(with_deft["epoch_losses"], without["epoch_losses"])
        self.assertEqual(with_deft["checksum"], without["checksum"])
        self.assertEqual(len(files), 2, job.outputs())
        layouts = []
        for rank, file in enumerate(files):
            self.assertEqual((file["format"], file["rank"], file["ranks"]), ("deft-observe", rank, 2))
            self.assertTrue(file["plugin"]["loaded"])
            self.assertGreater(file["plugin"]["calls"], 0)
            self.assertGreaterEqual(file["calls"]["ncclAllReduce"], 1 + 2 * 11)
            self.assertEqual(file["iterations"]["cycle_length"], 2, file["iterations"])
            self.assertGreaterEqual(file["iterations"]["seen"], 6)
            layouts.append([(bucket["position"], bucket["count"], bucket["type"], bucket["op"], bucket["in_place"])
                            for bucket in file["buckets"]])
        self.assertEqual(layouts[0], layouts[1])
        self.assertEqual(sum(count for _, count, *_ in layouts[0]), without["parameters"])
        self.assertEqual(len(layouts[0]), 2, layouts[0])
        self.assertTrue(all(layout[2:] == ("float32", "sum", True) for layout in layouts[0]))
        self.assertGreaterEqual(files[0]["buckets"][0]["bytes"], 1 << 20)

    def test_off_forwards_everything(self):
        job, files = self.under_deft("off", SCRIPT, env={"OUT": "out.json", "OPTIONS": "default"})
        plain = self.job(2, SCRIPT, env={"OUT": "out.json", "OPTIONS": "default"})
        self.succeed(plain)
        self.assertEqual(self.out(job), self.out(plain))
        self.assertEqual(files, [])

    def test_a_bypass_is_detected_and_said(self):
        job, files = self.under_deft("observe", SCRIPT, env={"OUT": "out.json", "OPTIONS": "default"},
                                     options=["--bind", "handle"])
        self.assertTrue(all(file["calls"].get("ncclAllReduce", 0) == 0 for file in files))
        for rank in range(2):
            self.assertRegex(job.output(rank), "deft.* WARN .*reaches NCCL past it")


support.main(__name__)
