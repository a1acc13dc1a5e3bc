# SPDX-License-Identifier: Apache-2.0
"""What the tests of deft doctor share: folders, programs made on the spot, and the first line."""
import atexit
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest


def unsplit(paths):
    """The loader splits LD_PRELOAD at blanks and colons: names for these files without them."""
    if not any(set(" :;$") & set(path) for path in paths):
        return paths
    folder = tempfile.mkdtemp(prefix="deft-doctor-names-", dir="/tmp")
    atexit.register(shutil.rmtree, folder)
    names = [os.path.join(folder, os.path.basename(path)) for path in paths]
    for path, name in zip(paths, names, strict=True):
        os.symlink(path, name)
    return names


DEFT, *BUILT = map(os.path.abspath, sys.argv[1:])
INSTALLED = BUILT[0]  # that the command finds by itself
LIBRARY, GUEST, PROBE, STATIC_PROBE = (*unsplit(BUILT), None)[:4]
CODES = {"note": 0, "warning": 1, "error": 3}
PROVOKED = set()
DEADLINE = 60  # seconds, of one call

needs_cc = unittest.skipUnless(shutil.which("cc"), "no C compiler")


def can(*command):
    return subprocess.run(command, capture_output=True).returncode == 0


needs_network = unittest.skipUnless(
    shutil.which("ip") and can("unshare", "-rn", "true"), "no network namespaces for this user")
needs_mounts = unittest.skipUnless(
    can("unshare", "-rm", "sh", "-c", "mount -t tmpfs none /dev/shm"), "no mounts for this user")
needs_root = unittest.skipUnless(os.geteuid() == 0, "not root")


def record(rank, **changes):
    """What a rank writes (docs/observe.md)."""
    figures = {"median": 20.0, "p10": 19.0, "p90": 24.0, "n": 30}
    links = [{"name": name, "kind": "tcp", "bytes_sent": 9, "bytes_received": 9, "chunks_sent": 1,
              "busy_ms": 1.0, "resent_bytes": 0, "transitions": 0, "speed_mbps": 1000}
             for name in ("eth0", "eth1")]
    made = {"format": "deft-observe", "version": 1, "library": {"version": "1.0", "path": "/x"},
            "nccl": {"version": 22809, "path": "/y"}, "host": f"host{rank}", "rank": rank,
            "ranks": 2, "pid": 1, "mode": "observe", "gradients": "proven",
            "calls": {"ncclAllReduce": 60}, "plugin": {"loaded": True, "abi": 11, "calls": 9},
            "iterations": {"seen": 30, "cycle_length": 1, "stable": True, "time_ms": figures,
                           "coverage_rate": figures},
            "buckets": [{"position": 0, "communicator": "a", "bytes": 4096, "count": 1024,
                         "type": "float32", "op": "sum", "in_place": True, "ready_ms": figures,
                         "transfer_ms": figures}],
            "links": links}
    made.update(changes)
    return made


class DoctorTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-doctor-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, content, mode=0o644):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        return str(path)

    def script(self, name, content):
        return self.write(name, content, 0o755)

    def compile(self, name, source, *options, compiler="cc"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.folder / "source.c"
        text.write_text(source)
        subprocess.run([compiler, "-o", path, text, *options], check=True, timeout=60)
        return str(path)

    def nccl(self, version, folder="nccl", name="libnccl.so.2"):
        """A library that says it is this NCCL."""
        return self.compile(f"{folder}/{name}",
                            "int ncclAllReduce(void) { return 0; }\n"
                            f"int ncclGetVersion(int* v) {{ *v = {version}; return 0; }}\n",
                            "-shared", "-fPIC", f"-Wl,-soname,{name}")

    def linked(self, version=22809, *options, name="libnccl.so.2"):
        """A program that is linked to it."""
        library = self.nccl(version, name=name)
        return self.compile("train", "int ncclAllReduce(void); int main(void)"
                            " { return ncclAllReduce(); }", library, *options)

    def doctor(self, *arguments, env=None, inside=()):
        """Its result; whatever it and `inside` have started is ended."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
                       "HOME": str(self.folder), **(env or {})}
        words = [*inside, DEFT, "doctor", *arguments]
        with subprocess.Popen(words, env=environment, cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True) as process:
            try:
                output = process.communicate(timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                self.fail(f"not ended after {DEADLINE} s: {words}")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(words, process.returncode, *output)

    def first(self, name, severity, *mentions, arguments=(), env=None, inside=()):
        """The first line names it, and the exit status is that of its severity."""
        result = self.doctor(*arguments, env=env, inside=inside)
        lines = result.stdout.splitlines() or [""]
        wanted = lines[0]
        if severity == "note":  # behind the line that says that all is well
            self.assertTrue(lines[0].startswith("well: "), result.stdout + result.stderr)
            wanted = next((line for line in lines if line.startswith(f"note: {name}: ")), "")
        self.assertTrue(wanted.startswith(f"{severity}: {name}: "), result.stdout + result.stderr)
        self.assertIn("; remedy: ", wanted)
        for mention in mentions:
            self.assertIn(mention, wanted)
        # The loader's own complaint about what cannot be preloaded.
        said = [line for line in result.stderr.splitlines() if not line.startswith("ERROR: ld.so:")]
        self.assertEqual((result.returncode, said), (CODES[severity], []))
        PROVOKED.add(name)
        return result.stdout
