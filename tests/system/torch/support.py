# SPDX-License-Identifier: Apache-2.0
"""What the tests of the torch launcher share: finding the parts, starting ranks, waiting with a
deadline."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("DEFT_BUILD", os.path.join(ROOT, "build"))
LAUNCHER = os.path.join(ROOT, "softdev", "torch", "launch.py")
LIBRARIES = os.environ.get("SOFTDEV_LIBDIR", os.path.join(BUILD, "softdev"))
DEFT = os.path.join(BUILD, "tools", "deft")
LIBRARY = os.path.join(BUILD, "packaging", "libnccl-net-deft.so")
# With NCCL's own library, which the loader's path names (tests/system/realnccl).
NCCL_SETTINGS = os.environ.get("TEST_NCCL_SETTINGS")
SKIP = 77
sys.path.insert(0, os.path.dirname(LAUNCHER))

from launch import free_port  # noqa: E402

# Of a whole job; a loaded machine of two cores takes tens of seconds to import torch four times.
DEADLINE = float(os.environ.get("TEST_DEADLINE", "150"))


def find_python():
    """A Python that has torch (of the major version TEST_TORCH_MAJOR, if that is set), or None."""
    check = ("import importlib.util, importlib.metadata, sys; "
             "sys.exit(importlib.util.find_spec('torch') is None or "
             "not importlib.metadata.version('torch').startswith("
             f"{os.environ.get('TEST_TORCH_MAJOR', '')!r}))")
    wanted = os.environ.get("TEST_PYTHON")
    own = os.path.join(BUILD, "pytorch", "bin", "python")  # what ./dev pytorch makes
    for python in [wanted] if wanted else (sys.executable, "/usr/bin/python3", own):
        try:
            if subprocess.run([python, "-c", check], check=False,
                              capture_output=True).returncode == 0:
                return python
        except OSError:
            pass
    return None


class Job:
    """The ranks of one job on the loopback interface, each with its output in a file."""

    def __init__(self, python, ranks, script, arguments=(), env=None, launcher=True, prefix=(),
                 options=(), rank_env=None):
        self.folder = tempfile.TemporaryDirectory(prefix="deft torch ")  # a space, on purpose
        libraries = ["--libs", LIBRARIES] if NCCL_SETTINGS is None else []
        command = [python, *([LAUNCHER, *libraries, *options] if launcher else []), script,
                   *arguments]
        port = free_port()
        self.ranks = []
        for rank in range(ranks):
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith(("DEFT_", "NCCL_")) and name != "LD_PRELOAD"}
            # Each rank a host of its own: everything goes over the network transport.
            environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                               NCCL_SOCKET_IFNAME="lo", NCCL_HOSTID=f"test-host{rank}",
                               OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
                               PYTHONDONTWRITEBYTECODE="1")
            environment.update(setting.split("=", 1) for setting in (NCCL_SETTINGS or "").split())
            environment.update(env or {})
            environment.update((rank_env or {}).get(rank, {}))
            with open(self.log(rank), "wb") as log:
                self.ranks.append(subprocess.Popen([*prefix, *command], env=environment,
                                                   cwd=self.folder.name, stdin=subprocess.DEVNULL,
                                                   stdout=log, stderr=subprocess.STDOUT))

    def log(self, rank):
        return os.path.join(self.folder.name, f"rank{rank}.log")

    def output(self, rank):
        with open(self.log(rank), encoding="utf-8", errors="replace") as file:
            return file.read()

    def outputs(self):
        return "\n".join(f"--- rank {rank}\n{self.output(rank)}" for rank in range(len(self.ranks)))

    def wait(self, deadline=DEADLINE):
        """The exit codes; None for a rank that was still running at the deadline and has been
        killed."""
        end = time.monotonic() + deadline
        codes = []
        for rank in self.ranks:
            try:
                codes.append(rank.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        self.kill()
        return codes

    def kill(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.folder.cleanup()


class TorchTest(unittest.TestCase):
    """A test that needs a Python with torch and the software device."""

    python = None

    def job(self, *arguments, **named):
        job = Job(self.python, *arguments, **named)
        self.addCleanup(job.__exit__)
        return job

    def succeed(self, job, deadline=DEADLINE):
        codes = job.wait(deadline)
        self.assertEqual(codes, [0] * len(codes), job.outputs())


def main(name):
    """Runs the tests of a module; exits with 77 and the reason where they cannot run."""
    if name != "__main__":
        return
    TorchTest.python = find_python()
    missing = [path for path in (DEFT, LIBRARY) if not os.path.exists(path)]
    if (not os.path.exists(os.path.join(LIBRARIES, "nccl", "libnccl.so.2"))
        and "SOFTDEV_LIBDIR" not in os.environ):
        missing.append("the software device")
    if TorchTest.python is None or missing:
        reason = (f"not built: {', '.join(missing)}" if missing else
                  f"no Python here has torch {os.environ.get('TEST_TORCH_MAJOR', '')} (apt install "
                  "python3-torch, ./dev pytorch, or name one with TEST_PYTHON)")
        print(f"skipped: {reason}")
        sys.exit(SKIP)
    unittest.main(verbosity=2)
