#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `./dev package aarch64` has cross-built, under qemu: the command, the library's lists of
symbols, both preloads in a program, and a job of two ranks on the software device.

usage: package_cross_test.py SOURCE_ROOT BUILD MACHINE VENDOR   (skipped without a build or qemu)
VENDOR is a folder that may hold the headers of CUDA and NCCL.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT, BUILD, MACHINE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
VENDOR = [folder for folder in (sys.argv[4], "/usr/local/cuda/include") if os.path.isdir(folder)]
sys.path.insert(0, str(ROOT / "tests/system/roots"))
from patience import end_of  # noqa: E402

OUT = BUILD / "package"
DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}[MACHINE]
SYSROOT = f"/usr/{MACHINE}-linux-gnu"
QEMU = f"qemu-{MACHINE}-static"
PREFIX = f"{MACHINE}-linux-gnu-"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=120, **options)


class CrossBuilt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-cross-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        with tarfile.open(next(OUT.glob(f"deft-*-linux-{MACHINE}.tar.gz"))) as archive:
            archive.extractall(cls.folder)
        cls.tree = next(path for path in cls.folder.iterdir() if path.is_dir())
        cls.library = cls.tree / "lib/libnccl-net-deft.so"
        cls.guest = cls.tree / "lib/libdeft-preload.so"
        cls.program = cls.folder / "probe"
        made = run(PREFIX + "gcc", "-o", cls.program, ROOT / "tests/system/preload/musl_probe.c",
                   "-pthread")
        assert made.returncode == 0, made.stderr

    def command(self, *words, preload=None, **settings):
        """That starts a program of that machine; its own LD_PRELOAD, not qemu's."""
        given = {**({"LD_PRELOAD": str(preload)} if preload else {}), **settings}
        return [QEMU, "-L", SYSROOT, *(word for name, value in given.items()
                                       for word in ("-E", f"{name}={value}")), *map(str, words)]

    def started(self, *words, **settings):
        return run(*self.command(*words, **settings), env={"PATH": "/usr/bin:/bin"})

    def test_the_command_starts(self):
        result = self.started(self.tree / "bin/deft", "--version")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"library {self.library} ", result.stdout)
        self.assertIn("glibc 2.28 or newer; this command 2.", result.stdout)
        self.assertIn("network plugin v6 to v12, tuner v2 to v6", result.stdout)

    def test_the_command_works(self):
        result = self.started(self.tree / "bin/deft", "env", "--json", DEFT_MODE="observe")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("observe", json.dumps(json.loads(result.stdout)))
        self.assertIn("DEFT_MODE", (self.tree / "share/man/man5/deft.conf.5").read_text())

    def test_elf(self):
        """The same lists as this machine's library has to keep."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("nm", "readelf", "size"):
            (tools / name).symlink_to(shutil.which(PREFIX + name))
        result = run(sys.executable, ROOT / "tests/system/preload/elf_test.py", self.library,
                     self.guest, self.tree / "bin/deft", "-", "true",
                     env={"PATH": f"{tools}:/usr/bin:/bin", "ELF_TEST_TOOLS": str(tools)})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_programs_run_with_the_preloads(self):
        plain = self.started(self.program)
        self.assertEqual((plain.returncode, plain.stdout),
                         (0, "value=42 child=7 errno=0\n"), plain.stderr)
        for preload in (self.library, self.guest):
            for extra in ({}, {"LD_BIND_NOW": "1"}):
                with self.subTest(preload=preload.name, extra=extra):
                    result = self.started(self.program, preload=preload, **extra)
                    self.assertEqual((result.returncode, result.stdout), (0, plain.stdout))
                    # The shell that it starts is this machine's, whose loader ignores the preload
                    # with a line; the program's own says nothing.
                    self.assertLessEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_hooks_are_reached(self):
        self.assertEqual(self.started(self.program, "call").stdout, "result=-1\n")
        for preload in (self.library, self.guest):
            with self.subTest(preload=preload.name):
                result = self.started(self.program, "call", preload=preload)
                # There is no NCCL here: the hook says so, in one line of the library's.
                self.assertEqual((result.returncode, result.stdout), (0, "result=2\n"))
                self.assertIn("[deft] WARN ", result.stderr)
                self.assertNotIn("cannot open libnccl-net-deft.so", result.stderr)

    def build_job(self):
        """The program, and where its libraries lie: the software device, built with the package."""
        folder = BUILD / "software-device"
        if not VENDOR or not shutil.which("meson"):
            self.skipTest("no headers of CUDA here, or no meson")
        if not (folder / "build.ninja").exists():
            self.built("meson", "setup", folder, ROOT / "softdev", "--cross-file",
                       f"packaging/cross/{MACHINE}.ini", f"-Dvendor_include={','.join(VENDOR)}")
        self.built("ninja", "-C", folder, "cuda/libcuda.so.1", "nccl/libnccl.so.2")
        job, parts = self.folder / "job", [folder / "nccl", folder / "cuda"]
        self.built(PREFIX + "g++", "-std=c++20", "-I", ROOT,
                   *(word for vendor in VENDOR for word in ("-isystem", vendor)),
                   ROOT / "tests/system/shim/training_main.cpp", "-o", job,
                   *(f"-L{part}" for part in parts), "-l:libnccl.so.2", "-l:libcuda.so.1")
        return job, ":".join(map(str, parts))

    def built(self, *words):
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        out, _ = end_of(process, 900)
        self.assertEqual(process.returncode, 0, out)

    def test_a_job_runs(self):
        job, libraries = self.build_job()
        for preload in (self.library, self.guest):
            with self.subTest(preload=preload.name):
                self.check_job(job, preload, libraries)

    def check_job(self, job, preload, libraries):
        work = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        ranks = [subprocess.Popen(
            self.command(job, "linked", rank, 2, work / "id", 20, preload=preload,
                         LD_LIBRARY_PATH=f"{self.tree}/lib:{libraries}", NCCL_NET_PLUGIN="deft",
                         NCCL_SOCKET_IFNAME="lo", NCCL_HOSTID=f"host{rank}", DEFT_INTERFACES="lo",
                         DEFT_MODE="observe", DEFT_OUT=f"{work}/rank%r.json"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        for rank, process in enumerate(ranks):
            out, err = end_of(process, 200)
            self.assertEqual((process.returncode, out), (0, f"rank {rank} done\n"), err)
            self.assertNotIn("WARN", err)
        for rank in range(2):
            record = json.loads((work / f"rank{rank}.json").read_text())
            self.assertEqual(record["calls"]["ncclAllReduce"], 61)
            self.assertTrue(record["plugin"]["loaded"])
            self.assertGreater(sum(link["bytes_sent"] for link in record["links"]), 0)

    def test_packages_are_for_that_machine(self):
        (deb,) = OUT.glob("*.deb")
        self.assertEqual(run("dpkg-deb", "-f", deb, "Architecture").stdout, DEBIAN + "\n")
        self.assertEqual(len(list(OUT.glob(f"*.{MACHINE}.rpm"))), 1)
        self.assertEqual(len(list(OUT.glob(f"*-manylinux_2_28_{MACHINE}.whl"))), 1)
        index = json.loads((next(OUT.glob("*-oci")) / "index.json").read_text())
        digest = index["manifests"][0]["digest"].removeprefix("sha256:")
        blobs = next(OUT.glob("*-oci")) / "blobs/sha256"
        config = json.loads((blobs / digest).read_text())["config"]["digest"]
        self.assertEqual(json.loads((blobs / config.removeprefix("sha256:")).read_text())
                         ["architecture"], DEBIAN)


if __name__ == "__main__":
    for needed in (QEMU, PREFIX + "gcc", PREFIX + "nm"):
        if not shutil.which(needed):
            print(f"skipped: no {needed} here")
            sys.exit(77)
    if not (OUT / "SHA256SUMS").exists() or os.uname().machine == MACHINE:
        print(f"no packages in {OUT}: run ./dev package {MACHINE}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
