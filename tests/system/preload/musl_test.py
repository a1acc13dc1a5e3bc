#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The guest in programs of another C library (musl): nothing changes, and a call of a hook ends in
an error of NCCL's.

usage: musl_test.py SOURCE GUEST   (the guest beside the library, as it is installed)
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, GUEST = map(os.path.abspath, sys.argv[1:3])


class Musl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="deft-musl-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.program = os.path.join(cls.folder, "probe")
        subprocess.run(["musl-gcc", "-o", cls.program, SOURCE], check=True, timeout=60)
        # LD_PRELOAD splits at blanks and colons, and the build folder's path may hold one. A link
        # shows the way to the file.
        cls.guest = os.path.join(cls.folder, "libdeft-preload.so")
        os.symlink(GUEST, cls.guest)

    def outcome(self, *arguments, **extra):
        result = subprocess.run([self.program, *arguments], env={"PATH": "/usr/bin:/bin", **extra},
                                cwd=self.folder, capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout, result.stderr

    def test_a_program_is_unharmed(self):
        plain = self.outcome()
        self.assertEqual(plain, (0, "value=42 child=7 errno=0\n", ""))
        for extra in ({}, {"LD_BIND_NOW": "1"}, {"DEFT_MODE": "warp"}):
            with self.subTest(extra=extra):
                self.assertEqual(self.outcome(LD_PRELOAD=self.guest, **extra), plain)

    def test_a_call_is_answered(self):
        """There is no NCCL for musl; the library, which is glibc's, must not come in half."""
        self.assertEqual(self.outcome("call")[:2], (0, "result=-1\n"))
        code, out, err = self.outcome("call", LD_PRELOAD=self.guest)
        self.assertEqual((code, out), (0, "result=2\n"))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("[deft] WARN cannot open libnccl-net-deft.so: ", err)


@unittest.skipUnless(os.geteuid() == 0, "chroot needs root")
class MuslRoot(unittest.TestCase):
    """A root with musl and nothing of glibc, as Alpine's is."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="deft-musl-root-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        for folder in ("lib", "deft"):
            os.mkdir(os.path.join(cls.root, folder))
        subprocess.run(["musl-gcc", "-o", os.path.join(cls.root, "deft/probe"), SOURCE], check=True,
                       timeout=60)
        loader = next(word for word in subprocess.run(
            ["readelf", "-lW", os.path.join(cls.root, "deft/probe")], check=True, timeout=60,
            capture_output=True, text=True).stdout.replace("]", " ").split()
            if word.startswith("/lib/ld-musl-"))
        # The loader is musl's C library, too.
        shutil.copy(os.path.realpath(loader), cls.root + loader)
        for file in (GUEST, os.path.join(os.path.dirname(GUEST), "libnccl-net-deft.so")):
            shutil.copy(file, os.path.join(cls.root, "deft"))

    def outcome(self, *arguments, preload="", **settings):
        loader = "/lib/" + os.listdir(os.path.join(self.root, "lib"))[0]
        words = ["--preload", preload] if preload else []
        # By the loader, as chroot itself is a program of glibc.
        result = subprocess.run(["chroot", self.root, loader, *words, "/deft/probe", *arguments],
                                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **settings},
                                capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout, result.stderr

    def test_the_guest_does_no_harm(self):
        plain = self.outcome("call")
        self.assertEqual(plain, (0, "result=-1\n", ""))
        code, out, err = self.outcome("call", preload="/deft/libdeft-preload.so")
        self.assertEqual((code, out), (0, "result=2\n"))
        self.assertIn("[deft] WARN cannot open libnccl-net-deft.so: ", err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(self.outcome("call", preload="/deft/libdeft-preload.so",
                                      DEFT_DISABLE="1")[2], "")

    def test_the_library_itself_is_refused_by_name(self):
        """musl's loader says which libraries it lacks, and the program does not start: the guest is
        for such images."""
        code, _, err = self.outcome("call", preload="/deft/libnccl-net-deft.so")
        self.assertNotEqual(code, 0)
        self.assertRegex(err, r"ld-linux|libc\.so\.6|symbol not found")


if __name__ == "__main__":
    if not shutil.which("musl-gcc"):
        print("skipped: no musl-gcc here (package musl-tools)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
