# SPDX-License-Identifier: Apache-2.0
"""The packages in whole distributions: each is put in, used, run in a job of two hosts, and taken
away; nothing is left. The wheel goes into a virtual environment, as distributions ask for, by the
distribution's own pip.

Roots are those that the suite `roots` has fetched, and those of PACKAGE_TEST_ROOTS=FOLDER:FOLDER.
PACKAGE_TEST_TIMES=1 prints how long each step takes.
"""
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import unittest

sys.path.insert(0, f"{sys.argv[1]}/tests/system/roots")
from patience import end_of  # noqa: E402

BUILD, JOB = pathlib.Path(sys.argv[2]), [pathlib.Path(word) for word in sys.argv[3:]]
OUT = BUILD / "package"
ROOTS = [pathlib.Path(word) for word in os.environ.get("PACKAGE_TEST_ROOTS", "").split(":") if word]
ROOTS += [path.parent for path in sorted(BUILD.parent.glob("build/roots/*/complete"))]

# The arguments are those of training_main.
PROGRAM = """
import ctypes, sys
job = ctypes.CDLL("/job/libroot-job.so")
arguments = [b"job"] + [word.encode() for word in sys.argv[1:]]
sys.exit(job.main(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)))
"""
# Two hosts with two links, each with a network of its own. Both see the same root.
HOSTS = r"""
root=$1; shift
mount -t proc proc "$root/proc"
unshare -n sleep 250 >&- 2>&- & far=$!
trap 'kill $far' EXIT
for i in $(seq 1000); do
    [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ] || break
    sleep 0.02
done
ip link set lo up
nsenter -t $far -n ip link set lo up
for i in 0 1; do
    ip link add eth$i type veth peer name far$i
    ip link set far$i netns $far name eth$i
    ip addr add 10.1.$i.1/24 dev eth$i
    ip link set eth$i up
    nsenter -t $far -n ip addr add 10.1.$i.2/24 dev eth$i
    nsenter -t $far -n ip link set eth$i up
done
NCCL_HOSTID=host1 nsenter -t $far -n chroot "$root" "$@" linked 1 2 /job/id 20 &
other=$!
NCCL_HOSTID=host0 chroot "$root" "$@" linked 0 2 /job/id 20
wait $other
"""


def the(pattern):
    return next(OUT.glob(pattern))


def call(*words, **options):
    words = [str(word) for word in words]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               **options)
    out, err = end_of(process, 300)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


