# SPDX-License-Identifier: Apache-2.0
"""What the tests of deft run share: the programs they are given, and a folder of their own."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

DEFT, LIBRARY, PROBE = map(os.path.abspath, sys.argv[1:4])
STATIC_PROBE = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else None
# Of deft.py, for jobs that import it: beside the command in the build tree.
MODULE = {"PYTHONPATH": os.path.join(os.path.dirname(DEFT), "python")}


def preload():
    """What deft run has put into LD_PRELOAD. The loader splits that at blanks: where the build
    folder's path has one, a link stands for the library."""
    if " " not in LIBRARY:
        return LIBRARY
    links = glob.glob(f"/tmp/deft-{os.getuid()}/*/{os.path.basename(LIBRARY)}")
    return next(link for link in links if os.readlink(link) == LIBRARY)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="deft run ")
        self.addCleanup(shutil.rmtree, self.folder)

    def deft(self, *arguments, env=None, **options):
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **(env or {})}
        return subprocess.run([DEFT, *arguments], env=environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              **options)

    def seen(self, *arguments, env=None, err=""):
        """The environment the command gets; standard error must be as said."""
        result = self.deft("run", *arguments, "--", "/usr/bin/env", "-0", env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        (self.assertIn if err else self.assertEqual)(err, result.stderr)
        return dict(line.split("=", 1) for line in result.stdout.split("\0") if line)

    def check_refused(self, code, *mentions, arguments, env=None):
        """One line, the code, and nothing started."""
        witness = os.path.join(self.folder, "started")
        result = self.deft(*arguments, "--", "touch", witness, env=env)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("deft: "), result.stderr)
        for mention in mentions:
            self.assertIn(mention, result.stderr)
        self.assertFalse(os.path.exists(witness))
