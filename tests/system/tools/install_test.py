#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `meson install` makes works from where it was put, also when that place is moved.

usage: install_test.py BUILD_ROOT SANITIZED(true|false)
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

BUILD, SANITIZED = os.path.abspath(sys.argv[1]), sys.argv[2] == "true"
MESON = shutil.which("meson")
# The environment of a user's shell: no build tree in the search paths.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def run(*command, env=ENVIRONMENT):
    return subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True,
                          timeout=300)


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-install-"))
        stage = cls.folder / "stage"
        result = subprocess.run([MESON, "install", "-C", BUILD, "--no-rebuild", "--destdir",
                                 str(stage)],
                                capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            raise RuntimeError(result.stdout + result.stderr)
        # Moved: whatever remembers the place it was installed to breaks here.
        cls.stage = cls.folder / "moved here"
        stage.rename(cls.stage)
        cls.deft = next(cls.stage.rglob("bin/deft"))
        cls.library = next(cls.stage.rglob("libnccl-net-deft.so"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_version_finds_the_installed_library(self):
        result = run(self.deft, "--version")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn(f"library {self.library} ", result.stdout)

    @unittest.skipIf(SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_run_works_from_there(self):
        self.assertEqual(run(self.deft, "run", "--", "true").returncode, 0)
        result = run(self.deft, "run", "--mode", "off", "--", "cat", "/proc/self/maps")
        self.assertEqual(result.stderr, "")
        self.assertIn(str(self.library), result.stdout)

    @unittest.skipIf(SANITIZED, "a sanitizer's runtime must be loaded first")
    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_a_python_job_finds_the_module(self):
        result = run(self.deft, "run", "--mode", "covap", "--", "/usr/bin/python3", "-B", "-c",
                     "import deft; print(deft.should_step(), deft.available())")
        self.assertEqual((result.stdout, result.stderr), ("True True\n", ""))

    @unittest.skipIf(SANITIZED, "a sanitizer's runtime must be loaded first")
    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_the_guest_opens_the_library_next_to_it(self):
        script = ("import deft; print(deft.version()); "
                  "print('libnccl-net-deft.so' in open('/proc/self/maps').read())")
        result = run(self.deft, "run", "--library", self.library.with_name("libdeft-preload.so"),
                     "--", "/usr/bin/python3", "-B", "-c", script)
        self.assertEqual((result.stdout, result.stderr),
                         (run(self.deft, "--version").stdout.split()[1] + "\nTrue\n", ""))

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_the_companions_wheel_starts_it_where_torch_is_imported(self):
        wheel = next(self.stage.rglob("*.whl"))
        with tempfile.TemporaryDirectory() as site, zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
            # The line of the .pth file runs in every process: it imports nothing.
            script = ("import site, sys; before = set(sys.modules); site.addsitedir(sys.argv[1]); "
                      "print(sorted(set(sys.modules) - before)); sys.path.insert(0, sys.argv[2]); "
                      "import torch; print('deft_companion.imports' in sys.modules)")
            other = pathlib.Path(site, "other")
            other.mkdir()
            (other / "torch.py").touch()

            def started(switch):
                return run("/usr/bin/python3", "-B", "-c", script, site, str(other),
                           env={**ENVIRONMENT, "DEFT_COMPANION": switch}).stdout
            self.assertEqual(started("auto"), "[]\nTrue\n")
            self.assertEqual(started("off"), "[]\nFalse\n")
            package = pathlib.Path(site, "deft_companion")
            package.rename(other / "gone")
            self.assertEqual(started("auto"), "[]\nFalse\n", "torch comes all the same")
            (other / "gone").rename(package)
            (other / "torch.py").unlink()
            other.rmdir()
            record = next(pathlib.Path(site).rglob("RECORD")).read_text()
            for path in pathlib.Path(site).rglob("*"):
                if path.is_file():
                    self.assertIn(str(path.relative_to(site)) + ",", record)

    def test_everything_is_there_and_nothing_else(self):
        files = sorted(str(path.relative_to(self.stage)) for path in self.stage.rglob("*")
                       if path.is_file())
        ends = ("bin/deft", "libnccl-net-deft.so", "libdeft-preload.so", "pkgconfig/deft.pc",
                "include/deft/deft.h", "include/deft/abi/net.h", "man1/deft.1", "man5/deft.conf.5",
                "doc/deft/LICENSE", "doc/deft/README.md", "doc/deft/CHANGELOG.md",
                "doc/deft/docs/configuration.md", "share/deft/python/deft.py",
                "share/deft/companion/sitecustomize.py", "-py3-none-any.whl",
                "doc/deft/deft.conf.example", "completions/deft.bash", "site-functions/_deft",
                "vendor_completions.d/deft.fish", "prometheus/deft-dashboard.json",
                "prometheus/deft.rules.yml", "packaging/copyright",
                "perf/headlines/policies.svg")
        for end in ends:
            self.assertTrue(any(name.endswith(end) for name in files), f"{end} is missing")
        unexpected = [name for name in files if not name.endswith((*ends, "libdeft-ucx.so"))
                      and "/include/deft/" not in name
                      and "/companion/deft_companion/" not in name
                      and not re.search(r"/doc/deft/(.*\.md|perf/results/.*\.json)$", name)]
        self.assertEqual(unexpected, [])

    def test_links_between_the_pages_lead_to_pages(self):
        folder = next(self.stage.rglob("doc/deft"))
        pages = sorted(folder.rglob("*.md"))
        self.assertGreater(len(pages), 20)
        dead = []
        for page in pages:
            for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8")):
                if "://" not in link and not (page.parent / link).exists():
                    dead.append(f"{page.relative_to(folder)}: {link}")
        self.assertEqual(dead, [])

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config")
    def test_pkg_config(self):
        folder = next(self.stage.rglob("deft.pc")).parent
        env = {**ENVIRONMENT, "PKG_CONFIG_PATH": str(folder)}
        self.assertEqual(run("pkg-config", "--modversion", "deft", env=env).stdout.strip(),
                         run(self.deft, "--version").stdout.split()[1].split("+")[0])
        preload = run("pkg-config", "--variable=preload", "deft", env=env).stdout.strip()
        self.assertTrue(str(self.library).endswith(preload), preload)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_each_public_header_compiles_alone_as_c(self):
        include = next(self.stage.rglob("include/deft")).parent
        for header in sorted((include / "deft").rglob("*.h")):
            source = self.folder / "alone.c"
            source.write_text(f"#include <{header.relative_to(include)}>\n"
                              f"int main(void) {{ return 0; }}\n")
            result = run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I",
                         include, source)
            self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    if MESON is None:
        print("skipped: no meson in PATH")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
