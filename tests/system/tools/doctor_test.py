#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deft doctor names each misconfiguration in its first line: provoked, not made up.

usage: doctor_test.py DEFT LIBRARY GUEST PROBE [STATIC_PROBE]
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

import doctor_host
import doctor_launch
import doctor_program
import doctor_slips
import doctor_ucx
from doctor_support import (
    DEFT,
    GUEST,
    INSTALLED,
    LIBRARY,
    PROVOKED,
    DoctorTest,
    needs_cc,
    needs_network,
    record,
)


class Well(DoctorTest):
    def test_the_first_line_says_so(self):
        result = self.doctor("--", "true")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertTrue(result.stdout.startswith("well: "), result.stdout)
        self.assertIn(f"library: {INSTALLED}", result.stdout)

    def test_nothing_is_started(self):
        witness = self.folder / "started"
        self.doctor("--", "touch", str(witness))
        self.doctor("--", "sh", "-c", f"touch {witness}")
        self.assertFalse(witness.exists())

    def test_a_pipe_is_not_read(self):
        os.mkfifo(self.folder / "pipe")
        for words in (("sh", "pipe"), ("./pipe",), ("python3", "pipe"), ("pipe",)):
            self.assertNotEqual(self.doctor("--", *words).stdout, "")

    def test_json(self):
        result = self.doctor("--json", "--", "no-such-program")
        document = json.loads(result.stdout)
        self.assertEqual(document["exit_code"], result.returncode)
        self.assertEqual(document["findings"][0]["name"], "command-not-found")
        self.assertEqual(set(document["findings"][0]),
                         {"name", "severity", "what", "evidence", "remedy"})

    def test_one_subject_at_a_time(self):
        result = self.doctor("--pid", "1", "--", "true")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("choose one", result.stderr)

    def test_a_name_cannot_drive_the_terminal(self):
        self.assertNotIn("\x1b", self.doctor("--", "x\x1b[31m").stdout)


