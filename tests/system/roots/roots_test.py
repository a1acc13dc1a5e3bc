#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The preloads in a root of Debian 11, whose glibc (2.31) is older than the build host's: programs,
and a job of two ranks. ROOTS_TEST_SUITES="bullseye bookworm trixie" does the same in each of these.

usage: roots_test.py FOLDER LIBRARY GUEST CUDA NCCL JOB
FOLDER keeps the root, which debootstrap fetches once. Skipped where that cannot be done.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from patience import end_of

FOLDER = pathlib.Path(sys.argv[1])
FILES = [pathlib.Path(file).resolve() for file in sys.argv[2:]]
LIBRARY, GUEST = (f"/deft/{file.name}" for file in FILES[:2])
# python3-venv: the distribution's own pip, for the wheel of the suite `packages`.
INCLUDED = "python3,python3-venv"
SUITES = os.environ.get("ROOTS_TEST_SUITES", "bullseye").split()
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")

PROGRAM = """
import ctypes, sys
job = ctypes.CDLL("/deft/libroot-job.so")
arguments = [b"job"] + [word.encode() for word in sys.argv[1:]]
sys.exit(job.main(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)))
"""


def why_not(suite):
    """Makes the root, or says why it cannot be made."""
    if os.geteuid() != 0:
        return "needs root for debootstrap and chroot"
    for tool in ("debootstrap", "unshare", "strip"):
        if not shutil.which(tool):
            return f"no {tool} here (./dev install debootstrap)"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "no mount namespaces here"
    root = FOLDER / suite
    complete = root / "complete"
    if complete.exists() and complete.read_text() == INCLUDED:
        return None
    shutil.rmtree(root, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    try:
        made = subprocess.run(["debootstrap", "--variant=minbase", f"--include={INCLUDED}", suite,
                               root, MIRROR],
                              capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return f"debootstrap from {MIRROR} took longer than 10 minutes"
    if made.returncode != 0:
        last = (made.stdout + made.stderr).strip().splitlines()[-1]
        return f"debootstrap could not fetch {suite} from {MIRROR}: {last}"
    complete.write_text(INCLUDED)
    return None


class Roots:
    """For one root."""
    root = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-roots-", dir=FOLDER))
        self.addCleanup(shutil.rmtree, self.folder)
        for file in FILES:  # the sonames are the names by which they find each other
            subprocess.run(["strip", "-o",
                            self.folder / re.sub(r"(\.so(\.\d+)?).*", r"\1", file.name), file],
                           check=True)
        os.chmod(self.folder, 0o755)
        (self.root / "deft").mkdir(exist_ok=True)

    def start(self, *command, **settings):
        """In the root, with the files at /deft; mounts are gone with the process."""
        inside = (f'mount --bind "{self.folder}" "{self.root}/deft" && '
                  f'mount -t proc proc "{self.root}/proc" && exec chroot "{self.root}" "$@"')
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        inner = ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), *command]
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", inside, "sh", *inner],
                                env=environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def outcome(self, *command, **settings):
        process = self.start(*command, **settings)
        out, err = end_of(process, 120)
        return process.returncode, out, err

    def test_the_root_is_what_it_says(self):
        _, out, _ = self.outcome("ldd", "--version")
        found = tuple(map(int, re.search(r"(\d+)\.(\d+)$", out.splitlines()[0]).groups()))
        if self.root.name == "bullseye":
            self.assertLess(found, (2, 34), "in which libpthread and libdl became parts of libc")
        self.assertGreaterEqual(found, (2, 28))

    def test_programs_run(self):
        python = ("import threading, json, subprocess; "
                  "t = threading.Thread(target=print, args=[1]); t.start(); t.join()")
        for preload in (LIBRARY, GUEST):
            for extra in ({}, {"LD_BIND_NOW": "1"}):
                with self.subTest(preload=preload, extra=extra):
                    settings = {"LD_PRELOAD": preload, **extra}
                    self.assertEqual(self.outcome("/bin/true", **settings), (0, "", ""))
                    self.assertEqual(self.outcome("/bin/sh", "-c", "echo $(echo a | tr a b)",
                                                  **settings), (0, "b\n", ""))
                    self.assertEqual(self.outcome("python3", "-c", python, **settings),
                                     (0, "1\n", ""))
                    _, maps, _ = self.outcome("cat", "/proc/self/maps", **settings)
                    self.assertIn(preload, maps, "else all of this passes for nothing")

    def test_a_job_runs(self):
        for preload in (LIBRARY, GUEST):
            for extra in ({}, {"LD_BIND_NOW": "1"}):
                with self.subTest(preload=preload, extra=extra):
                    self.check_job(preload, extra)

    def check_job(self, preload, extra):
        work = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        inside = f"/deft/{work.name}"
        ranks = [self.start("python3", "-c", PROGRAM, "linked", str(rank), "2", f"{inside}/id",
                            "20", LD_PRELOAD=preload, LD_LIBRARY_PATH="/deft",
                            NCCL_NET_PLUGIN="deft", NCCL_SOCKET_IFNAME="lo",
                            NCCL_HOSTID=f"host{rank}", DEFT_INTERFACES="lo", DEFT_MODE="observe",
                            DEFT_OUT=f"{inside}/rank%r.json", **extra)
                 for rank in range(2)]
        for rank, process in enumerate(ranks):
            out, err = end_of(process, 120)
            self.assertEqual((process.returncode, out), (0, f"rank {rank} done\n"), err)
            self.assertNotIn("WARN", err)
        for rank in range(2):
            report = json.loads((work / f"rank{rank}.json").read_text())
            self.assertEqual(report["calls"]["ncclAllReduce"], 61)
            self.assertTrue(report["plugin"]["loaded"])


for each in SUITES:
    globals()[each] = type(each, (Roots, unittest.TestCase), {"root": FOLDER / each})

if __name__ == "__main__":
    if reasons := [reason for suite in SUITES if (reason := why_not(suite))]:
        print(f"skipped: {reasons[0]}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
