#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The preload in processes that do not use NCCL changes nothing: output, exit code, /proc/self.

usage: matrix_test.py LIBRARY PROBE [STATIC_PROBE]
"""
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

LIBRARY, PROBE = map(os.path.abspath, sys.argv[1:3])
STATIC_PROBE = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
if set(LIBRARY) & set(" :"):
    # LD_PRELOAD splits at blanks and colons, and the build folder's path may hold one: a link to
    # the library then.
    _link_folder = tempfile.mkdtemp(prefix="deft-preload-", dir="/tmp")
    atexit.register(shutil.rmtree, _link_folder)
    os.symlink(LIBRARY, os.path.join(_link_folder, os.path.basename(LIBRARY)))
    LIBRARY = os.path.join(_link_folder, os.path.basename(LIBRARY))

# Values that are all wrong, which nobody without NCCL is to hear about.
WRONG = {"DEFT_MODE": "warp", "DEFT_LOG": "loud", "DEFT_LINK_TIMEOUT": "-3 parsecs",
         "DEFT_NOSUCH": "1", "DEFT_CONF": "/nonexistent/deft.conf",
         "DEFT_LOG_FILE": "/nonexistent/log", "DEFT_REQUIRE": "1"}
TALKATIVE = {"DEFT_LOG": "debug", "DEFT_MODE": "observe"}
OFF = {"DEFT_MODE": "off"}


class Matrix(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="deft-preload-")
        self.addCleanup(shutil.rmtree, self.folder)

    def outcome(self, command, extra):
        # A small, fixed environment: what a test runner sets is not the matter here.
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": self.folder, **extra}
        result = subprocess.run(command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=120)
        left = sorted(os.listdir(self.folder))
        return result.returncode, result.stdout, result.stderr, left

    def check_same(self, *command):
        plain = self.outcome(command, {})
        for settings in ({}, WRONG, TALKATIVE, OFF):
            with self.subTest(settings=settings):
                # Set in both runs: a shell that prints its environment may show them.
                self.assertEqual(self.outcome(command, {**settings}),
                                 self.outcome(command, {"LD_PRELOAD": LIBRARY, **settings}))
        return plain

    def test_the_preload_is_really_there(self):
        """Else everything below passes for nothing."""
        code, out, err, _ = self.outcome(["/bin/cat", "/proc/self/maps"], {"LD_PRELOAD": LIBRARY})
        self.assertEqual((code, err), (0, b""))
        self.assertIn(os.path.basename(LIBRARY).encode(), out)

    def test_true_and_false(self):
        self.assertEqual(self.check_same("/bin/true"), (0, b"", b"", []))
        self.assertEqual(self.check_same("/bin/false")[0], 1)

    def test_sh(self):
        code, out, err, _ = self.check_same(
            "/bin/sh", "-c",
            "echo out; echo err >&2; (exit 4); echo $?; cat /dev/null | wc -c; kill -TERM $$")
        self.assertEqual((code, out, err), (-15, b"out\n4\n0\n", b"err\n"))

    @unittest.skipUnless(shutil.which("bash"), "no bash")
    def test_bash(self):
        code, out, _, _ = self.check_same(
            "bash", "-c", "trap 'echo bye' EXIT; x=$(printf %s a b); echo $x <(true) | tr a-z A-Z "
                          "| cut -c1-2; exit 6")
        self.assertEqual((code, out), (6, b"AB\nbye\n"))

    def test_python(self):
        program = ("import sys, os, threading, subprocess, ctypes, multiprocessing as m\n"
                   "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
                   "print(subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout)\n"
                   "p = m.get_context('fork').Process(target=print, args=('forked',), "
                   "kwargs={'flush': True})\n"
                   "p.start(); p.join(); print(p.exitcode, threading.active_count())\n"
                   "sys.stderr.write('err'); sys.stderr.flush(); sys.stdout.flush(); os._exit(5)\n")
        code, out, err, _ = self.check_same(sys.executable, "-S", "-c", program)
        self.assertEqual((code, err), (5, b"err"))
        self.assertIn(b"forked\n0 1\n", out)

    def test_python_traceback(self):
        self.assertEqual(self.check_same(sys.executable, "-S", "-c", "import nosuchmodule")[0], 1)

    def test_fork(self):
        self.assertIn(b"child ended with 1792", self.check_same(PROBE, "fork")[1])

    def test_vfork(self):
        self.assertEqual(self.check_same(PROBE, "vfork")[1], b"started\nchild ended with 0\n")

    def test_exec(self):
        self.assertEqual(self.check_same(PROBE, "exec")[0], 0)

    def test_posix_spawn(self):
        self.assertIn(b"child ended with 0", self.check_same(PROBE, "spawn")[1])

    def test_system(self):
        self.assertEqual(self.check_same(PROBE, "system")[:2], (0, b"from the shell\n"))

    def test_threads(self):
        self.assertEqual(self.check_same(PROBE, "threads")[:2],
                         (0, b"".join(b"%d\n" % (2 * i) for i in range(8))))

    def test_death_by_signal(self):
        self.assertEqual(self.check_same(PROBE, "kill")[0], -15)
        self.assertEqual(self.check_same(PROBE, "abort")[:3], (-6, b"", b"last words\n"))

    @unittest.skipUnless(STATIC_PROBE, "no static libc")
    def test_static_program(self):
        for what in ("state", "fork", "threads"):
            self.assertEqual(self.check_same(STATIC_PROBE, what)[0], 0)

    @unittest.skipUnless(shutil.which("setpriv") or os.geteuid() == 0, "needs root")
    def test_program_that_gains_privileges(self):
        """The loader's secure mode ignores a preload with a path; nothing may break."""
        if os.geteuid() != 0:
            self.skipTest("needs root to make a setuid program")
        program = os.path.join(self.folder, "probe")
        shutil.copy(PROBE, program)
        os.chown(program, 65534, 65534)
        os.chmod(program, 0o6755)
        os.chmod(self.folder, 0o755)
        self.check_same(program, "threads")

    def test_state_of_the_process(self):
        """Threads, descriptors, environment, signals: the same. Mappings: only the library more."""
        code, out, err, _ = self.check_same(PROBE, "state")
        self.assertEqual((code, err), (0, b""))
        self.assertIn(b"/proc/self/task: 1 entries", out)
        self.assertIn(b"errno 0", out)

    def test_mappings(self):
        def files(extra):
            out = self.outcome(["/bin/cat", "/proc/self/maps"], extra)[1].decode()
            return {line.split(None, 5)[5] for line in out.splitlines()
                    if len(line.split(None, 5)) > 5}
        added = files({"LD_PRELOAD": LIBRARY}) - files({})
        self.assertEqual({os.path.basename(path) for path in added}, {os.path.basename(LIBRARY)})

    def test_heap(self):
        """Nothing is allocated before it is needed but the C++ runtime's reserve for exceptions."""
        def heap(extra):
            with tempfile.NamedTemporaryFile("r") as file:
                self.outcome([PROBE, "state"], {"PROBE_HEAP": file.name, **extra})
                return int(file.read())
        self.assertLessEqual(heap({"LD_PRELOAD": LIBRARY}) - heap({}), 80 * 1024)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
