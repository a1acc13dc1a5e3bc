# SPDX-License-Identifier: Apache-2.0
"""What is new in current PyTorch: the backend that "nccl" means from 2.15 on, and the functions of
NCCL that are called."""

import json
import os
import re
import subprocess
import unittest

import support

SCRIPT = os.path.join(support.HERE, "current_kinds.py")
NAMES = os.path.join(support.ROOT, "tests", "system", "preload", "torch_2_15_nccl.txt")
TABLE = os.path.join(support.ROOT, "shim", "nccl", "nccl_functions.def")


def version():
    """(2, 15) and the folder of torch."""
    told = subprocess.run([support.TorchTest.python, "-c",
                           "import torch; print(torch.__version__); print(torch.__path__[0])"],
                          check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(map(int, told[0].split(".")[:2])), told[1]


class Groups(support.TorchTest):
    def done(self, case, ranks=2, prefix=(), **env):
        job = self.job(ranks, SCRIPT, env={"CASE": case, **env}, prefix=prefix)
        self.succeed(job)
        self.assertIn("done", job.output(0))
        return re.search(r"^group (\w+)", job.output(0), re.M).group(1), job

    def test_groups_of_some_ranks(self):
        """From 2.15 on each is split off the communicator of all; the ranks outside take part."""
        kind, job = self.done("groups", 3, [support.DEFT, "run", "--mode", "observe", "--out",
                                            "seen-%r.json", "--library", support.LIBRARY, "--"])
        newer = version()[0] >= (2, 15)
        self.assertEqual(kind, "NcclGroup2" if newer else "NcclGroup")
        for rank in range(3):
            with open(os.path.join(job.folder.name, f"seen-{rank}.json"), encoding="utf-8") as file:
                calls = json.load(file)["calls"]
            self.assertEqual(calls.get("ncclCommSplit", 0), 4 if newer else 0)
            if newer:
                self.assertEqual(calls["ncclCommInitRank"], 1)

    def test_the_older_backend_by_its_variable(self):
        kind, _ = self.done("groups", TORCH_DIST_USE_NCCL2="0")
        self.assertEqual(kind, "NcclGroup")

    def test_sends_between_pairs(self):
        self.done("pairs", 4)

    def test_backends_by_name(self):
        if version()[0] < (2, 15):
            self.skipTest("PyTorch has them from 2.15 on")
        self.assertEqual(self.done("groups", BACKEND="nccl2")[0], "NcclGroup2")
        self.assertEqual(self.done("pairs", 4, BACKEND="nccl-lazy")[0], "NcclLazyGroup")

    def test_a_suspended_communicator_goes_on(self):
        if version()[0] < (2, 15):
            self.skipTest("PyTorch has it from 2.15 on")
        self.done("suspend")
        self.done("suspend", prefix=[support.DEFT, "run", "--mode", "exact", "--library",
                                     support.LIBRARY, "--"])


class Functions(unittest.TestCase):
    def test_every_function_that_it_calls_is_known(self):
        newest, folder = version()
        library = os.path.join(folder, "lib", "libtorch_cuda.so")
        if not os.path.exists(library):
            self.skipTest("this PyTorch is built without CUDA")
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, text=True,
                                capture_output=True).stdout
        called = set(re.findall(r" (nccl\w+)", listed))
        self.assertIn("ncclAllReduce", called)
        with open(TABLE, encoding="utf-8") as file:
            known = {"nccl" + name for name in
                     re.findall(r"^DEFT_NCCL_(?:FUNCTION|QUERY)\((\w+),", file.read(), re.M)}
        self.assertEqual(called - known, set())
        if newest == (2, 15):
            with open(NAMES, encoding="ascii") as file:
                names = {line.strip() for line in file if not line.startswith("#")}
            self.assertEqual(called, names)


support.main(__name__)
