# SPDX-License-Identifier: Apache-2.0
"""Programs, wrappers, scripts and NCCL libraries that deft doctor looks at."""
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from doctor_support import (
    DEFT,
    GUEST,
    LIBRARY,
    PROBE,
    STATIC_PROBE,
    DoctorTest,
    can,
    needs_cc,
    needs_root,
)

HANDLE = """#include <dlfcn.h>
int main(void) { void* h = dlopen("libnccl.so.2", 1); return dlsym(h, "ncclAllReduce") != 0; }
"""


class Programs(DoctorTest):
    def test_commands_that_cannot_be_started(self):
        self.first("command-not-found", "error", "no-such-program",
                   arguments=("--", "no-such-program", "-x"))
        self.first("command-not-found", "error", "no-such-program",
                   arguments=("--", "nice", "-n", "5", "no-such-program"))
        self.first("command-not-found", "error", "no-such.py: no such file",
                   arguments=("--", "python3", "-u", "no-such.py"))
        plain = self.write("plain.sh", "#!/bin/sh\n")
        self.first("command-not-executable", "error", plain, arguments=("--", plain))
        self.first("command-not-executable", "error", str(self.folder),
                   arguments=("--", str(self.folder)))
        script = self.script("job", "#!/opt/no/python\n")
        self.first("interpreter-missing", "error", "/opt/no/python", arguments=("--", script))
        script = self.script("job", "#!/usr/bin/env no-python\n")
        self.first("interpreter-missing", "error", "no-python", arguments=("--", script))
        for line in ("#!/bin/sh\r\n", "#!/usr/bin/env sh\r\n"):  # written on Windows
            script = self.script("job", line + "true\r\n")
            self.first("interpreter-missing", "error", "CR LF", "sh with a CR",
                       arguments=("--", script))
        script = self.script("job", "#!/bin/sh -e\r\n")  # it gets an option that it does not know
        self.first("interpreter-missing", "error", "sh -e with a CR", arguments=("--", script))
        self.script("srun", "#!/bin/sh\n")
        self.first("interpreter-missing", "error", "sh -e with a CR",
                   arguments=("--", "./srun", script))
        self.script("job", "#!/usr/bin/env -S sh -e\r\n")  # which takes a CR for a blank
        self.assertNotIn("interpreter-missing", self.doctor("--", script).stdout)

    @unittest.skipIf(STATIC_PROBE is None, "no static programs here")
    def test_static(self):
        script = self.script("job.sh", f"#!/bin/sh\ncd /\nexec {STATIC_PROBE} now\n")
        for words in ((STATIC_PROBE,), ("nice", STATIC_PROBE), ("env", "A=1", STATIC_PROBE),
                      ("deft", "run", "--mode", "observe", "--", STATIC_PROBE), (script,)):
            with self.subTest(words=words):
                self.first("program-static", "error", STATIC_PROBE, arguments=("--", *words))

    @unittest.skipUnless(shutil.which("musl-gcc"), "no musl-gcc (package musl-tools)")
    def test_musl(self):
        program = self.compile("musl", "int main(void) { return 0; }", compiler="musl-gcc")
        self.first("program-other-libc", "error", "musl", program, arguments=("--", program))
        result = self.doctor("--", program, env={"LD_PRELOAD": GUEST, "NCCL_NET_PLUGIN": "deft"})
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_other_machine(self):
        with open(PROBE, "rb") as file:
            image = bytearray(file.read())
        image[18:20] = (8).to_bytes(2, "little")  # MIPS
        program = self.folder / "mips"
        program.write_bytes(image)
        program.chmod(0o755)
        self.first("program-other-machine", "error", str(program), arguments=("--", str(program)))

    @needs_root
    def test_setuid(self):
        program = shutil.copy(PROBE, self.folder / "raised")
        os.chown(program, 65534, 65534)
        os.chmod(program, 0o4755)
        self.first("program-raised", "error", "setuid", arguments=("--", str(program)))

    def test_wrappers(self):
        lost = (("ssh", "host1", "python3", "train.py"), ("env", "-i", "true"),
                ("docker", "run", "image", "train"), ("srun", "--export=NONE", "train"),
                ("sudo", "-E", "true"), ("mpirun", "-H", "a,b", "train"),
                ("apptainer", "exec", "--cleanenv", "x.sif", "train"))
        path = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        for words in lost:
            if words[0] != "env":
                self.script(words[0], "#!/bin/sh\n")
            with self.subTest(words=words):
                self.first("preload-lost", "error", words[0], arguments=("--", *words), env=path)
        self.script("singularity", "#!/bin/sh\n")
        self.first("container-unseen", "warning", "singularity",
                   arguments=("--", "singularity", "exec", "x.sif", "true"), env=path)
        script = self.script("job.sh",
                             "#!/bin/bash\nset -e\nssh host1 python train.py\necho done\n")
        self.first("preload-lost", "error", "job.sh:3", "ssh",
                   arguments=("--", "bash", script), env=path)
        self.script("srun", "#!/bin/sh\n")
        self.first("preload-lost", "error", "SLURM_EXPORT_ENV=NONE",
                   arguments=("--", "srun", "true"), env={**path, "SLURM_EXPORT_ENV": "NONE"})
        self.first("setting-wrong", "error", "deft run has no option --moed",
                   arguments=("--", "deft", "run", "--moed", "exact", "--", "true"))
        result = self.doctor("--", "env", "-i", "deft", "run", "--", "true")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_scripts_that_take_the_preload_away(self):
        for text, place in (("#!/bin/sh\nunset LD_PRELOAD\nexec true\n", ":2"),
                            ("#!/bin/sh\n\nLD_PRELOAD=/opt/x.so exec true\n", ":3"),
                            ("#!/bin/sh\nexec env LD_PRELOAD=/opt/x.so true\n", ":2"),
                            ("#!/bin/sh\n#SBATCH --export=NONE\nsrun true\n", ":2"),
                            ("#!/usr/bin/env python3\nimport os\n"
                             "os.environ.clear()\n", ":3"),
                            ("#!/usr/bin/env python3\nimport os\n"
                             "os.environ.pop('LD_PRELOAD', None)\n", ":3")):
            with self.subTest(text=text):
                script = self.script("job", text)
                self.first("preload-reset", "error", script + place, arguments=("--", script))
        self.script("sbatch", "#!/bin/sh\n")
        script = self.script("job.slurm", "#!/bin/sh\n#SBATCH --export=NONE\nsrun true\n")
        self.first("preload-reset", "error", script + ":2", "--export=ALL",
                   arguments=("--", "sbatch", script), env={"PATH": f"{self.folder}:/usr/bin:/bin"})
        inner = self.script("inner.sh", "#!/bin/sh\nexport LD_PRELOAD=\n")
        outer = self.script("outer.sh", f"#!/bin/sh\n. {inner}\ntrue\n")
        self.first("preload-reset", "error", inner + ":2", arguments=("--", outer))
        self.first("preload-reset", "error", "LD_PRELOAD",
                   arguments=("--", "env", "LD_PRELOAD=/x.so", "true"))

    def test_settings_of_a_script(self):
        script = self.script("job.sh", "#!/bin/sh\nexport NCCL_NET=Socket\nexec true\n")
        self.first("net-other", "error", f"{script}:2", arguments=("--", script))
        script = self.script("job.sh", "#!/bin/sh\nDEFT_MODE=of exec true\n")
        self.assertIn(f"{script}:2", self.first("setting-wrong", "error", "DEFT_MODE",
                                                arguments=("--", script)))
        script = self.script("job.sh", "#!/bin/sh\nulimit -n 256\nexec true\n")
        self.first("limit-files", "warning", f"{script}:2", arguments=("--", script))
        self.first("switched-off", "error", "DEFT_MODE=off",
                   arguments=("--", "deft", "run", "--mode", "off", "--", "true"))
        script = self.write("train.py", "import os\nos.environ['NCCL_NET_PLUGIN'] = 'none'\n")
        self.first("plugin-other", "error", "train.py:2", arguments=("--", "python3", script))

    def test_python(self):
        script = self.write("train.py", "import ctypes\nctypes.CDLL('libnccl.so.2')\n")
        self.first("nccl-by-handle", "error", f"{script}:2", arguments=("--", "python3", script))
        script = self.write("train.py", "import ctypes, os\nctypes.CDLL('x', os.RTLD_DEEPBIND)\n")
        self.first("nccl-deepbind", "error", f"{script}:2",
                   arguments=("--", "python3", "-u", script))
        script = self.write("train.py", "import json\n")
        for option in ("-I", "-E", "-S", "-uE"):
            self.first("companion-off", "warning", option,
                       arguments=("--", "python3", option, script))
        self.first("companion-off", "warning", "the command sets PYTHONPATH",
                   arguments=("--", "env", "PYTHONPATH=/x", "python3", script))

    def test_python_without_pytorch(self):
        for folder in ("bin", "lib/python3.9/site-packages"):
            (self.folder / folder).mkdir(parents=True)
        python = str(shutil.copy(PROBE, self.folder / "bin/python3"))
        script = self.write("train.py", "import torch\n")
        for words in ((script,), ("-m", "torch.distributed.run", script)):
            self.first("package-missing", "error", python, arguments=("--", python, *words))
        (self.folder / "lib/python3.9/site-packages/more.pth").write_text("/opt/packages\n")
        self.assertNotIn("package-missing", self.doctor("--", python, script).stdout)
        (self.folder / "lib/python3.9/site-packages/more.pth").unlink()
        (self.folder / "lib/python3.9/site-packages/torch").mkdir()
        self.assertNotIn("package-missing", self.doctor("--", python, script).stdout)

    def test_a_library_that_is_cut_off(self):
        with open(LIBRARY, "rb") as file:
            start = file.read(100_000)
        library = self.folder / "libnccl-net-deft.so"
        library.write_bytes(start)
        self.first("preload-unusable", "error", str(library), "cut off",
                   arguments=("--", "env", f"LD_PRELOAD={library}", "NCCL_NET_PLUGIN=deft", "true"))
        self.first("library-missing", "error", str(library), "cut off",
                   arguments=("--library", str(library), "--", "true"))
        result = subprocess.run([DEFT, "run", "--library", str(library), "--", "true"],
                                capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        self.assertEqual((result.returncode, result.stderr.count("\n")), (125, 1), result.stderr)


    @needs_cc
    def test_another_library_with_hooks(self):
        other = self.nccl(22809, name="libprofile.so")
        self.first("preload-hooked", "warning", other,
                   env={"LD_PRELOAD": f"{LIBRARY}:{other}", "NCCL_NET_PLUGIN": "deft"})


@needs_cc
class Nccl(DoctorTest):
    def which(self, *arguments, env=None):
        return subprocess.run([DEFT, "which-nccl", *arguments], capture_output=True, text=True,
                              timeout=60, env=env)

    def test_by_handle(self):
        program = self.compile("handle", HANDLE, "-ldl")
        self.first("nccl-by-handle", "error", program, arguments=("--", program))
        launcher = self.script("mpirun", "#!/bin/sh\n")
        self.first("nccl-by-handle", "error", program,
                   arguments=("--", launcher, "-np", "2", program))

    def test_versions(self):
        program = self.linked(21207, f"-Wl,-rpath,{self.folder}/nccl")
        self.first("nccl-too-old", "error", "2.12.7", arguments=("--", program))
        program = self.linked(23205, f"-Wl,-rpath,{self.folder}/nccl")
        self.first("nccl-too-new", "warning", "2.32.5", arguments=("--", program))

    def test_missing(self):
        # A soname that no host has in the loader's cache.
        program = self.linked(22809, name="libnccl.so.777")
        shutil.rmtree(self.folder / "nccl")
        self.first("nccl-missing", "error", program, arguments=("--", program))

    def test_static(self):
        program = self.compile("train", "int ncclAllReduce(void) { return 0; } "
                               "int main(void) { return 0; }", "-rdynamic")
        self.first("nccl-static", "warning", program, arguments=("--", program))
        # Linked into one of the program's libraries, and no symbol says so.
        library = self.compile("libcuda-part.so", "int part(void) { return 0; } "
                               'const char text[] = "NCCL version 2.20.5+cuda12.4";',
                               "-shared", "-fPIC")
        program = self.compile("train", "int part(void); int main(void) { return part(); }",
                               library, f"-Wl,-rpath,{self.folder}")
        self.first("nccl-static", "warning", "2.20.5", library, arguments=("--", program))

    def test_a_file_in_its_place(self):
        program = self.linked(22809, f"-Wl,-rpath,{self.folder}/nccl")
        (self.folder / "early").mkdir()
        broken = self.write("early/libnccl.so.2", "version https://git-lfs.github.com/spec/v1\n")
        self.first("nccl-missing", "error", broken, arguments=("--", program),
                   env={"LD_LIBRARY_PATH": f"{self.folder}/early"})
        # As the loader does.
        said = subprocess.run([program], capture_output=True, text=True,
                              env={"LD_LIBRARY_PATH": f"{self.folder}/early"})
        self.assertIn(broken, said.stderr)

    def test_a_message_about_a_version_is_no_nccl(self):
        program = self.compile("train", 'const char text[] = "it requires NCCL version 2.27.0 or '
                               'later"; int main(void) { return text[0] == 0; }')
        result = self.doctor("--", program)
        self.assertNotIn("nccl-static", result.stdout)

    def test_several(self):
        program = self.linked(22809, "-Wl,--disable-new-dtags", f"-Wl,-rpath,{self.folder}/nccl")
        self.nccl(21805, "old")
        self.first("nccl-several", "warning", "2.28.9", "2.18.5", arguments=("--", program),
                   env={"LD_LIBRARY_PATH": f"{self.folder}/old"})
        self.nccl(22005, "older")
        self.first("nccl-several", "warning", "2.18.5", "2.20.5", arguments=("--", "true"),
                   env={"LD_LIBRARY_PATH": f"{self.folder}/old:{self.folder}/older"})

    def test_a_file_in_the_place_of_one_that_is_opened_by_name(self):
        broken = self.write("libnccl.so.2", "x")
        self.first("nccl-missing", "error", broken, arguments=("--", "true"),
                   env={"LD_LIBRARY_PATH": str(self.folder)})

    def test_which(self):
        program = self.linked(22809, f"-Wl,-rpath,{self.folder}/nccl")
        result = self.which(program)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.startswith(f"{self.folder}/nccl/libnccl.so.2 NCCL 2.28.9 "),
                        result.stdout)
        self.assertIn("started: ncclGetVersion()", result.stdout)
        # The variable comes before RUNPATH, as for the loader.
        self.nccl(21805, "old")
        result = self.which("--json", "--", program, env={"LD_LIBRARY_PATH": f"{self.folder}/old"})
        self.assertIn('"version": 21805', result.stdout.split("}")[0])
        result = self.which()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        result = self.which("/no/such/program")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("/no/such/program: command not found", result.stderr)

    def test_which_of_a_virtual_environment(self):
        venv = self.folder / "venv"
        (venv / "bin").mkdir(parents=True)
        os.symlink(os.path.realpath(sys.executable), venv / "bin/python")
        (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
        version = os.path.basename(os.path.realpath(sys.executable))
        self.nccl(22103, f"venv/lib/{version}/site-packages/nvidia/nccl/lib")
        result = self.which(venv / "bin/python", "train.py")
        self.assertIn("NCCL 2.21.3 (Python's package nvidia-nccl)", result.stdout.splitlines()[0])


@needs_cc
class Processes(DoctorTest):
    """Running programs; each waits until its standard input ends."""

    SOURCE = """#include <stdio.h>
int ncclAllReduce(void);
int main(void) { volatile int no = 0; if (no) ncclAllReduce(); puts("up"); fflush(stdout);
                 getchar(); return 0; }
"""

    def start(self, *words, env=None):
        process = subprocess.Popen(words, env={"PATH": "/usr/bin:/bin", **(env or {})},
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.folder,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.assertEqual(process.stdout.readline(), b"up\n")
        return process

    def program(self):
        library = self.nccl(22809)
        return self.compile("train", self.SOURCE, library, f"-Wl,-rpath,{self.folder}/nccl")

    def test_without_nccl(self):
        program = self.compile("idle", '#include <stdio.h>\nint main(void) { puts("up"); '
                               "fflush(stdout); return getchar(); }")
        process = self.start(program)
        self.first("preload-not-reached", "error", "neither NCCL nor",
                   arguments=("--pid", str(process.pid)))

    def test_there_is_none(self):
        self.first("process-missing", "error", "4194000", arguments=("--pid", "4194000"))

    def test_without_deft(self):
        program = self.program()
        process = self.start(program)
        self.first("preload-not-reached", "error", f"process {process.pid} (train)",
                   arguments=("--pid", str(process.pid)))
        process = self.start(program, env={"LD_PRELOAD": "/no/libnccl-net-deft.so"})
        self.first("preload-file-missing", "error", str(process.pid),
                   arguments=("--pid", str(process.pid)))
        outer = self.start("sh", "-c", f"env -u LD_PRELOAD {program}; true",
                           env={"LD_PRELOAD": LIBRARY})
        self.first("preload-lost", "error", "(sh) started", "(train)",
                   arguments=("--pid", str(outer.pid)))

    def test_with_deft(self):
        copy = shutil.copy(LIBRARY, self.folder)
        process = self.start(self.program(), env={"LD_PRELOAD": copy, "NCCL_NET_PLUGIN": "deft"})
        pid = ("--pid", str(process.pid))
        text = self.first("process-idle", "note", "no communicator", arguments=pid)
        self.assertIn(f"{self.folder}/nccl/libnccl.so.2", text)
        os.kill(process.pid, signal.SIGSTOP)
        self.addCleanup(process.send_signal, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while self.state(process) != "T" and time.monotonic() < deadline:
            os.sched_yield()
        self.first("process-stopped", "warning", str(process.pid), arguments=pid)
        os.kill(process.pid, signal.SIGCONT)
        os.remove(copy)
        self.first("library-replaced", "error", copy, arguments=pid)

    @staticmethod
    def state(process):
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().split()[2]

    def test_settings_are_those_it_was_started_with(self):
        process = self.start(self.program(), env={"LD_PRELOAD": LIBRARY, "NCCL_NET": "Socket",
                                                  "NCCL_NET_PLUGIN": "deft"})
        self.first("net-other", "error", "NCCL_NET='Socket'",
                   arguments=("--pid", str(process.pid)))

    @needs_root
    @unittest.skipUnless(can("setpriv", "--reuid", "65534", "--clear-groups", "true"),
                         "no setpriv")
    def test_setuid(self):
        program = self.program()
        os.chmod(program, 0o4755)
        self.folder.chmod(0o755)
        process = self.start("setpriv", "--reuid", "65534", "--clear-groups", program,
                             env={"LD_PRELOAD": LIBRARY})
        self.first("program-raised", "error", str(process.pid),
                   arguments=("--pid", str(process.pid)))
