#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deft probe between network namespaces: by hand, by ssh, by srun, over a switch that loses what
is large, and over links that lose a part.

usage: probe_test.py DEFT LIBRARY GUEST PROBE
"""
import json
import os
import shlex
import subprocess
import unittest

from doctor_host import FAR, SMALL_SWITCH, two_hosts
from doctor_support import DEFT, DoctorTest, needs_network

LISTENING = (f"{FAR} {shlex.quote(DEFT)} probe --listen 4000 >listening & there=$!\n"
             "wait_until 'grep -qs listening listening'")
# A program that runs what it is told on another host: a name for each, one network for both. ssh
# hands a line to a shell there, srun words to the program.
ENTER = """#!/bin/sh
{options}
exec nsenter -t $far -n unshare -u sh -c {there}
"""
LINE = '"hostname $host; exec $*"'
WORDS = """'hostname "$0"; exec "$@"' "$host" "$@\""""


@needs_network
class Probe(DoctorTest):
    def probe(self, *arguments, more="", env=None):
        environment = {"PATH": f"{self.folder}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
                       "HOME": str(self.folder), **(env or {})}
        words = two_hosts(more, 'export far\n"$@"')
        return subprocess.run([*words, DEFT, "probe", "--seconds", "0.1", *arguments],
                              env=environment, cwd=self.folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60)

    def measured(self, *arguments, **how):
        result = self.probe("--json", *arguments, **how)
        self.assertEqual(result.stderr, "")
        document = json.loads(result.stdout)
        self.assertEqual(document["exit_code"], result.returncode)
        self.assertIn(result.returncode, (0, 1))  # a busy machine loses some
        return document

    def check_link(self, link):
        self.assertTrue(link["one_network"])
        self.assertEqual(link["problem"], "")
        self.assertLessEqual(0, link["round_trip_us"]["least"])
        self.assertLessEqual(link["round_trip_us"]["least"], link["round_trip_us"]["median"])
        for way in ("there", "back"):
            self.assertGreater(link[way]["gbit_per_s"], 0)
            self.assertEqual(link[way]["path_mtu"], 1500)

    def test_by_hand(self):
        [pair] = self.measured("--connect", "10.1.0.2:4000", more=LISTENING)["pairs"]
        self.assertEqual([link["mtu"] for link in pair["to_links"]], [1500, 1500])
        links = {(link["from"], link["to"]): link for link in pair["links"]}
        self.assertEqual(set(links), {(a, b) for a in ("eth0", "eth1") for b in ("eth0", "eth1")})
        for name in ("eth0", "eth1"):
            self.check_link(links[name, name])
        across = links["eth0", "eth1"]
        self.assertFalse(across["one_network"])
        # Linux may answer for an address of another interface, and then there is a way.
        self.assertEqual(across["problem"] == "", across["there"] is not None)

    def test_nobody_listens(self):
        result = self.probe("--connect", "10.1.0.2:4000")
        self.assertEqual((result.returncode, result.stderr), (3, ""))
        self.assertRegex(result.stdout, "^error: .*10.1.0.2:4000: Connection refused; remedy: ")

    def test_mistakes(self):
        for arguments, mention in ((("--listen", "x"), "'x' is not a port"),
                                   (("--listen", "1", "far"), "choose one of"),
                                   ((), "no HOST given"), (("--hostfile", "absent"), "absent: No"),
                                   (("a;b",), "no name of a host has"),
                                   (("--seconds", "0", "far"), "'0' is not a number from")):
            with self.subTest(arguments=arguments):
                result = subprocess.run([DEFT, "probe", *arguments], capture_output=True, text=True,
                                        cwd=self.folder, env={"PATH": "/usr/bin:/bin"}, timeout=60)
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")),
                                 (2, "", 1), result.stderr)
                self.assertIn(mention, result.stderr)

    def test_by_ssh(self):
        """Three hosts: each pair of them, with the two others asking each other."""
        ssh = self.script("enter", ENTER.format(options='while [ "$1" = -o ]; do shift 2; done\n'
                                                 "host=$1; shift; echo Welcome to $host",
                                         there=LINE))
        result = self.probe("--ssh", ssh, "far", "other")
        self.assertEqual(result.stderr, "")
        self.assertIn(result.returncode, (0, 1), result.stdout)
        self.assertNotIn("error: ", result.stdout)
        self.assertNotIn("BLOCKED", result.stdout)
        own = os.uname().nodename
        for one, two in ((own, "far"), (own, "other"), ("far", "other")):
            self.assertIn(f"{one} (rows) and {two} (columns): ", result.stdout)
        self.assertIn("Gbit/s of the best pair of links", result.stdout)

    def test_a_host_without_deft(self):
        ssh = self.script("enter", "#!/bin/sh\necho no such file >&2\nexit 127\n")
        result = self.probe("--ssh", ssh, "far")
        self.assertEqual((result.returncode, result.stderr), (3, "no such file\n"))
        self.assertRegex(result.stdout, "^error: far: no deft answered there; remedy: ")

    def test_by_srun(self):
        self.script("srun", ENTER.format(
            options='while [ "${1#--}" != "$1" ]; do case $1 in --nodelist=*) '
                    "host=${1#--nodelist=};; esac; shift; done", there=WORDS))
        self.script("scontrol", "#!/bin/sh\n[ \"$*\" = 'show hostnames x[1-2]' ] && "
                                "printf 'localhost\\nx2\\n'\n")
        [pair] = self.measured(env={"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x[1-2]"})["pairs"]
        self.assertEqual(pair["to"], "x2")
        self.check_link(pair["links"][0])

    def test_a_switch_that_loses_large_packets(self):
        result = self.probe("--connect", "10.1.0.2:4000", more=f"{SMALL_SWITCH}\n{LISTENING}")
        self.assertEqual((result.returncode, result.stderr), (1, ""), result.stdout)
        self.assertRegex(result.stdout, "^warning: eth1 of .* to eth1 of .*64 KiB do not")
        self.assertIn("BLOCKED", result.stdout)

    def test_loss(self):
        lossy = "tc qdisc add dev eth1 root netem loss 5%"
        tried = subprocess.run([*two_hosts(lossy), "true"], capture_output=True, timeout=60)
        if tried.returncode != 0:
            self.skipTest("no netem in this kernel")
        [pair] = self.measured("--connect", "10.1.0.2:4000",
                               more=f"{lossy}\n{LISTENING}")["pairs"]
        links = {(link["from"], link["to"]): link for link in pair["links"]}
        self.assertGreater(links["eth1", "eth1"]["there"]["sent_again"], 0.001)


if __name__ == "__main__":
    unittest.main(argv=["probe_test.py"])
