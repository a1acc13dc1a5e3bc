#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `./dev package` makes: installed, used, upgraded and removed, each in a folder of its own.

usage: package_test.py SOURCE_ROOT BUILD [CUDA NCCL JOB]
BUILD is that of ./dev package; skipped without it. The libraries that follow are a job, to be run
in whole distributions (package_roots.py).
"""
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
OUT = BUILD / "package"
FLOOR = (2, 28)


sys.path.insert(0, str(ROOT / "tests/system/roots"))
from patience import end_of  # noqa: E402


def run(*command, **options):
    words = [str(word) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               **options)
    out, err = end_of(process, 300)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def the(pattern):
    return next(OUT.glob(pattern))


def load_tests(loader, tests, _pattern):
    import package_floor
    import package_roots
    import package_upgrades
    for module in (package_roots, package_upgrades, package_floor):
        tests.addTests(loader.loadTestsFromModule(module))
    return tests


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft package "))
        self.addCleanup(shutil.rmtree, self.folder)

    def works(self, deft, library):
        """The command finds its library, and puts it into a program."""
        result = run(deft, "--version", env={"PATH": "/usr/bin:/bin"})
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn(f"library {library} ", result.stdout)
        self.assertIn("glibc 2.28 or newer; this command 2.", result.stdout)
        result = run(deft, "run", "--mode", "off", "--", "cat", "/proc/self/maps",
                     env={"PATH": "/usr/bin:/bin"})
        self.assertIn(str(library), result.stdout)
        result = run(deft, "doctor", "--", "true", env={"PATH": "/usr/bin:/bin"})
        self.assertNotIn("library-", result.stdout)
        self.assertTrue(deft.exists())

    def test_checksums(self):
        listed = dict(reversed(line.split("  ", 1)) for line in
                      (OUT / "SHA256SUMS").read_text().splitlines())
        there = {str(path.relative_to(OUT)) for path in OUT.rglob("*") if path.is_file()}
        self.assertEqual(set(listed), there - {"SHA256SUMS"})
        for name, digest in listed.items():
            self.assertEqual(hashlib.sha256((OUT / name).read_bytes()).hexdigest(), digest, name)

    def test_again_gives_the_same_bytes(self):
        again = self.folder / "again"
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            date = archive.next().mtime
        result = run(sys.executable, ROOT / "packaging/package.py", BUILD, again,
                     env={**os.environ, "SOURCE_DATE_EPOCH": str(date)})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((again / "SHA256SUMS").read_text(), (OUT / "SHA256SUMS").read_text(),
                         "pages come from the sources: where these are newer, ./dev package")

    def test_sizes(self):
        """Those in packaging/README.md are these packages', within a tenth."""
        table = re.findall(r"^\| (.+?) \| `(.+?)` \| ([\d.]+) \|",
                           (ROOT / "packaging/README.md").read_text(), re.M)
        self.assertEqual(len(table), 6)
        for kind, pattern, megabytes in table:
            with self.subTest(kind):
                size = sum(path.stat().st_size for path in OUT.glob(pattern) if path.is_file())
                self.assertAlmostEqual(float(megabytes), size / 1e6, delta=size / 1e7)

    def test_tarball(self):
        with tarfile.open(next(path for path in OUT.glob("deft-*-linux-*.tar.gz")
                               if "debug" not in path.name)) as archive:
            archive.extractall(self.folder)
        top = next(path for path in self.folder.iterdir() if path.is_dir())
        self.works(top / "bin/deft", top / "lib/libnccl-net-deft.so")
        for name in ("share/man/man1/deft.1", "share/modulefiles/deft",
                     "share/doc/deft/packaging/prometheus/deft.rules.yml",
                     "share/bash-completion/completions/deft.bash",
                     "share/zsh/site-functions/_deft", "share/fish/vendor_completions.d/deft.fish"):
            self.assertTrue((top / name).exists(), name)
        for path in [top / "bin/deft", *top.glob("lib/*.so")]:
            asked = re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", path).stdout)
            self.assertLessEqual(max([(int(a), int(b)) for a, b in asked], default=(0, 0)), FLOOR)
            self.assertNotIn("libstdc++", run("objdump", "-p", path).stdout)
        self.assertLess((top / "lib/libnccl-net-deft.so").stat().st_size, 3_000_000)

    def test_wheel(self):
        result = run(sys.executable, "-m", "venv", self.folder / "venv")
        if result.returncode != 0:
            self.skipTest("no venv here")
        python = self.folder / "venv/bin/python"
        wheel = the("*.whl")
        self.assertRegex(wheel.name, r"^deft-[\d.]+-py3-none-manylinux_2_28_(x86_64|aarch64)\.whl$")
        for _ in range(2):  # and an upgrade
            result = run(python, "-m", "pip", "install", "--no-index", "--force-reinstall", wheel)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.works(self.folder / "venv/bin/deft", self.folder / "venv/lib/libnccl-net-deft.so")
        result = run(python, "-c", "import deft; print(deft.available())")
        self.assertEqual((result.stdout, result.stderr), ("False\n", ""))
        run(python, "-m", "pip", "uninstall", "-y", "deft")
        # pip leaves folders of data behind, and no file.
        left = [path for path in (self.folder / "venv").rglob("*deft*") if not path.is_dir()]
        self.assertEqual(left, [])

    def test_the_module_for_ucx(self):
        """In all packages but the wheel: manylinux allows none that links to the host's UCX."""
        module = "libdeft-ucx.so"
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            has = any(name.endswith(f"/lib/{module}") for name in archive.getnames())
        self.assertEqual(has, (BUILD / "packaging" / module).exists())
        with zipfile.ZipFile(the("*.whl")) as archive:
            self.assertFalse([name for name in archive.namelist() if module in name])
        if shutil.which("dpkg-deb"):
            self.assertEqual(module in run("dpkg-deb", "-c", the("*.deb")).stdout, has)
            suggests = run("dpkg-deb", "-f", the("*.deb"), "Suggests").stdout
            self.assertEqual(suggests, "libucx0 (>= 1.13)\n" if has else "")
        if shutil.which("rpm"):
            said = run("rpm", "-qp", "--suggests", the("*.rpm")).stdout
            self.assertEqual("ucx >= 1.13" in said, has)
        self.assertEqual("SPDXRef-ucx" in the("*.spdx.json").read_text(), has)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("dpkg"), "not root, or no dpkg")
    def test_deb(self):
        root = self.folder / "root"
        (root / "var/lib/dpkg").mkdir(parents=True)
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).touch()

        def dpkg(*words):
            result = run("dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless",
                         *words)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

        dpkg("-i", the("*.deb"))
        self.works(root / "usr/bin/deft", root / "usr/lib/libnccl-net-deft.so")
        conf = root / "etc/deft/deft.conf"
        self.assertTrue(all(line.startswith("#") or not line
                            for line in conf.read_text().splitlines()))
        conf.write_text("DEFT_MODE=observe\n")
        dpkg("-i", the("*.deb"))
        self.assertEqual(conf.read_text(), "DEFT_MODE=observe\n", "an upgrade leaves it alone")
        dpkg("-r", "deft")
        self.assertFalse((root / "usr/bin/deft").exists())
        self.assertTrue(conf.exists())
        dpkg("-P", "deft")
        self.assertFalse(conf.exists())

    @unittest.skipUnless(shutil.which("tclsh"), "no tclsh here")
    def test_module_file(self):
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            archive.extractall(self.folder)
        top = next(path for path in self.folder.iterdir() if path.is_dir())
        module = top / "share/modulefiles/deft"
        script = self.folder / "try.tcl"
        script.write_text('proc module-whatis {text} {}\n'
                          'proc prepend-path {name value} {puts "$name=$value"}\n'
                          f'set ModulesCurrentModulefile {{{module}}}\n'
                          f'source {{{module}}}\n')
        self.assertEqual(run("tclsh", script).stdout.splitlines(),
                         [f"PATH={top}/bin", f"LD_LIBRARY_PATH={top}/lib",
                          f"MANPATH={top}/share/man"])

    @unittest.skipUnless(shutil.which("rpm"), "no rpm here")
    def test_rpm(self):
        package = the("*.rpm")
        result = run("rpm", "-K", "--nosignature", package)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        root = self.folder.with_name("deft-rpm-root-" + str(os.getpid()))
        self.addCleanup(shutil.rmtree, root, True)
        result = run("rpm", "--root", root, "--initdb")
        for words in (("-i",), ("-U", "--replacepkgs")):
            result = run("rpm", "--root", root, "--nodeps", *words, package)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.works(root / "usr/bin/deft", root / "usr/lib64/libnccl-net-deft.so")
        result = run("rpm", "--root", root, "-e", "deft")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse((root / "usr/bin/deft").exists())

    def test_oci(self):
        image = the("*-oci")
        index = json.loads((image / "index.json").read_text())

        def blob(entry):
            content = (image / "blobs" / entry["digest"].replace(":", "/")).read_bytes()
            self.assertEqual(hashlib.sha256(content).hexdigest(), entry["digest"].split(":")[1])
            self.assertEqual(len(content), entry["size"])
            return content

        manifest = json.loads(blob(index["manifests"][0]))
        blob(manifest["config"])
        layer = self.folder / "layer.tar.gz"
        layer.write_bytes(blob(manifest["layers"][0]))
        with tarfile.open(layer) as archive:
            archive.extractall(self.folder)
        self.install_on_host()
        self.works(self.folder / "opt/deft/bin/deft",
                   self.folder / "opt/deft/lib/libnccl-net-deft.so")

    def install_on_host(self):
        """Twice, over another build, and not over what somebody else has put there."""
        script, host = self.folder / "opt/deft/install-on-host", self.folder / "host"
        (host / "opt/deft-before").mkdir(parents=True)
        link = host / "opt/deft"
        link.symlink_to("deft-before")
        for _ in range(2):
            result = run(script, host)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            self.assertTrue(link.is_symlink())
            self.assertTrue((link / "lib/libdeft-preload.so").exists())
            self.assertEqual(len(list((host / "opt").iterdir())), 3, "the build before is kept")
        link.unlink()
        link.mkdir()
        result = run(script, host)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn("move it away", result.stderr)

    def guest_of(self, folder):
        """What pkg-config says of the package unpacked there."""
        environment = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_LIBDIR": str(folder)}
        return run("pkg-config", "--variable=fleet_preload", "deft",
                   env=environment).stdout.strip().replace("\\ ", " ")

    @unittest.skipUnless(shutil.which("pkg-config") and shutil.which("dpkg-deb"), "no pkg-config")
    def test_pkg_config(self):
        run("dpkg-deb", "-x", the("*.deb"), self.folder / "deb")
        self.assertEqual(self.guest_of(self.folder / "deb/usr/lib/pkgconfig"),
                         "/usr/lib/libdeft-preload.so")
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            archive.extractall(self.folder)
        tree = next(self.folder.glob("deft-*"))
        self.assertEqual(pathlib.Path(self.guest_of(tree / "lib/pkgconfig")).resolve(),
                         tree / "lib/libdeft-preload.so")
        if shutil.which("rpm2archive"):
            shutil.copy(the("*.rpm"), self.folder / "deft.rpm")
            run("rpm2archive", self.folder / "deft.rpm")
            with tarfile.open(self.folder / "deft.rpm.tgz") as archive:
                archive.extractall(self.folder / "rpm")
            self.assertEqual(self.guest_of(self.folder / "rpm/usr/lib64/pkgconfig"),
                             "/usr/lib64/libdeft-preload.so")

    def modes(self):
        """Path, whether a folder, mode and owner of all entries, by kind of package."""
        def of(archive):
            return [(entry.name, entry.isdir(), entry.mode, entry.uid) for entry in archive]

        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            yield "tarball", of(archive)
        if shutil.which("dpkg-deb"):
            data = self.folder / "data.tar"
            with data.open("wb") as file:
                subprocess.run(["dpkg-deb", "--fsys-tarfile", the("*.deb")], stdout=file,
                               check=True)
            with tarfile.open(data) as archive:
                yield "deb", of(archive)
        if shutil.which("rpm"):
            said = run("rpm", "-qp", "--qf",
                       "[%{FILENAMES}\t%{FILEMODES:octal}\t%{FILEUSERNAME}\n]", the("*.rpm"))
            lines = [line.split("\t") for line in said.stdout.splitlines()]
            yield "rpm", [(path, int(mode, 8) & 0o170000 == 0o040000, int(mode, 8) & 0o7777,
                           0 if owner == "root" else owner) for path, mode, owner in lines]

    def test_modes(self):
        """Nobody but root may write; only the command is started."""
        for kind, entries in self.modes():
            self.assertGreater(len(entries), 50, kind)
            for path, folder, mode, owner in entries:
                with self.subTest(kind, path=path):
                    executable = folder or path.endswith("/bin/deft")
                    self.assertEqual((mode, owner), (0o755 if executable else 0o644, 0))

    def test_notices(self):
        """The licences of what is linked in ask for them."""
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            (name,) = (name for name in archive.getnames() if name.endswith("/copyright"))
            notices = archive.extractfile(name).read().decode()
        document = json.loads(the("*.spdx.json").read_text())
        linked = {relation["relatedSpdxElement"] for relation in document["relationships"]
                  if relation["relationshipType"] == "STATIC_LINK"}
        names = {part["name"] for part in document["packages"] if part["SPDXID"] in linked}
        self.assertIn("fmt", names)
        for each in names:
            self.assertIn(f"linked/{each}", notices)
        with zipfile.ZipFile(the("*.whl")) as archive:
            names = {pathlib.PurePath(name).name for name in archive.namelist()
                     if ".dist-info/" in name}
        self.assertLessEqual({"LICENSE", "copyright"}, names)
        if shutil.which("dpkg-deb"):
            said = run("dpkg-deb", "-c", the("*.deb")).stdout
            for path in ("doc/deft/copyright", "doc/deft/changelog.gz", "man1/deft.1.gz",
                         "man5/deft.conf.5.gz", "zsh/vendor-completions/_deft"):
                self.assertIn(f"./usr/share/{'man/' * path.startswith('man')}{path}\n", said)

    @unittest.skipUnless(shutil.which("man"), "no man here")
    def test_manual_pages(self):
        with tarfile.open(the("deft-*[!g].tar.gz")) as archive:
            archive.extractall(self.folder)
        pages = list(self.folder.glob("*/share/man/*/*"))
        self.assertEqual(len(pages), 2)
        for page in pages:
            result = run("man", "--warnings", "-E", "UTF-8", "-l", page,
                         env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_sbom(self):
        document = json.loads(the("*.spdx.json").read_text())
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        names = {file["fileName"] for file in document["files"]}
        self.assertIn("./lib/libnccl-net-deft.so", names)
        known = {part["SPDXID"] for part in document["packages"] + document["files"]}
        for relation in document["relationships"]:
            self.assertIn(relation["relatedSpdxElement"], known)
        for file in document["files"]:  # SPDX 2.3 demands SHA1 of a file
            self.assertEqual({check["algorithm"] for check in file["checksums"]},
                             {"SHA1", "SHA256"})
        if importlib.util.find_spec("spdx_tools"):
            from spdx_tools.spdx.parser.parse_anything import parse_file
            from spdx_tools.spdx.validation import document_validator
            problems = document_validator.validate_full_spdx_document(
                parse_file(str(the("*.spdx.json"))))
            self.assertEqual([problem.validation_message for problem in problems], [])


if __name__ == "__main__":
    if not (OUT / "SHA256SUMS").exists():
        print(f"no packages in {OUT}: run ./dev package")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