WRONG = "/no/such/folder/x.json"
SETTINGS = (
    ("setting-wrong", "error", "DEFT_MODE", {"DEFT_MODE": "fast"}),
    ("setting-wrong", "error", "DEFT_STREAMS", {"DEFT_STREAMS": "99"}),
    ("setting-wrong", "error", "nosuch0", {"DEFT_INTERFACES": "nosuch0"}),
    ("setting-wrong", "error", WRONG, {"DEFT_OUT": WRONG}),
    ("setting-wrong", "error", "DEFT_CONF", {"DEFT_CONF": "/no/such.conf"}),
    ("setting-wrong", "error", "DEFT_OPTIMIZER",
     {"DEFT_MODE": "deft", "DEFT_OPTIMIZER": "sgd:momentum=7"}),
    ("setting-idle", "warning", "'%H' is not replaced", {"DEFT_OUT": "/tmp/%H.json"}),
    ("setting-idle", "warning", "DEFT_SYSFS='/no/such'", {"DEFT_SYSFS": "/no/such"}),
    ("setting-idle", "warning", "no network 'eth9'", {"DEFT_LANES": "eth9"}),
    ("setting-idle", "warning", "DEFT_COMPANION=off",
     {"DEFT_LAYERWISE": "auto", "DEFT_COMPANION": "off"}),
    ("port-range", "warning", "MASTER_PORT=29500",
     {"DEFT_PORTS": "29000-29999", "MASTER_PORT": "29500"}),
    ("preload-file-missing", "error", "it is a folder",
     {"LD_PRELOAD": os.path.dirname(LIBRARY), "NCCL_NET_PLUGIN": "deft"}),
    ("switched-off", "error", "DEFT_MODE=off", {"DEFT_MODE": "off"}),
    ("switched-off", "error", "DEFT_DISABLE=0", {"DEFT_DISABLE": "0"}),
    ("setting-unknown", "warning", "DEFT_INTERFACE", {"DEFT_INTERFACE": "eth0"}),
    ("setting-unknown", "warning", "NCCL_SOCKET_IFNAME?", {"NCCL_SOCKET_IFNAMES": "eth0"}),
    ("gradients-unproven", "warning", "mode deft", {"DEFT_MODE": "deft"}),
    ("setting-idle", "warning", "DEFT_MAX_DELAY=2", {"DEFT_MAX_DELAY": "2"}),
    ("setting-idle", "warning", "DEFT_METRICS='/no/such'", {"DEFT_METRICS": "/no/such"}),
    ("setting-idle", "warning", "DEFT_METRICS='/bin/sh'", {"DEFT_METRICS": "/bin/sh"}),
    ("setting-idle", "warning", "DEFT_PROBE='/no/such'", {"DEFT_PROBE": "/no/such"}),
    ("setting-idle", "warning", "NCCL_PROTO=LL", {"DEFT_TUNER": "bits", "NCCL_PROTO": "LL"}),
    ("setting-idle", "warning", "NCCL_TUNER_PLUGIN=own",
     {"DEFT_TUNER": "bits", "NCCL_TUNER_PLUGIN": "own"}),
    ("setting-wrong", "error", "full path", {"DEFT_KILL_FILE": "off"}),
    ("kill-switch", "warning", "/dev/null is there", {"DEFT_KILL_FILE": "/dev/null"}),
    ("port-range", "warning", "has 2 ports", {"DEFT_PORTS": "42000-42001"}),
    ("switched-off", "error", "DEFT_CANARY=100% takes the job in", {"DEFT_CANARY": "0"}),
    ("setting-idle", "warning", "DEFT_RDMA=replace",
     {"DEFT_RDMA": "replace", "NCCL_IB_DISABLE": "1"}),
    ("settings-contradict", "warning", "DEFT_PLAN=covap4",
     {"DEFT_MODE": "deft", "DEFT_GRADIENTS": "trust", "DEFT_PLAN": "covap4"}),
    ("settings-contradict", "warning", "DEFT_LOG_FILE",
     {"DEFT_LOG": "none", "DEFT_LOG_FILE": "/tmp/deft.log"}),
    ("settings-contradict", "warning", "NCCL_IB_DISABLE",
     {"DEFT_LANES": "IB", "NCCL_IB_DISABLE": "1"}),
    ("launch-blocking", "warning", "CUDA_LAUNCH_BLOCKING=1", {"CUDA_LAUNCH_BLOCKING": "1"}),
    ("launch-blocking", "warning", "DETAIL", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    ("gpus-hidden", "error", "CUDA_VISIBLE_DEVICES=''", {"CUDA_VISIBLE_DEVICES": ""}),
    ("congestion-missing", "warning", "nosuch", {"DEFT_TCP_CONGESTION": "nosuch"}),
    ("setting-idle", "warning", "NCCL_SOCKET_NTHREADS=4", {"NCCL_SOCKET_NTHREADS": "4"}),
    ("plugin-other", "error", "NCCL_NET_PLUGIN=''", {"NCCL_NET_PLUGIN": ""}),
    ("net-other", "error", "NCCL_NET='Socket' (environment)", {"NCCL_NET": "Socket"}),
    ("plugin-other", "error", "'ofi'", {"NCCL_NET_PLUGIN": "ofi"}),
    ("plugin-order", "error", "ofi before deft", {"NCCL_NET_PLUGIN": "ofi,deft"}),
    ("plugin-file-missing", "error", "/no/libnccl-net-deft.so",
     {"NCCL_NET_PLUGIN": "/no/libnccl-net-deft.so"}),
    ("plugin-not-found", "error", "NCCL_NET_PLUGIN='deft'", {"NCCL_NET_PLUGIN": "deft"}),
    ("preload-absent", "warning", "LD_PRELOAD",
     {"NCCL_NET_PLUGIN": "deft", "LD_LIBRARY_PATH": os.path.dirname(LIBRARY)}),
    ("preload-file-missing", "error", "/no/libnccl-net-deft.so: no such file",
     {"LD_PRELOAD": "/no/libnccl-net-deft.so", "NCCL_NET_PLUGIN": "deft"}),
    ("plugin-not-named", "error", "NCCL_NET_PLUGIN", {"LD_PRELOAD": LIBRARY}),
    ("nccl-lib-unusable", "error", "/no/libnccl.so", {"DEFT_NCCL_LIB": "/no/libnccl.so"}),
)


class Settings(DoctorTest):
    def test_settings(self):
        for name, severity, mention, env in SETTINGS:
            for arguments in ((), ("--", "true")):
                with self.subTest(name=name, env=env, arguments=arguments):
                    self.first(name, severity, mention, env=env, arguments=arguments)

    @unittest.skipUnless(len(os.sched_getaffinity(0)) <= 16, "more than 16 CPUs")
    def test_more_threads_than_cpus(self):
        self.first("threads-exceed-cpus", "warning", "DEFT_IO_THREADS=16",
                   env={"DEFT_IO_THREADS": "16"})

    def test_files_that_settings_name(self):
        probe = self.write("probe.json", "not a probe\n")
        self.first("setting-idle", "warning", probe, "no result of deft probe",
                   env={"DEFT_PROBE": probe})
        conf = self.write("deft.conf", "DEFT_MODE=exact\nDEFT_MODE=observe\n")
        self.first("settings-contradict", "warning", conf + ":2", "a second time",
                   env={"DEFT_CONF": conf})

    def test_settings_of_nccls_file(self):
        # NCCL finds its usual file by the user database: only a named one is this test's.
        named = self.write("named.conf", "# mine\nNCCL_NET_PLUGIN=ofi\n")
        self.first("plugin-other", "error", "'ofi'", named, env={"NCCL_CONF_FILE": named})

    def test_a_vendors_plugin(self):
        shutil.copy(GUEST, self.folder / "libnccl-net.so")
        self.first("plugin-vendor", "warning", str(self.folder),
                   env={"LD_LIBRARY_PATH": str(self.folder)})

    def test_files_of_the_preload(self):
        text = self.write("libnccl-net-deft.so", "no library")
        self.first("preload-unusable", "error", text,
                   env={"LD_PRELOAD": text, "NCCL_NET_PLUGIN": "deft"})
        blank = self.folder / "a b"
        blank.mkdir()
        shutil.copy(LIBRARY, blank)
        self.first("preload-path-split", "error", str(blank),
                   env={"LD_PRELOAD": str(blank / "libnccl-net-deft.so"),
                        "NCCL_NET_PLUGIN": "deft"})
        copy = self.folder / "other"
        copy.mkdir()
        second = shutil.copy(LIBRARY, copy)
        self.first("preload-twice", "warning", second,
                   env={"LD_PRELOAD": f"{LIBRARY}:{second}", "NCCL_NET_PLUGIN": "deft"})
        alone = self.folder / "alone"
        alone.mkdir()
        guest = shutil.copy(GUEST, alone)
        self.first("guest-alone", "error", guest,
                   env={"LD_PRELOAD": guest, "NCCL_NET_PLUGIN": "deft"})
        self.first("library-missing", "error", "/no/lib.so", arguments=("--library", "/no/lib.so"))


LINK = record(1)["links"][1]
PLAN = {"state": "no agreement", "reason": "rank 0 has other settings", "policy": "", "switched": 0}
RECORDS = (
    ("records-hooks-missed", "error", "rank 1 (host host1)", {"calls": {}}),
    ("records-plugin-missed", "error", "rank 1 (host host1)",
     {"plugin": {"loaded": False, "abi": 0, "calls": 0}}),
    ("records-versions", "error", "0.9: rank 1", {"library": {"version": "0.9", "path": "/x"}}),
    ("records-nccl-versions", "error", "2.18.5: rank 1",
     {"nccl": {"version": 21805, "path": "/y"}}),
    ("records-modes", "error", "exact: rank 1", {"mode": "exact"}),
    ("records-modes", "error", "trust: rank 1", {"gradients": "trust"}),
    ("records-no-agreement", "error", "other settings", {"plans": [PLAN]}),
    ("records-resting", "warning", "given up",
     {"plans": [{**PLAN, "state": "resting", "reason": "given up"}]}),
    ("records-links", "warning", "eth0: rank 1", {"links": [record(1)["links"][0]]}),
    ("records-link-idle", "warning", "eth1",
     {"links": [record(1)["links"][0], {**LINK, "bytes_sent": 0, "bytes_received": 0}]}),
    ("records-link-flaps", "warning", "eth1",
     {"links": [record(1)["links"][0], {**LINK, "resent_bytes": 5}]}),
    ("records-contradict", "error", "ranks", {"ranks": 4}),
)


class Records(DoctorTest):
    def test_records(self):
        for name, severity, mention, changes in RECORDS:
            with self.subTest(name=name, changes=changes):
                files = [self.write("0.json", record(0)),
                         self.write("1.json", record(1, **changes))]
                self.first(name, severity, mention, arguments=files)

    def test_files(self):
        self.first("records-missing", "warning", "1 of 2",
                   arguments=[self.write("0.json", record(0))])
        self.first("record-unreadable", "error", "x.json",
                   arguments=[self.write("x.json", "no JSON")])
        self.first("record-unreadable", "error", "none.json", arguments=["none.json"])
        result = self.doctor(self.write("0.json", record(0)), self.write("1.json", record(1)))
        self.assertEqual((result.returncode, result.stdout.split(":")[0]), (0, "well"),
                         result.stdout)


class ZBook(unittest.TestCase):
    """After the others, by its name."""

    def test_the_page_has_the_table(self):
        table = subprocess.run([DEFT, "doctor", "--markdown"], capture_output=True, text=True,
                               timeout=60).stdout
        page = os.path.join(os.environ["DEFT_SOURCE_ROOT"], "docs", "doctor.md")
        with open(page, encoding="utf-8") as text:
            self.assertIn(table, text.read(), "write it anew: deft doctor --markdown")

    @needs_cc
    @needs_network
    def test_many_were_provoked(self):
        self.assertGreaterEqual(len(PROVOKED), 40, sorted(PROVOKED))


def load_tests(loader, tests, _pattern):
    suite = unittest.TestSuite()
    for module in (doctor_program, doctor_host, doctor_launch, doctor_slips, doctor_ucx):
        suite.addTests(loader.loadTestsFromModule(module))
    suite.addTests(tests)
    return suite


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
