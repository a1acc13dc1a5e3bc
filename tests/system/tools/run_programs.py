# SPDX-License-Identifier: Apache-2.0
"""Programs that deft run cannot start, or that its library does not get into."""
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

from run_support import LIBRARY, PROBE, STATIC_PROBE, RunTest, preload


class Programs(RunTest):
    def test_command_that_cannot_be_started(self):
        script = os.path.join(self.folder, "script")
        pathlib.Path(script).write_text("#!/no/interpreter\n")
        result = self.deft("run", "--", script)
        self.assertEqual(result.returncode, 126)
        self.assertIn("Permission denied", result.stderr)
        os.chmod(script, 0o755)
        result = self.deft("run", "--", script)
        self.assertEqual(result.returncode, 126)
        self.assertIn("interpreter /no/interpreter does not exist", result.stderr)
        result = self.deft("run", "--", "no-such-command")
        self.assertEqual((result.returncode, result.stderr),
                         (127, "deft: no-such-command: command not found\n"))
        self.assertEqual(self.deft("run", "--", self.folder).returncode, 126)

    def test_says_when_the_command_loses_the_environment(self):
        tools = os.path.join(self.folder, "tools")
        os.mkdir(tools)
        for name in ("ssh", "sudo"):
            program = os.path.join(tools, name)
            pathlib.Path(program).write_text("#!/bin/sh\nexit 3\n")
            os.chmod(program, 0o755)
        for command, mention in ((("ssh", "host1", "true"),
                                  "ssh hands no environment to other hosts"),
                                 ((os.path.join(tools, "sudo"), "true"),
                                  "sudo clears the environment"),
                                 (("sudo", "-E", "true"), "never LD_PRELOAD")):
            with self.subTest(command=command):
                env = {"PATH": f"{tools}:/usr/bin:/bin"}
                result = self.deft("run", "--", *command, env=env)
                self.assertEqual((result.returncode, result.stderr.count("\n")), (3, 1),
                                 result.stderr)
                self.assertTrue(result.stderr.startswith("deft: warning: "), result.stderr)
                self.assertIn(mention, result.stderr)
                self.assertIn("put deft behind it", result.stderr)
                off = self.deft("run", "--mode", "off", "--", *command, env=env)
                self.assertEqual((off.returncode, off.stderr), (3, ""))
                required = self.deft("run", "--require", "--", *command, env=env)
                self.assertEqual(required.returncode, 125)
                self.assertIn("nothing was started", required.stderr)
        result = self.deft("run", "--", "env", "-i", "/usr/bin/env")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (0, "", 1))
        self.assertIn("env -i clears the environment", result.stderr)

    def test_command_the_loader_does_not_preload_into(self):
        if STATIC_PROBE:
            result = self.deft("run", "--", STATIC_PROBE, "threads")
            self.assertEqual((result.returncode, result.stdout.count("\n")), (0, 8))
            self.assertIn("statically linked", result.stderr)
            self.check_one_line_refusal(STATIC_PROBE)
        if os.geteuid() == 0:
            program = shutil.copy(PROBE, self.folder)
            os.chown(program, 65534, 65534)
            os.chmod(program, 0o755 | stat.S_ISUID)
            self.assertIn("raised privileges", self.deft("run", "--", program, "threads").stderr)

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no python3")
    def test_preload_that_a_program_takes_for_its_own(self):
        other = shutil.copy(LIBRARY,
                            os.path.join(tempfile.mkdtemp(prefix="own-", dir="/tmp"),
                                         "memory_saver.so"))
        self.addCleanup(shutil.rmtree, os.path.dirname(other))
        script = ("import ctypes, os; ctypes.CDLL(os.environ['LD_PRELOAD']); "
                  "maps = open('/proc/self/maps').read(); print('libnccl-net-deft.so' in maps, "
                  f"{other!r} in maps)")
        for name in ("/usr/bin/python3", "python3"):
            result = self.deft("run", "--", name, "-c", script, env={"LD_PRELOAD": other})
            self.assertEqual((result.returncode, result.stdout, result.stderr),
                             (0, "True True\n", ""))
        # A launcher hands the variable to other hosts, where only the library's own path may be
        # one; several are nobody's own.
        launcher = os.path.join(self.folder, "srun")
        pathlib.Path(launcher).write_text('#!/bin/sh\nexec env\n')
        os.chmod(launcher, 0o755)
        own = os.path.basename(LIBRARY) if " " in LIBRARY else LIBRARY
        self.assertIn(f"LD_PRELOAD={own}:{other}\n",
                      self.deft("run", "--", launcher, env={"LD_PRELOAD": other}).stdout)
        self.assertEqual(self.seen(env={"LD_PRELOAD": f"{other} {other}"})["LD_PRELOAD"],
                         f"{preload()}:{other} {other}")

    def other_program(self, loader_content):
        """The probe as a program of another loader, whose file has this content; None: there is
        no such file."""
        # the path has to fit in the place of glibc's
        folder = tempfile.mkdtemp(prefix="ld-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        loader = os.path.join(folder, "ld")
        if loader_content is not None:
            pathlib.Path(loader).write_bytes(loader_content)
        content = pathlib.Path(PROBE).read_bytes()
        own = re.search(rb"/lib\S*/ld-linux[\w.-]*\0", content)[0]
        program = os.path.join(folder, "probe")
        pathlib.Path(program).write_bytes(content.replace(own,
                                                          loader.encode().ljust(len(own), b"\0"),
                                                          1))
        os.chmod(program, 0o755)
        return program, loader

    def test_program_of_another_c_library_is_refused(self):
        for content, name in ((b"\x7fELF... musl libc (x86_64)\n", "musl"),
                              (b"\x7fELF...", "another C library")):
            program, loader = self.other_program(content)
            script = os.path.join(os.path.dirname(program), "script")
            pathlib.Path(script).write_text(f"#!{program} threads\n")
            os.chmod(script, 0o755)
            for command in (program, script):
                for options in ((), ("--require",), ("--dry-run",)):
                    with self.subTest(name=name, command=command, options=options):
                        result = self.deft("run", *options, "--", command)
                        self.assertEqual((result.returncode, result.stdout), (125, ""),
                                         result.stderr)
                        self.assertEqual(result.stderr, f"deft: {program} is a program of {name} "
                                                        f"(its loader is {loader}), "
                                                        "and deft's library is one of glibc, "
                                                        "so the loader would end the program; "
                                                        "start it without deft; "
                                                        "nothing was started\n")
            # The guest goes into it, and in mode off nothing has to.
            guest = os.path.join(os.path.dirname(LIBRARY), "libdeft-preload.so")
            shown = self.deft("run", "--dry-run", "--library", guest, "--", program)
            usual = self.deft("run", "--dry-run", "--library", guest, "--", "true")
            self.assertEqual((shown.returncode, shown.stderr), (usual.returncode, ""))
            self.assertIn("libdeft-preload.so", shown.stdout)
            off = self.deft("run", "--mode", "off", "--dry-run", "--", program)
            self.assertEqual(off.returncode, 0)
            self.assertNotIn("LD_PRELOAD", off.stdout)
            self.assertIn("warning: ", off.stderr)

    def test_glibc_by_any_other_name_is_glibc(self):
        program, loader = self.other_program(None)
        os.symlink(self.glibc_loader(), loader)
        result = self.deft("run", "--", program, "threads")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_missing_loader_is_named(self):
        program, loader = self.other_program(None)
        result = self.deft("run", "--", program)
        self.assertEqual((result.returncode, result.stderr),
                         (126,
                          f"deft: cannot execute {program}: its loader {loader} does not exist\n"))

    @staticmethod
    def glibc_loader():
        return re.search(rb"/lib\S*/ld-linux[\w.-]*(?=\0)",
                         pathlib.Path(PROBE).read_bytes())[0].decode()

    @unittest.skipUnless(shutil.which("musl-gcc"), "no musl-gcc (package musl-tools)")
    def test_program_of_musl(self):
        program = os.path.join(self.folder, "hello")
        pathlib.Path(self.folder,
                     "hello.c").write_text('#include <stdio.h>\n'
                                           'int main(void) { return puts("hello") < 0; }\n')
        subprocess.run(["musl-gcc", "-o", program, program + ".c"], check=True, timeout=60)
        result = self.deft("run", "--", program)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")),
                         (125, "", 1))
        self.assertIn("is a program of musl", result.stderr)
        guest = os.path.join(os.path.dirname(LIBRARY), "libdeft-preload.so")
        result = self.deft("run", "--library", guest, "--", program)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "hello\n", ""))

    def check_one_line_refusal(self, program):
        result = self.deft("run", "--require", "--", program, "threads")
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertIn("required", result.stderr)
