#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the distribution on the software verbs device: rdma-core's and perftest's, unchanged.
Two network namespaces, a veth between them.

usage: verbs_programs_test.py FOLDER   (that holds libibverbs.so.1)
"""
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

FOLDER = sys.argv[1]
INSIDE = "VERBS_PROGRAMS_INSIDE"
# One card with a port of each kind, over one cable.
PORTS = "soft0 wire roce; soft0 wire ib; soft1 nowhere roce"
ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": FOLDER, "SOFTDEV_VERBS": PORTS}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def enter_namespace():
    """This process goes on in a network namespace of its own."""
    for program in ("ibv_devices", "ibv_devinfo", "ibv_rc_pingpong"):
        if shutil.which(program) is None:
            skip(f"no {program} here: ./dev install ibverbs-utils")
    unshare = ["unshare", "-n" if os.geteuid() == 0 else "-rn"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        skip("neither root nor user namespaces")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def ip(words, far=None):
    inside = ["nsenter", "-t", str(far.pid), "-n"] if far else []
    subprocess.run([*inside, "ip", *words.split()], check=True)


def shown(far=None):
    inside = ["nsenter", "-t", str(far.pid), "-n"] if far else []
    return subprocess.run([*inside, "ip", "link", "show", "wire"], check=True,
                          capture_output=True, text=True).stdout


def sent_bytes():
    """Of this namespace's end; sysfs may show those of another one."""
    text = subprocess.run(["ip", "-s", "link", "show", "wire"], check=True, capture_output=True,
                          text=True).stdout
    return int(re.search(r"TX:.*\n\s*(\d+)", text).group(1))


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.far = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready; exec sleep 300"],
                                   stdout=subprocess.PIPE)
        cls.far.stdout.readline()
        ip("link set lo up")
        ip(f"link add wire type veth peer name wire netns {cls.far.pid}")
        for far, address in ((None, "10.9.0.1/16"), (cls.far, "10.9.0.2/16")):
            ip(f"addr add {address} dev wire", far)
            ip("link set wire up", far)
        for far in (None, cls.far):  # the kernel tells of a carrier up to a second later
            end = time.monotonic() + 30
            while " state UP " not in shown(far) and time.monotonic() < end:
                time.sleep(0.05)

    @classmethod
    def tearDownClass(cls):
        cls.far.kill()
        cls.far.wait()
        cls.far.stdout.close()

    def run_program(self, *words):
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def both(self, *words):
        """Runs a program on both hosts, as server and as client; returns what the client says."""
        server = subprocess.Popen(["nsenter", "-t", str(self.far.pid), "-n", *words],
                                  env=ENVIRONMENT, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        try:
            for _ in range(100):  # until the server listens
                client = subprocess.run([*words, "10.9.0.2"], env=ENVIRONMENT, text=True,
                                        capture_output=True, timeout=60)
                if client.returncode == 0 or "onnect" not in client.stdout + client.stderr:
                    break
                time.sleep(0.1)
            out, _ = server.communicate(timeout=60)
        finally:
            server.kill()
            server.wait()
        self.assertEqual(client.returncode, 0, client.stdout + client.stderr + out)
        self.assertEqual(server.returncode, 0, out)
        return client.stdout

    def test_devices_and_ports(self):
        self.assertEqual(re.findall(r"soft\d", self.run_program("ibv_devices")),
                         ["soft0", "soft1"])
        text = self.run_program("ibv_devinfo", "-v")
        self.assertEqual(re.findall(r"\sstate:\s+(\w+)", text),
                         ["PORT_ACTIVE", "PORT_ACTIVE", "PORT_DOWN"])
        self.assertEqual(re.findall(r"link_layer:\s+(\w+)", text),
                         ["Ethernet", "InfiniBand", "Ethernet"])
        self.assertIn("::ffff:10.9.0.1", text)
        self.assertIn("RoCE v2", text)
        self.assertRegex(text, r"port_lid:\s+1\n")

    def test_pingpong(self):
        for port, more in (("1", ("-g", "3")), ("2", ()), ("1", ("-g", "3", "-e")),
                           ("1", ("-g", "3", "-N"))):
            with self.subTest(port=port, more=more):
                before = sent_bytes()
                text = self.both("ibv_rc_pingpong", "-d", "soft0", "-i", port, "-n", "100", "-c",
                                 "-s", "10000", *more)
                self.assertIn("100 iters", text)
                self.assertGreater(sent_bytes() - before, 100 * 10000)

    def test_write_bandwidth(self):
        program = shutil.which("ib_write_bw")
        if program is None:
            self.skipTest("no ib_write_bw here: ./dev install perftest")
        done = subprocess.run([program, "--version"], env=ENVIRONMENT, capture_output=True,
                              text=True)
        if "IBVERBS_PRIVATE" in done.stderr:
            self.skipTest(f"perftest of another rdma-core: {done.stderr.strip()}")
        before = sent_bytes()
        text = self.both(program, "-d", "soft0", "-i", "1", "-x", "3", "-F", "-n", "100")
        self.assertRegex(text, r"65536 +100 ")
        self.assertGreater(sent_bytes() - before, 100 * 65536)


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter_namespace()
    unittest.main(argv=sys.argv[:1])
