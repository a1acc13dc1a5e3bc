# SPDX-License-Identifier: Apache-2.0
"""What perf/gpu/run.sh does on machines that lack a part. Nothing is built: compiler, Meson,
driver and wheels are stand-ins."""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
TOOLS = ("awk", "bash", "cat", "chmod", "cp", "dirname", "env", "grep", "head", "ln", "ls", "mkdir",
         "mktemp", "readlink", "rm", "sed", "sh", "tail", "timeout", "touch", "tr")
SCRIPTS = {
    "bin/nvidia-smi": 'echo "A GPU"',
    "bin/meson": 'mkdir -p "$2/packaging" && touch "$2/build.ninja"',
    "bin/ninja": "exit 0",
    # The compiler wants both headers in the folders it is given; its program says what NCCL would.
    "bin/g++": 'for word in "$@"; do case $word in -I*) ls "${word#-I}" '
               '>>"$SANDBOX/headers";; esac; done\n'
               'grep -q cuda.h "$SANDBOX/headers" && grep -q nccl.h "$SANDBOX/headers" || exit 1\n'
               'while [ "$1" != -o ]; do shift; done; cp "$SANDBOX/program" "$2"',
    # The loader cuts LD_PRELOAD at blanks.
    "program": 'echo "Using network deft" >"$NCCL_DEBUG_FILE"; echo "{}"; '
               '[ -n "$DEFT_OUT" ] || exit 0; path=true\n'
               'case $LD_PRELOAD in *" "* | "") path=false;; esac\n'
               'for rank in 0 1; do echo "{\\"hooks\\": {\\"in_path\\": '
               '$path}}" >"$(dirname "$DEFT_OUT")/observe-$rank-1.json"; done',
    "python-of-the-job": f'PYTHONPATH="$SANDBOX/site" exec "{sys.executable}" "$@"',
    "sbin/ldconfig": 'printf "\\tlibcuda.so.1 (libc6,x86-64) => %s\\n" "$SANDBOX/libcuda.so.1"',
}
DDP = """import os, sys
code = int(os.environ.get("DDP", "0"))
if code == 0:
    open(sys.argv[sys.argv.index("--json") + 1], "w").write('{"good": true}')
sys.exit(code)
"""


class GpuRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="deft gpu ")
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        for tool in TOOLS:
            os.makedirs(os.path.join(self.root, "bin"), exist_ok=True)
            os.symlink(shutil.which(tool, path="/usr/bin:/bin"),
                       os.path.join(self.root, "bin", tool))
        for name, text in SCRIPTS.items():
            self.put(name, f"#!/bin/sh\n{text}\n")
        self.put("perf/gpu/ddp_modes.py", DDP)
        # The folders of the machine are looked for in the sandbox.
        with open(os.path.join(ROOT, "perf", "gpu", "run.sh"), encoding="utf-8") as file:
            text = file.read()
        for folder in ("/usr/local/", " /usr ", "/sbin/"):
            text = text.replace(folder, folder.replace("/", "./", 1))
        self.put("perf/gpu/run.sh", text)
        for header in ("nccl/include/nccl.h", "nccl/lib/libnccl.so.2",
                       "cuda_runtime/include/cuda.h"):
            self.put(f"site/nvidia/{header}", "")

    def put(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def remove(self, name):
        os.remove(os.path.join(self.root, name))

    def replace(self, name, text):
        """Another stand-in; the machine's own tools are links here, which must not be written
        through."""
        self.remove(name)
        self.put(name, f"#!/bin/sh\n{text}\n")

    def measure(self, *arguments, **more):
        """(exit status, the script's own lines, the result or None)."""
        done = self.start(*arguments, **more)
        results = glob.glob(os.path.join(glob.escape(self.root), "perf", "results", "gpu-*.json"))
        result = None
        if results:
            with open(results[0], encoding="utf-8") as file:
                result = json.load(file)
        return done.returncode, [text for text in done.stderr.splitlines()
                                 if text.startswith("gpu: ")], result

    def start(self, *arguments, **more):
        # No python3 and no ldconfig on PATH.
        environment = {"PATH": os.path.join(self.root, "bin"), "SANDBOX": self.root,
                       "PYTHON": os.path.join(self.root, "python-of-the-job"), **more}
        return subprocess.run(["/bin/bash", os.path.join(self.root, "perf", "gpu", "run.sh"),
                               *arguments], env=environment,
                              capture_output=True, text=True, check=False, timeout=60)

    def check_left_out(self, mention):
        """The two ranks are left out, in one line that has `mention`; DDP is not."""
        code, lines, result = self.measure()
        left_out = [text for text in lines if "left out" in text]
        self.assertEqual((code, len(left_out)), (3, 1), lines)
        self.assertIn(mention, left_out[0])
        self.assertEqual(result["ddp"], {"good": True})
        self.assertIn("skipped", result["deft"])

    def test_headers_of_wheels_are_found(self):
        code, lines, result = self.measure()
        self.assertEqual((code, result and result["deft"], result and result["ddp"]),
                         (0, {}, {"good": True}), lines)

    def test_without_a_header_ddp_is_measured(self):
        self.remove("site/nvidia/cuda_runtime/include/cuda.h")
        self.check_left_out("cuda.h")

    def test_without_nccl_of_its_own_ddp_is_measured(self):
        self.remove("site/nvidia/nccl/include/nccl.h")
        self.check_left_out("nccl.h")

    def test_without_ldconfig_ddp_is_measured(self):
        self.remove("sbin/ldconfig")
        self.check_left_out("libcuda.so.1")

    def test_headers_that_do_not_compile_leave_ddp(self):
        self.put("bin/g++", "#!/bin/sh\nexit 1\n")
        self.check_left_out("compiler")

    def test_nothing_to_measure(self):
        self.remove("site/nvidia/nccl/include/nccl.h")
        code, lines, result = self.measure(DDP="3")
        self.assertEqual((code, lines[-1], result), (3, "gpu: nothing was measured", None))
        self.remove("bin/nvidia-smi")
        self.assertEqual(self.measure()[0], 77)

    def test_an_error_of_nvidia_smi_is_no_gpu(self):
        self.replace("bin/nvidia-smi", 'echo "NVIDIA-SMI has failed because it could not '
                                       'communicate with the NVIDIA driver."; exit 9')
        code, lines, result = self.measure()
        self.assertEqual((code, len(lines), result), (77, 1, None), lines)

    def test_a_build_that_fails_says_why(self):
        self.replace("bin/ninja", 'echo "error: no such thing as concepts"; exit 1')
        done = self.start()
        self.assertEqual(done.returncode, 3)
        self.assertIn("no such thing as concepts", done.stderr)
        self.assertIn("could not be built", done.stderr)

    def test_ranks_that_hang_leave_ddp(self):
        self.replace("bin/timeout", "exit 124")
        code, lines, result = self.measure()
        self.assertEqual((code, result and result["ddp"]), (1, {"good": True}), lines)
        self.assertIn("124", result["socket"]["failed"])
        self.assertIn("124", result["deft"]["failed"])

    def test_hooks_that_are_not_in_the_path_are_a_failure(self):
        self.replace("program", SCRIPTS["program"].replace("path=true", "path=false"))
        code, lines, result = self.measure()
        self.assertEqual((code, result["deft"]),
                         (1, {"failed": "the hooks were not in the path of both ranks"}), lines)

    def test_of_several_gpus_one_is_used(self):
        self.replace("bin/nvidia-smi",
                     'case "$1 $2" in "-i "*) echo "GPU $2";; '
                     '*) printf "GPU 0\\nGPU 1\\nGPU 3\\n";; esac')
        self.replace("program", 'printf "%s %s\\n" "$CUDA_VISIBLE_DEVICES" "$CUDA_DEVICE_ORDER" '
                                '>>"$SANDBOX/devices"\n' + SCRIPTS["program"])
        for setting, line, name in (({}, "0 PCI_BUS_ID", "GPU 0"),
                                    ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3 ", "GPU 3")):
            with self.subTest(setting=setting):
                code, lines, result = self.measure(**setting)
                self.assertEqual(code, 0, lines)
                with open(os.path.join(self.root, "devices"), encoding="utf-8") as file:
                    self.assertEqual(set(file.read().splitlines()), {line})
                self.assertEqual(result["machine"]["gpu"], name)
                self.remove("devices")
                shutil.rmtree(os.path.join(self.root, "perf", "results"))

    def test_wrong_usage(self):
        done = self.start("--help")
        self.assertEqual((done.returncode, done.stdout),
                         (0, "usage: perf/gpu/run.sh [BUILD_DIR [OPTION_OF_DDP_MODES...]]\n"),
                         done.stderr)
        self.assertEqual(self.start("--bulid").returncode, 2)

    def test_a_failure_of_ddp_is_one_of_the_script(self):
        self.remove("sbin/ldconfig")
        self.assertEqual(self.measure(DDP="1")[0], 1)
        self.assertEqual(self.measure(PYTHON="no-such-python")[:2],
                         (3, ["gpu: no no-such-python found; nothing was measured"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
