# SPDX-License-Identifier: Apache-2.0
"""What ./dev and .ci/run do about wrong words and about build folders of other people's. Nothing
is installed or built: dpkg, Meson and Ninja are stand-ins."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
OWN_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
SCRIPTS = {
    "bin/dpkg-query": 'echo installed',
    "bin/ninja": "exit 0",
    # Knows whether it was told to take what there is, as a real tree does.
    "bin/meson": '''
echo "$*" >>"$SANDBOX/meson.log"
case $1 in
    --version) echo 1.1.0 ;;
    setup)
        for word in "$@"; do
            case $word in -Dauto_features=*) echo "${word#*=}" >"$SANDBOX/auto_features" ;; esac
        done
        touch "$SANDBOX/build/build.ninja" ;;
    test)
        if [ "$(cat "$SANDBOX/auto_features" 2>/dev/null)" = disabled ]; then
            echo "No tests defined."
        else
            echo "deft:unit / one"
        fi ;;
esac''',
}
HEADERS = {"cuda.h": "", "cuda_runtime_api.h": "", "nv/target": "",
           "nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"}


class Sandbox(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft dev ")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name, text in SCRIPTS.items():
            self.put(name, f"#!/bin/sh\n{text}\n")
        for name, text in HEADERS.items():
            self.put(f"build/vendor/include/{name}", text)
        for script in ("dev", ".ci/run", ".ci/look_at_rest"):
            with open(os.path.join(ROOT, script), encoding="utf-8") as file:
                self.put(script, file.read().replace(f"PATH={OWN_PATH}:$PATH", "PATH=$PATH"))

    def put(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def read(self, name):
        try:
            with open(os.path.join(self.root, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def run_script(self, script, *arguments):
        environment = {"PATH": os.path.join(self.root, "bin") + ":" + OWN_PATH,
                       "SANDBOX": self.root, "DEV_NO_INSTALL": "1", "HOME": self.root}
        return subprocess.run([os.path.join(self.root, script), *arguments],
                              env=environment, capture_output=True, text=True, check=False,
                              timeout=60, cwd=self.root)


class Dev(Sandbox):
    def test_a_tree_configured_for_the_library_alone_gets_tests(self):
        self.put("build/build.ninja", "")
        self.put("auto_features", "disabled\n")
        done = self.run_script("dev", "test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.read("auto_features"), "auto\n")
        # What somebody then asks ./dev for is left alone.
        os.remove(os.path.join(self.root, "auto_features"))
        self.put("build/vendor/include/another.h", "")
        self.assertEqual(self.run_script("dev", "test").returncode, 0)
        self.assertEqual(self.read("auto_features"), "")

    def test_a_tree_of_its_own_is_configured_as_ever(self):
        self.assertEqual(self.run_script("dev", "test", "--suite", "unit").returncode, 0)
        self.assertNotIn("auto_features", self.read("meson.log"))
        self.assertIn("--print-errorlogs --suite unit", self.read("meson.log"))

    def test_no_test_is_no_success(self):
        self.assertEqual(self.run_script("dev", "build", "-Dauto_features=disabled").returncode, 0)
        done = self.run_script("dev", "test")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no test was built in build", done.stderr.splitlines()[-1])


class Colours(Sandbox):
    """Escape codes are for terminals alone, and NO_COLOR is heeded by what ./dev starts, too."""

    def setUp(self):
        super().setUp()
        self.put("bin/ninja", '#!/bin/sh\necho "TERM=$TERM" >"$SANDBOX/ninja.log"\n')

    def on_a_terminal(self, **more):
        """What ./dev prints to one."""
        primary, secondary = os.openpty()
        environment = {"PATH": os.path.join(self.root, "bin") + ":" + OWN_PATH, "TERM": "xterm",
                       "SANDBOX": self.root, "DEV_NO_INSTALL": "1", "HOME": self.root, **more}
        done = subprocess.run([os.path.join(self.root, "dev"), "build"], env=environment,
                              stdin=subprocess.DEVNULL, stdout=secondary, stderr=secondary,
                              cwd=self.root, timeout=60, check=False)
        os.close(secondary)
        text = os.read(primary, 65536)
        os.close(primary)
        self.assertEqual(done.returncode, 0, text)
        return text

    def test_a_terminal_has_them(self):
        self.assertIn(b"\x1b[1m==> building", self.on_a_terminal())
        self.assertEqual(self.read("ninja.log"), "TERM=xterm\n")

    def test_no_color(self):
        self.assertNotIn(b"\x1b", self.on_a_terminal(NO_COLOR="1"))
        self.assertEqual(self.read("ninja.log"), "TERM=dumb\n")

    def test_a_pipe_has_none(self):
        done = self.run_script("dev", "build")
        self.assertIn("==> building", done.stderr)
        self.assertNotIn("\x1b", done.stdout + done.stderr)


class Lint(Sandbox):
    def setUp(self):
        super().setUp()
        self.put("bin/git", "#!/bin/sh\necho a.cpp\n")
        self.put("bin/clang-format", "#!/bin/sh\nexit 0\n")
        self.put("tools/house/docs_lint.py", "")

    def test_the_python_is_looked_at(self):
        for code in (0, 1):
            self.put("bin/ruff", f'#!/bin/sh\necho "$*" >"$SANDBOX/ruff.log"\nexit {code}\n')
            self.assertEqual(self.run_script("dev", "lint").returncode, code)
            self.assertTrue(self.read("ruff.log").startswith("check "))

    def test_where_nothing_may_be_installed_ruff_may_be_missing(self):
        if shutil.which("ruff", path=OWN_PATH):
            self.skipTest("this machine has one")
        done = self.run_script("dev", "lint")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (0, 1), done.stderr)
        self.assertIn("no ruff here", done.stderr)


class Ci(Sandbox):
    def test_a_stage_that_is_not_there(self):
        for arguments in (["tset"], ["lint", "tset"], [""], ["lint test"]):
            done = self.run_script(".ci/run", *arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1),
                             done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.root, "build", "ci")))

    def test_help(self):
        done = self.run_script(".ci/run", "--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("usage: .ci/run [STAGE...]\n"))

    def test_every_stage_is_in_the_list(self):
        text = self.read(".ci/run")
        listed = re.search(r"^stages=\((.*)\)$", text, re.MULTILINE).group(1).split()
        called = re.findall(r"^stage(?:_in_time)? (\w+)", text, re.MULTILINE)
        by_name = re.search(r"^for name in ([\w ]+); do$", text, re.MULTILINE).group(1).split()
        self.assertEqual(listed, called + by_name)
        self.assertEqual(self.run_script(".ci/run", "bare").returncode, 1, "a known one is run")

    def test_what_the_sanitizers_leave_out_is_looked_at(self):
        self.put("bin/clang++", '#!/bin/sh\necho "$*" >>"$SANDBOX/clang.log"\n'
                                'for source; do :; done\n! grep -q bad "$source"\n')
        for name in ("built.cpp", "left.cpp"):
            self.put(name, "bad" if name == "built.cpp" else "good")
        for build, names in (("clang", ["built.cpp"]), ("gcc", ["built.cpp", "left.cpp"])):
            self.put(f"{build}/compile_commands.json", json.dumps(
                [{"directory": self.root, "file": name, "command":
                  f"ccache c++ -O2 -MQ x.o -MF x.d -o x.o -c {name}"} for name in names]))
        look = self.run_script(".ci/look_at_rest", "clang", "gcc")
        self.assertEqual((look.returncode, look.stdout), (0, "1 sources looked at, 0 refused\n"))
        self.assertIn("-fsyntax-only", self.read("clang.log"))
        self.assertTrue(self.read("clang.log").endswith(" -O2 -c left.cpp\n"))
        self.put("left.cpp", "bad")
        look = self.run_script(".ci/look_at_rest", "clang", "gcc")
        self.assertEqual(look.returncode, 1, look.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
