# SPDX-License-Identifier: Apache-2.0
"""The software device as a Meson project: alone, and below another one's.

usage: project_test.py ROOT VENDOR_INCLUDE...
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1])
VENDOR = "-Dvendor_include=" + ",".join(sys.argv[2:])
MESON, NINJA = shutil.which("meson"), shutil.which("ninja")
# One source a library, by the folder of what it is built into. The first two take headers of deft.
ONE_EACH = ("net/libsoftnet.a.p/socket_comm.cpp.o", "nccl/libnccl.so.2.p/socket.cpp.o",
            "cuda/libcuda.so.1.p/errors.cpp.o", "cuda/libcudart.so.13.p/runtime_errors.cpp.o",
            "nvml/libnvidia-ml.so.1.p/nvml.cpp.o",
            "nccl_kernels/libsoftdev-nccl-kernels.so.p/register.cpp.o")
USER = {
    "meson.build": """
project('user', 'cpp', default_options: ['cpp_std=c++20'])
executable('user', 'main.cpp', dependencies: dependency('softdev-nccl', fallback: 'deft'))
""",
    "main.cpp": """
#include <nccl.h>
#include "softdev/cuda/softdev.h"
int main() {
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess && softdevReports() == 0 ? 0 : 1;
}
""",
}


class Project(unittest.TestCase):
    def setUp(self):
        # A blank in the path, as users have them.
        self.sandbox = tempfile.TemporaryDirectory(prefix="softdev project ")
        self.addCleanup(self.sandbox.cleanup)
        self.folder = pathlib.Path(self.sandbox.name)
        self.build = self.folder / "build"

    def do(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              timeout=280)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_stands_alone(self):
        self.do(MESON, "setup", self.build, ROOT / "softdev", VENDOR)
        self.do(NINJA, "-C", self.build, *ONE_EACH)
        self.assertIn(str(self.build), (self.build / "torch/softdev-torch").read_text())

    def test_is_found_by_a_project_that_has_deft_as_subproject(self):
        for name, text in USER.items():
            (self.folder / name).write_text(text)
        (self.folder / "subprojects").mkdir()
        (self.folder / "subprojects" / "deft").symlink_to(ROOT)
        disabled = [f"-Ddeft:{part}=disabled" for part in ("tests", "tools", "perf", "hwloc")]
        self.do(MESON, "setup", self.build, self.folder, *disabled, "-Ddeft:softdev=enabled",
                VENDOR.replace("-D", "-Ddeft:"))
        [launcher] = self.build.rglob("softdev-torch")
        outputs = launcher.parent.parent.relative_to(self.build)
        self.do(NINJA, "-C", self.build, "user.p/main.cpp.o",
                *(outputs / name for name in ONE_EACH))
        self.assertIn("libnccl.so.2", self.do(NINJA, "-C", self.build, "-t", "query", "user"))


if __name__ == "__main__":
    if not (MESON and NINJA):
        print("skipped: meson and ninja are not both on PATH")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
