# SPDX-License-Identifier: Apache-2.0
"""The .rpm in a root of glibc 2.28, the floor, by rpm and with its dependencies: put in, asked, run
in a job of two hosts, taken away.

No distribution with that glibc is needed: PACKAGE_TEST_GLIBC=FOLDER is where its sources were built
(tag glibc-2.28; configure --prefix=/usr --disable-werror --disable-nscd, then make; the targets
elf/others math/others nptl/others dlfcn/others rt/others are enough). The rest is busybox.
"""
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

from package_roots import JOB, Root, call, the, two_hosts

SOURCE = pathlib.Path(sys.argv[1])
GLIBC = pathlib.Path(os.environ.get("PACKAGE_TEST_GLIBC", ""))
LIBRARIES = {"elf/ld.so": "ld-linux-x86-64.so.2", "libc.so": "libc.so.6",
             "math/libm.so": "libm.so.6", "nptl/libpthread.so": "libpthread.so.0",
             "dlfcn/libdl.so": "libdl.so.2", "rt/librt.so": "librt.so.1"}
BUSYBOX = shutil.which("busybox")
# rpm finds by itself what the libraries provide.
SPEC = """Name: glibc
Version: 2.28
Release: 1
Summary: glibc of the floor, and a shell
License: LGPL
%description
For tests.
%install
cp -a {tree}/. %{{buildroot}}/
%files
%defattr(-,root,root)
/lib64/*
/bin/*
/sbin/*
"""


@unittest.skipUnless(GLIBC.name and JOB and BUSYBOX and os.geteuid() == 0 and
                     shutil.which("rpmbuild") and os.uname().machine == "x86_64",
                     "not root, or no PACKAGE_TEST_GLIBC, rpmbuild, busybox")
class AtTheFloor(unittest.TestCase):
    def setUp(self):
        # rpm's macros take no blanks in paths.
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="deft-floor-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.root = Root(self.work / "root", self)
        for folder in ("proc", "dev", "dev/shm", "etc", "opt", "root", "tmp", "var/lib/dpkg/info"):
            (self.root.folder / folder).mkdir(parents=True)
        os.mknod(self.root.folder / "dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (self.root.folder / "etc/ld.so.conf").touch()
        self.rpm("--initdb")
        self.rpm("-i", self.glibc())

    def rpm(self, *words):
        result = call("rpm", "--root", self.root.folder, "--nosignature", *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def glibc(self):
        tree = self.work / "tree"
        for folder in ("lib64", "bin", "sbin"):
            (tree / folder).mkdir(parents=True)
        for built, name in LIBRARIES.items():
            call("strip", "-o", tree / "lib64" / name, GLIBC / built)
        call("strip", "-o", tree / "sbin/ldconfig", GLIBC / "elf/ldconfig")
        shutil.copy(BUSYBOX, tree / "bin/busybox")
        for name in ("sh", "cat", "find"):
            (tree / "bin" / name).symlink_to("busybox")
        (self.work / "glibc.spec").write_text(SPEC.format(tree=tree))
        defines = {"_topdir": self.work / "top", "_rpmdir": self.work, "debug_package": "%{nil}",
                   "_dbpath": self.work / "db", "__os_install_post": "%{nil}",
                   "_build_id_links": "none"}
        made = call("rpmbuild", "-bb", *(word for name, value in defines.items()
                                         for word in ("--define", f"{name} {value}")),
                    self.work / "glibc.spec")
        self.assertEqual(made.returncode, 0, made.stderr)
        return next(self.work.glob("*/*.rpm"))

    def program(self, folder):
        """Starts at the floor, as the command does."""
        sources = [SOURCE / name for name in ("tests/system/tools/loaded_job.c",
                                              "packaging/start.c", "packaging/glibc.c")]
        subprocess.run(["cc", "-O1", "-fvisibility=hidden", *sources, "-o", folder / "job",
                        "-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"], check=True)

    def test_rpm(self):
        before = self.root.files()
        self.rpm("-U", the("*.rpm"))
        self.rpm("-U", "--replacepkgs", the("*.rpm"))
        self.assertEqual(self.rpm("-V", "deft"), "")
        with self.root.job() as folder:
            self.program(folder)
            result = self.root.run("deft", "doctor", "--", "/job/job")
            self.assertIn("library: /usr/lib64/libnccl-net-deft.so (deft run preloads it)",
                          result.stdout, result.stderr)
            self.assertNotIn("error: ", result.stdout)
            two_hosts(self, self.root, folder, ["/job/job"])
        self.rpm("-e", "deft")
        left = [path for path in self.root.files() - before
                if not (self.root.folder / path[1:]).is_dir()]
        self.assertEqual(left, [])
