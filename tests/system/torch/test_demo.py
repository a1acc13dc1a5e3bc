# SPDX-License-Identifier: Apache-2.0
"""The demo as a whole, small: it runs, agrees with itself, leaves nothing behind, and says
plainly what goes wrong."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import support

from perf.common import hosts

RUN = os.path.join(support.ROOT, "perf", "demo", "run.py")


class Demo(support.TorchTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft demo ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def command(self, *arguments):
        return [sys.executable, RUN, "--build", support.BUILD, "--out", self.folder, "--python",
                self.python, "--model", "small", "--iterations", "12", *arguments]

    def run_demo(self, *arguments):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False,
                              timeout=2 * support.DEADLINE,
                              env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        return done, done.stdout + done.stderr

    def test_small_job(self):
        done, text = self.run_demo()
        self.assertEqual(done.returncode, 0, text)
        with open(os.path.join(self.folder, "result.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(result["format"], "deft-demo")
        self.assertTrue(result["good"], text)
        self.assertIn(result["losses_agree"]["exact"], ("bitwise", "within 1e-06"))
        self.assertEqual(result["losses_agree"]["layers"], "bitwise")
        for mode, name in (("exact", "mode exact"), ("layers", "exact, layer-wise"),
                           ("deft", "mode deft")):
            self.assertEqual(len(result["phases"][mode]["observed"]), 2)
            self.assertTrue(result["phases"][mode]["observed"][0]["buckets"], text)
            self.assertTrue(result["phases"][mode]["job"]["replicas_equal"], text)
            # In force or not, the demo says so, in as many words.
            self.assertRegex(result["phases"][mode]["plan"], "^(plan '|no plan)")
            self.assertIn(f"{name}: {result['phases'][mode]['plan']}", text)
        with open(os.path.join(self.folder, "timeline.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("</html>", page)
        self.assertEqual(page.count('aria-label="one iteration as measured"'), 4,
                         "one picture a run")
        self.assertEqual(page.count('aria-label="the last iterations"'),
                         4 if result["network"]["shaped"] else 0)
        xml.etree.ElementTree.fromstring(page.replace("<!doctype html>",
                                                      "").replace('<meta charset="utf-8">', ""))
        if result["network"]["shaped"]:
            plain, deft = (result["phases"][name]["traffic"][0] for name in ("plain", "exact"))
            self.assertLess(plain["eth1"]["sent"], 100000, "without deft the second link is idle")
            self.assertGreater(deft["eth1"]["sent"], 1000000, "with deft it is used")

    def test_a_failing_rank_shows_its_last_lines(self):
        done, text = self.run_demo("--model", "nosuch")
        self.assertEqual(done.returncode, 1, text)
        self.assertIn("invalid choice: 'nosuch'", text)
        self.assertNotIn("Traceback", text)

    def test_a_killed_demo_leaves_no_process(self):
        demo = subprocess.Popen(self.command("--epochs", "1000", "--iterations", "20000"),
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(demo.kill)
        log = os.path.join(self.folder, "plain-0.log")
        end = time.monotonic() + support.DEADLINE
        while not (os.path.exists(log) and os.path.getsize(log)):
            self.assertLess(time.monotonic(), end, "the job does not start")
            self.assertIsNone(demo.poll(), "the demo ended")
            time.sleep(0.1)
        self.assertGreater(len(self.processes()), 2)
        demo.send_signal(signal.SIGKILL)
        demo.wait()
        while self.processes():
            self.assertLess(time.monotonic(), end, f"left behind: {self.processes()}")
            time.sleep(0.1)

    def test_wrong_use_is_one_line_and_starts_nothing(self):
        for arguments, mentions in ((["--links", "3gbi"], ("3gbi", "500mbit")),
                                    (["--hosts", "1"], ("--hosts", "at least 2")),
                                    (["--nosuch"], ("--nosuch", "--help")),
                                    (["--epochs", "x"], ("--epochs", "'x'")),
                                    (["--modes", "exact,warp"], ("warp", "observe")),
                                    (["--out", "/proc/nosuch"], ("/proc/nosuch", "--out"))):
            with self.subTest(arguments=arguments):
                done, text = self.run_demo(*arguments)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")),
                                 (2, "", 1), text)
                for mention in mentions:
                    self.assertIn(mention, text)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "plain-0.log")))

    def test_signals_end_it_and_all_its_processes(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(signal=number.name):
                log = os.path.join(self.folder, "plain-0.log")
                demo = subprocess.Popen(self.command("--iterations", "1000", "--epochs", "100"),
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                end = time.monotonic() + support.DEADLINE
                while not (os.path.exists(log) and os.path.getsize(log)):
                    self.assertLess(time.monotonic(), end, "the job does not start")
                    self.assertIsNone(demo.poll(), "the demo ended")
                    time.sleep(0.1)
                demo.send_signal(number)
                text, _ = demo.communicate(timeout=support.DEADLINE)
                self.assertEqual(demo.returncode, code, text)
                self.assertNotIn("Traceback", text)
                while self.processes():
                    self.assertLess(time.monotonic(), end, f"left behind: {self.processes()}")
                    time.sleep(0.1)
                os.remove(log)

    def processes(self):
        """Command lines that name this test's folder."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    line = file.read()
            except OSError:
                continue
            if self.folder.encode() in line:
                found.append(line)
        return found


class Hosts(support.TorchTest):
    def test_bad_rates_are_refused(self):
        for rate in ("2gbits", "-1gbit", "0mbit", "fast"):
            with self.assertRaisesRegex(hosts.SetupError, "not understood"):
                hosts.rate_bits(rate)
        self.assertEqual(hosts.rate_bits("2.5gbit"), 2500000000)
        self.assertIsNone(hosts.rate_bits("unshaped"))

    def test_links_are_cut_and_restored(self):
        kind, reason = hosts.choose()
        if kind != "root":
            self.skipTest(reason)
        for count in (2, 3):
            with hosts.create(count, ["1gbit", "500mbit"]) as network:
                near = network.hosts[0 if count == 2 else -1]  # the one that loses its carrier
                network.cut(1)
                self.assertNotIn("LOWER_UP", near.run(["ip", "-o", "link", "show", "eth1"]))
                network.restore(1)
                network.cut(0, "blackhole")
                self.assertIn("blackhole", near.run(["tc", "qdisc", "show", "dev", "eth0"]))
                network.restore(0)
                network.set_rate(0, "2gbit")
                self.assertIn("rate 2Gbit", near.run(["tc", "qdisc", "show", "dev", "eth0"]))
                self.assertIn("LOWER_UP", near.run(["ip", "-o", "link", "show", "eth1"]))


support.main(__name__)