class Root:
    """A distribution's folder, and what is done in it."""

    def __init__(self, folder, test):
        self.folder, self.test = folder, test

    def run(self, *words, path=""):
        script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        return call("unshare", "-m", "sh", "-c", script, self.folder, *words,
                    env={"PATH": path + "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})

    def must(self, *words):
        result = self.run(*words)
        self.test.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def files(self):
        found = self.run("find", "/usr", "/etc", "/opt", "/var/lib/dpkg/info", "/root", "-xdev",
                         "-not", "-name", "ld.so.cache*").stdout.splitlines()
        # What Python compiles of its own is no package's matter.
        return {path for path in found if "deft" in path or "__pycache__" not in path}

    def give(self, file, name):
        shutil.copy(file, self.folder / name)
        self.test.addCleanup((self.folder / name).unlink, missing_ok=True)

    @contextlib.contextmanager
    def job(self):
        """The folder /job, with what PROGRAM needs."""
        folder = self.folder / "job"
        folder.mkdir()
        try:
            for file in JOB:  # the sonames are the names by which they find each other
                name = re.sub(r"(\.so(\.\d+)?).*", r"\1", file.name)
                call("strip", "-o", folder / name, file)
            yield folder
        finally:
            shutil.rmtree(folder)


def two_hosts(test, root, folder, program, path=""):
    """Two ranks on two hosts, started by deft run, over deft's links; and doctor's verdict."""
    result = call("unshare", "-mn", "sh", "-ec", HOSTS, "sh", root.folder, "deft", "run",
                  "--mode", "observe", "--out", "/job/%r.json", "--", *program,
                  env={"PATH": path + "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
                       "LD_LIBRARY_PATH": "/job", "NCCL_SOCKET_IFNAME": "eth",
                       "DEFT_JOB_ID": "demo"})
    test.assertEqual(result.returncode, 0, result.stdout + result.stderr)
    test.assertEqual(sorted(result.stdout.splitlines()), ["rank 0 done", "rank 1 done"])
    for rank in range(2):
        record = json.loads((folder / f"{rank}.json").read_text())
        test.assertTrue(record["plugin"]["loaded"])
        test.assertEqual({link["name"] for link in record["links"]}, {"eth0", "eth1"})
        test.assertGreater(sum(link["bytes_sent"] for link in record["links"]), 0)
    result = root.run("deft", "doctor", "/job/0.json", "/job/1.json", path=path)
    # On a machine with other work a link may have been silent for a while: a warning.
    test.assertIn(result.returncode, (0, 1), result.stdout + result.stderr)


class Package:
    """One kind: `bin` and `lib` are where its command and library lie in the root."""
    bin, lib = "/usr/bin", "/usr/lib"
    shares = False   # folders that stay because whoever took it away does not know whose they are

    def why_not(self, root):
        return None

    def put(self, root):
        raise NotImplementedError

    def take(self, root):
        raise NotImplementedError


class Deb(Package):
    def put(self, root):
        root.give(the("*.deb"), "deft.deb")
        root.must("dpkg", "-i", "/deft.deb")

    def take(self, root):
        root.must("dpkg", "-P", "deft")


class Rpm(Package):
    lib, shares = "/usr/lib64", True   # a database of its own knows none of Debian's packages

    def why_not(self, root):
        return None if shutil.which("rpm") else "no rpm here"

    def call(self, root, *words):
        return call("rpm", "--root", root.folder, "--dbpath", "/rpm-database", "--nodeps", *words)

    def rpm(self, root, *words):
        result = self.call(root, *words)
        root.test.assertEqual(result.returncode, 0, result.stderr)

    def put(self, root):
        root.test.addCleanup(shutil.rmtree, root.folder / "rpm-database", True)
        self.rpm(root, "-U", "--replacepkgs", the("*.rpm"))

    def take(self, root):
        self.rpm(root, "-e", "deft")
        # rpm asks for the folders of a distribution that has it.
        for folder in ("usr/lib64/pkgconfig", "usr/lib64"):
            if not any((root.folder / folder).glob("*")):
                shutil.rmtree(root.folder / folder, True)


class Tarball(Package):
    folder = "/opt/" + next(path for path in OUT.glob("deft-*-linux-*.tar.gz")
                            if "debug" not in path.name).name.removesuffix(".tar.gz")
    bin, lib = folder + "/bin", folder + "/lib"

    def put(self, root):
        root.give(OUT / (self.folder.removeprefix("/opt/") + ".tar.gz"), "deft.tar.gz")
        root.must("tar", "-xf", "/deft.tar.gz", "-C", "/opt")

    def take(self, root):
        root.must("rm", "-r", self.folder)


class Image(Package):
    bin, lib = "/opt/deft/bin", "/opt/deft/lib"

    def put(self, root):
        image = the("*-oci")

        def blob(entry):
            return (image / "blobs" / entry["digest"].replace(":", "/")).read_bytes()

        index = json.loads((image / "index.json").read_text())
        manifest = json.loads(blob(index["manifests"][0]))
        # As those who run containers do: over a library that a job has loaded, extractall() would
        # write into the job's memory.
        shutil.rmtree(root.folder / "opt/deft", True)
        with tarfile.open(fileobj=io.BytesIO(blob(manifest["layers"][0]))) as layer:
            layer.extractall(root.folder)

    def take(self, root):
        root.must("rm", "-r", "/opt/deft")


class Wheel(Package):
    folder = "/opt/venv"
    bin, lib = folder + "/bin", folder + "/lib"
    pip = (folder + "/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")

    def why_not(self, root):
        found = root.run("python3", "-c", "import ensurepip")
        return None if found.returncode == 0 else "no python3-venv in this root"

    def put(self, root):
        root.must("python3", "-m", "venv", self.folder)
        wheel = the("*.whl")
        root.give(wheel, wheel.name)
        root.must(*self.pip, "install", "--no-index", "--force-reinstall", f"/{wheel.name}")

    def take(self, root):
        root.must(*self.pip, "uninstall", "-y", "deft")
        # pip leaves folders of data behind, and no file.
        left = [path for path in (root.folder / self.folder[1:]).rglob("*deft*")
                if not path.is_dir()]
        root.test.assertEqual(left, [])
        root.must("rm", "-r", self.folder)


@unittest.skipUnless(os.geteuid() == 0 and ROOTS, "not root, or no roots (suite roots)")
class Distributions(unittest.TestCase):
    def test_packages(self):
        for folder in ROOTS:
            for kind in (Deb, Rpm, Tarball, Image, Wheel):
                with self.subTest(root=folder.name, package=kind.__name__):
                    self.package_in(Root(folder, self), kind())

    def package_in(self, root, package):
        if reason := package.why_not(root):
            self.skipTest(reason)
        before, started = root.files(), time.monotonic()
        try:
            package.put(root)
            put = time.monotonic()
            package.put(root)  # an upgrade
            again = time.monotonic()
            library, path = f"{package.lib}/libnccl-net-deft.so", package.bin + ":"
            result = root.run("deft", "doctor", "--", "true", path=path)
            self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)
            self.assertIn(f"library: {library} (deft run preloads it)", result.stdout)
            result = root.run("deft", "run", "--", "cat", "/proc/self/maps", path=path)
            self.assertIn(library, result.stdout, result.stderr)
            self.python_in(root, path)
            judged = time.monotonic()
            if JOB and shutil.which("ip"):
                self.job_in(root, path)
        finally:
            ran = time.monotonic()
            package.take(root)
            gone = time.monotonic()
        changed = [path for path in root.files() ^ before if "deft" in path or not package.shares
                   or not (root.folder / path[1:]).is_dir()]
        self.assertEqual(changed, [], "nothing is left, nothing is missing")
        if os.environ.get("PACKAGE_TEST_TIMES"):
            print(f"{root.folder.name} {type(package).__name__}: put in {put - started:.1f} s, "
                  f"again {again - put:.1f} s, doctor and programs {judged - again:.1f} s, "
                  f"job {ran - judged:.1f} s, taken away {gone - ran:.1f} s", file=sys.stderr)

    def python_in(self, root, path):
        """A job of root's: Python compiles what it imports, next to the sources."""
        result = root.run("deft", "run", "--mode", "deft", "--", "python3", "-c",
                          "import sys; print(sys.modules['deft_companion'].__cached__)", path=path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertTrue((root.folder / result.stdout[1:].strip()).exists(), result.stdout)

    def job_in(self, root, path):
        with root.job() as folder:
            two_hosts(self, root, folder, ["python3", "-c", PROGRAM], path)
