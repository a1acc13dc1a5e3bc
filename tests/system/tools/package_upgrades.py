# SPDX-License-Identifier: Apache-2.0
"""Packages over an older release, with what an operator has written into deft.conf; and under a job
that runs. In the same roots as package_roots.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "packaging"))
import package  # noqa: E402
import system_packages  # noqa: E402
from package_roots import (  # noqa: E402
    BUILD,
    JOB,
    PROGRAM,
    ROOTS,
    Deb,
    Image,
    Root,
    Rpm,
    Tarball,
    Wheel,
    end_of,
    the,
)

OLDER = "0.0.9"
ONLY_OLDER = "share/deft/companion/deft_companion/older.py"
CONF = "etc/deft/deft.conf"
BEGUN = "the job has begun"


def older_tree(work):
    """Of a release with another default in deft.conf, and a file that is gone since."""
    tree, _ = package.stage(BUILD, work)
    conf = "share/doc/deft/deft.conf.example"
    tree.add(conf, tree.files[conf][0] + b"#DEFT_OLDER=1\n")
    tree.add(ONLY_OLDER, "")
    return tree


@unittest.skipUnless(os.geteuid() == 0 and ROOTS, "not root, or no roots (suite roots)")
class OverAnOlderOne(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-older-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.tree = older_tree(cls.folder)
        cls.machine = os.uname().machine

    def in_roots(self, kind):
        for folder in ROOTS:
            root = Root(folder, self)
            if not kind.why_not(root):
                with self.subTest(root=folder.name):
                    yield root

    def edit(self, root):
        """As an operator does; returns what has to stay."""
        conf = root.folder / CONF
        conf.write_text("DEFT_MODE=observe\n" + conf.read_text())
        return conf.read_text()

    def check_is_new(self, root, kind):
        said = root.run("deft", "--version", path=kind.bin + ":").stdout
        self.assertNotIn(OLDER, said)
        self.assertIn(f"library {kind.lib}/libnccl-net-deft.so ", said)
        self.assertEqual(list(root.folder.glob(f"*/{ONLY_OLDER}")), [])

    def test_deb(self):
        older = self.folder / "older.deb"
        system_packages.deb(self.tree, OLDER, self.machine, 315532800, self.folder / "deb", older)
        for root in self.in_roots(Deb()):
            before = root.files()
            for edited in (False, True):
                root.give(older, "older.deb")
                root.give(the("*.deb"), "deft.deb")
                root.must("dpkg", "-i", "/older.deb")
                self.assertTrue((root.folder / "usr" / ONLY_OLDER).exists())
                kept = self.edit(root) if edited else None
                # As fleets do: nobody is there to answer.
                root.must("dpkg", *(["--force-confold"] if edited else []), "-i", "/deft.deb")
                self.check_is_new(root, Deb)
                now = (root.folder / CONF).read_text()
                self.assertEqual("DEFT_OLDER" in now, edited)
                if edited:
                    self.assertEqual(now, kept)
                odd = root.run("dpkg", "--verify", "deft").stdout.splitlines()
                self.assertEqual([line.split()[-1] for line in odd], ["/" + CONF] * edited)
                root.must("dpkg", "-r", "deft")
                self.assertEqual({path for path in root.files() - before if "dpkg" not in path},
                                 {"/etc/deft", "/" + CONF})
                root.must("dpkg", "-P", "deft")
                self.assertEqual(root.files(), before)

    def test_rpm(self):
        older = self.folder / "older.rpm"
        (self.folder / "rpm").mkdir()
        if shutil.which("rpmbuild"):
            system_packages.rpm(self.tree, OLDER, self.machine, 315532800, self.folder / "rpm",
                                older)
        kind = Rpm()
        for root in self.in_roots(kind):
            if not older.exists():
                self.skipTest("no rpmbuild here")
            before = root.files()
            self.addCleanup(shutil.rmtree, root.folder / "rpm-database", True)
            kind.rpm(root, "-U", older)
            kept = self.edit(root)
            kind.put(root)
            self.check_is_new(root, kind)
            self.assertEqual((root.folder / CONF).read_text(), kept)
            self.assertNotIn("DEFT_OLDER", (root.folder / (CONF + ".rpmnew")).read_text())
            odd = kind.call(root, "-V", "deft").stdout.splitlines()
            self.assertEqual([line.split()[-1] for line in odd], ["/" + CONF])
            kind.take(root)
            left = {CONF + ".rpmnew", CONF + ".rpmsave"}
            self.assertEqual({path for path in root.files() - before
                              if not (root.folder / path[1:]).is_dir()},
                             {"/" + path for path in left})
            shutil.rmtree(root.folder / "etc/deft")

    def test_wheel(self):
        name, content = package.wheel(self.tree, OLDER, self.machine, 315532800)
        (self.folder / name).write_bytes(content)
        kind = Wheel()
        for root in self.in_roots(kind):
            root.must("python3", "-m", "venv", kind.folder)
            self.addCleanup(shutil.rmtree, root.folder / kind.folder[1:], True)
            root.give(self.folder / name, name)
            root.must(*kind.pip, "install", "--no-index", f"/{name}")
            self.assertTrue((root.folder / kind.folder[1:] / ONLY_OLDER).exists())
            wheel = the("*.whl")
            root.give(wheel, wheel.name)
            root.must(*kind.pip, "install", "--no-index", f"/{wheel.name}")
            self.assertFalse((root.folder / kind.folder[1:] / ONLY_OLDER).exists())
            self.check_is_new(root, kind)
            kind.take(root)


@unittest.skipUnless(os.geteuid() == 0 and ROOTS and JOB, "not root, or no roots (suite roots)")
class UnderAJob(unittest.TestCase):
    """The job goes on to its end with what it has loaded."""

    def rank(self, root, number, path):
        """A process of the job, started by deft run, and the file of its standard error."""
        inside = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        said = root.folder / f"job/{number}.err"
        with said.open("w") as file:
            process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", inside, root.folder, "deft", "run", "--mode",
                 "observe", "--out", "/job/%r.json", "--", "python3", "-c", PROGRAM, "held",
                 str(number), "2", "/job/id", "200"],
                stdout=subprocess.PIPE, stderr=file, text=True,
                env={"PATH": path + ":/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
                     "LD_LIBRARY_PATH": "/job", "NCCL_SOCKET_IFNAME": "lo",
                     "DEFT_INTERFACES": "lo", "NCCL_HOSTID": f"host{number}",
                     "DEFT_JOB_ID": "upgrade",
                     # The job is stopped as long as pip takes, which is no fault of the device's.
                     "SOFTDEV_DEADLINE": "600"})
        self.addCleanup(process.kill)
        return process, said

    def stop_at_its_begin(self, process, said):
        for _ in range(6000):
            if BEGUN in said.read_text() or process.poll() is not None:
                break
            time.sleep(0.01)
        self.assertIsNone(process.poll(), said.read_text())
        process.send_signal(signal.SIGSTOP)

    def test_upgrade_and_removal(self):
        for folder in ROOTS:
            for kind in (Deb(), Rpm(), Tarball(), Image(), Wheel()):
                with self.subTest(root=folder.name, package=type(kind).__name__):
                    root = Root(folder, self)
                    if not kind.why_not(root):
                        self.check(root, kind)

    def check(self, root, kind):
        kind.put(root)
        there = True
        try:
            with root.job() as folder:
                ranks = [self.rank(root, number, kind.bin) for number in range(2)]
                for process, said in ranks:
                    self.stop_at_its_begin(process, said)
                kind.put(root)
                kind.take(root)
                there = False
                self.assertFalse((root.folder / kind.lib[1:] / "libnccl-net-deft.so").exists())
                for process, _ in ranks:
                    process.send_signal(signal.SIGCONT)
                for number, (process, said) in enumerate(ranks):
                    out, _ = end_of(process, 120)
                    self.assertEqual((process.returncode, out), (0, f"rank {number} done\n"),
                                     said.read_text())
                    self.assertTrue((folder / f"{number}.json").exists())
        finally:
            if there:
                kind.take(root)
