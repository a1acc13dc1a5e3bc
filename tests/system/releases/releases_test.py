#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job whose hosts are upgraded one by one: one rank runs the previous release, the other one this
build.

usage: releases_test.py SOURCE_ROOT FOLDER LIBRARY JOB
FOLDER keeps the previous release's library, which is built once out of this repository's history
(some minutes). Skipped where that cannot be done. TEST_PREVIOUS_LIBRARY names one that is there.
"""
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

# The latest commit that speaks version 2 of the plugin's wire alone. A tag, once there is one.
PREVIOUS = "d1c1c9d66ea29f31050f609852f38f5338f9d1e2"

SOURCE, FOLDER, LIBRARY, JOB = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
BUILT = FOLDER / PREVIOUS[:12] / "libnccl-net-deft.so"
OLD = pathlib.Path(os.environ.get("TEST_PREVIOUS_LIBRARY", BUILT))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, timeout=1500, **options)


def why_not():
    """Builds the previous release, or says why it cannot be built."""
    if OLD.exists():
        return None
    archive = run("git", "-C", SOURCE, "archive", PREVIOUS)
    if archive.returncode != 0:
        return f"commit {PREVIOUS[:12]} is not in this repository's history"
    with tempfile.TemporaryDirectory(prefix="deft-previous-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
            tree.extractall(folder)
        for command in (("meson", "setup", "build", "-Dauto_features=disabled"),
                        ("ninja", "-C", "build", "packaging/libnccl-net-deft.so")):
            made = run(*command, cwd=folder)
            if made.returncode != 0:
                return f"{' '.join(command)}: {made.stdout.decode()[-500:]}"
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(folder) / "build/packaging/libnccl-net-deft.so", BUILT)
    return None


class Releases(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-releases-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def job(self, libraries, **settings):
        """Each rank's standard error and record."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        ranks = []
        for rank, library in enumerate(libraries):
            environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "LD_PRELOAD": str(library),
                           "NCCL_NET_PLUGIN": "STATIC_PLUGIN", "NCCL_SOCKET_IFNAME": "lo",
                           "NCCL_HOSTID": f"host{rank}", "DEFT_INTERFACES": "lo",
                           "DEFT_OUT": str(folder / "rank%r.json"), **settings}
            ranks.append(subprocess.Popen([JOB, "linked", str(rank), str(len(libraries)),
                                           folder / "id", "40"], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        answers = []
        said = [process.communicate(timeout=120) for process in ranks]
        for rank, (process, (out, err)) in enumerate(zip(ranks, said)):
            self.assertEqual((process.returncode, out), (0, f"rank {rank} done\n"), err)
            record = json.loads((folder / f"rank{rank}.json").read_text())
            answers.append((err, record))
        return answers

    def orders(self):
        return {"old receives first": (OLD, LIBRARY), "new receives first": (LIBRARY, OLD)}.items()

    def test_the_two_are_two(self):
        answers = self.job((OLD, LIBRARY), DEFT_MODE="observe")
        self.assertNotEqual(*(record["library"]["version"] for _, record in answers))

    def test_messages_cross_the_plugin(self):
        for name, libraries in self.orders():
            with self.subTest(name):
                for err, record in self.job(libraries, DEFT_MODE="observe"):
                    self.assertEqual(err, "")
                    self.assertTrue(record["plugin"]["loaded"])
                    self.assertGreater(sum(link["bytes_sent"] for link in record["links"]), 1 << 20)

    def test_calls_are_forwarded_with_one_line(self):
        for mode in ("exact", "deft"):
            for name, libraries in self.orders():
                with self.subTest(name, mode=mode):
                    for err, record in self.job(libraries, DEFT_MODE=mode):
                        self.assertEqual(err.count("\n"), 1, err)
                        self.assertRegex(err, r"WARN .*deft \S+.* deft \S+")
                        self.assertEqual([plan["state"] for plan in record["plans"]],
                                         ["no agreement"])


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
