# SPDX-License-Identifier: Apache-2.0
"""What deft sees of real DDP jobs: the sequences of calls, in mode observe; nothing in mode off;
a bypass is detected."""

import json
import os

import support

SCRIPT = os.path.join(support.HERE, "ddp_options.py")
MLP = os.path.join(support.ROOT, "perf", "jobs", "ddp.py")


class Observe(support.TorchTest):
    def under_deft(self, mode, script, arguments=(), env=None, options=()):
        prefix = [support.DEFT, "run", "--mode", mode, "--out", "observe-%r.json", "--library",
                  support.LIBRARY, "--"]
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

    def learn(self, arguments):
        """Runs the job under deft, which must learn the very buckets that DDP says it has; what
        the job wrote."""
        job, files = self.under_deft("observe", MLP, arguments)
        result = self.out(job)
        buckets = result["bucket_bytes"]
        self.assertEqual(sum(buckets), result["gradient_bytes"])
        self.assertEqual(len(files), 2, job.outputs())
        for rank, file in enumerate(files):
            self.assertEqual((file["format"], file["rank"], file["ranks"]),
                             ("deft-observe", rank, 2))
            self.assertTrue(file["plugin"]["loaded"])
            self.assertGreater(file["plugin"]["calls"], 0)
            # DDP's are one call in iteration 0 and the buckets in the other 11; the job's own, the
            # loss and the accuracy.
            self.assertEqual(file["calls"]["ncclAllReduce"], 1 + 11 * len(buckets) + 2)
            self.assertEqual(file["iterations"]["cycle_length"], len(buckets), file["iterations"])
            self.assertGreaterEqual(file["iterations"]["seen"], 6)
            learned = [(bucket["position"], bucket["bytes"], bucket["count"], bucket["type"],
                        bucket["op"], bucket["in_place"])
                       for bucket in file["buckets"]]
            self.assertEqual(learned, [(position, size, size // 4, "float32", "sum", True)
                                       for position, size in enumerate(buckets)])
        return result

    def test_the_iteration_of_an_mlp_is_learned(self):
        """As DDP is by default: a first bucket of at least 1 MiB, then the rest."""
        arguments = ["--model", "mlp", "--iterations", "12", "--json", "out.json"]
        with_deft = self.learn(arguments)
        # What stands for a GPU takes time, and changes nothing.
        plain = self.job(2, MLP, [*arguments, "--device-ms", "60"])
        self.succeed(plain)
        without = self.out(plain)
        for figure in ("epoch_losses", "checksum", "bucket_bytes"):
            self.assertEqual(with_deft[figure], without[figure])
        self.assertGreaterEqual(min(without["iteration_ms"]["raw"]), 60.0)
        self.assertEqual(len(without["bucket_bytes"]), 2, without["bucket_bytes"])
        self.assertGreaterEqual(without["bucket_bytes"][0], 1 << 20)

    def test_an_iteration_of_one_call_is_learned(self):
        result = self.learn(["--model", "tiny-mlp", "--iterations", "12", "--json", "out.json"])
        self.assertEqual(len(result["bucket_bytes"]), 1)

    def test_off_forwards_everything(self):
        job, files = self.under_deft("off", SCRIPT, env={"OUT": "out.json", "OPTIONS": "default"})
        plain = self.job(2, SCRIPT, env={"OUT": "out.json", "OPTIONS": "default"})
        self.succeed(plain)
        self.assertEqual(self.out(job), self.out(plain))
        self.assertEqual(files, [])

    def test_a_bypass_is_detected_and_said(self):
        job, files = self.under_deft("observe", SCRIPT,
                                     env={"OUT": "out.json", "OPTIONS": "default"},
                                     options=["--bind", "handle"])
        self.assertTrue(all(file["calls"].get("ncclAllReduce", 0) == 0 for file in files))
        for rank in range(2):
            self.assertRegex(job.output(rank), "deft.* WARN .*reaches NCCL past it")


support.main(__name__)
