#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`deft topo` of this host, with the GPUs and NVLinks that the software device's NVML tells of.

usage: topo_nvml_test.py DEFT LIBNVIDIA_ML LIBCUDA
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

DEFT, NVML, CUDA = map(os.path.abspath, sys.argv[1:4])


class Nvml(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-nvml-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "libnvidia-ml.so.1").symlink_to(NVML)
        (self.folder / "libcuda.so.1").symlink_to(CUDA)

    def topo(self, *arguments, **softdev):
        env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(self.folder),
               "DEFT_INTERFACES": "lo",
               **{f"SOFTDEV_{key.upper()}": value for key, value in softdev.items()}}
        done = subprocess.run([DEFT, "topo", *arguments], capture_output=True, text=True,
                              timeout=60, env=env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def json(self, **softdev):
        return json.loads(self.topo("--json", **softdev))

    def test_links_in_pairs(self):
        machine = self.json(devices="4", nvlink="6")
        self.assertEqual(len(machine["gpus"]), 4)
        for gpu in machine["gpus"]:
            self.assertEqual([link["to"] for link in gpu["nvlinks"]], ["gpu"] * 3)
            self.assertEqual({(p["path"], p["through"]) for p in gpu["peers"]}, {("NV2", "pair")})
            self.assertAlmostEqual(gpu["peers"][0]["gbytes_per_s"], 2 * 26.562)
            self.assertTrue(gpu["uuid"].startswith("GPU-"))
            self.assertEqual(gpu["nvlink_source"], "nvml")
        self.assertIn("NV2  53.1 GB/s  wired in pairs  all 6 pairs",
                      self.topo(devices="4", nvlink="6"))

    def test_links_to_a_switch_and_a_domain(self):
        machine = self.json(devices="3", nvlink="18@switch", clique="7")
        for gpu in machine["gpus"]:
            self.assertEqual([(link["to"], link["target"], link["count"])
                              for link in gpu["nvlinks"]], [("switch", "", 18)])
            self.assertEqual({(p["path"], p["through"]) for p in gpu["peers"]},
                             {("NV18", "switch")})
            self.assertEqual(gpu["fabric"]["clique"], 7)
        text = self.topo(devices="3", nvlink="18@switch", clique="7")
        self.assertIn("18 to NVSwitch", text)
        self.assertIn("clique 7: 3 GPUs here", text)

    def test_places(self):
        machine = self.json(devices="2", pci="0000:17:00.0,0001:ca:1f.0")
        self.assertEqual([gpu["pci"] for gpu in machine["gpus"]], ["0000:17:00.0", "0001:ca:1f.0"])
        self.assertEqual(machine["gpus"][0]["peers"][0]["nvlinks"], 0)
        self.assertEqual(machine["gpus"][0]["compute_capability"] > 0, True)

    def test_a_library_that_is_none(self):
        (self.folder / "libnvidia-ml.so.1").unlink()
        self.assertEqual(self.json()["notes"], [], "no GPU, and no library that tells of any")
        (self.folder / "libnvidia-ml.so.1").symlink_to(CUDA)
        self.assertEqual(self.json()["notes"],
                         ["NVML: libnvidia-ml.so.1 lacks functions: NVLinks are not known"])
        (self.folder / "libnvidia-ml.so.1").unlink()
        (self.folder / "libnvidia-ml.so.1").write_text("no library" * 100)
        self.assertIn("invalid ELF header", self.json()["notes"][0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
