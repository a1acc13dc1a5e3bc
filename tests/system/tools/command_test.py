#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deft env, report, version, help: output, exit codes, streams. And: the generated page is up to
date.

usage: command_test.py DEFT LIBRARY SOURCE_ROOT
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

DEFT, LIBRARY, ROOT = map(os.path.abspath, sys.argv[1:4])


def report_of(rank, ranks=2):
    figures = {"median": 20.0, "p10": 19.0, "p90": 24.0, "n": 30}
    return {"format": "deft-observe", "version": 1, "library": {"version": "0.1.0", "path": "/x"},
            "nccl": {"version": 22809, "path": "/y"}, "host": "h", "rank": rank, "ranks": ranks,
            "pid": 1, "mode": "observe", "calls": {"ncclAllReduce": 60},
            "plugin": {"loaded": True, "abi": 11, "calls": 9},
            "iterations": {"seen": 30, "cycle_length": 1, "stable": True, "time_ms": figures,
                           "coverage_rate": figures},
            "buckets": [{"position": 0, "communicator": "a", "bytes": 4096, "count": 1024,
                         "type": "float32", "op": "sum", "in_place": True, "ready_ms": figures,
                         "transfer_ms": figures}],
            "links": [{"name": "eth0", "kind": "tcp", "bytes_sent": 1, "bytes_received": 2,
                       "chunks_sent": 1, "busy_ms": 1.0, "resent_bytes": 0, "transitions": 0,
                       "speed_mbps": 1000}]}


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-command-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def deft(self, *arguments, env=None, **options):
        options = {"capture_output": True, **options}
        return subprocess.run([DEFT, *map(str, arguments)],
                              env={"PATH": "/usr/bin:/bin", **(env or {})}, cwd=self.folder,
                              text=True, timeout=60, **options)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def test_version_and_the_library_it_would_use(self):
        for arguments in (["--version"], ["version"], ["-V"]):
            result = self.deft(*arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertRegex(result.stdout, rf"^deft (\S+)\nlibrary {re.escape(LIBRARY)} \1\n"
                             r"commit (\w+(-dirty)?|not known)\n"
                             r"glibc 2\.\d+ or newer; this command 2\.\d+ or newer\n"
                             r"NCCL 2\.13 to 2\.\d+, network plugin v6 to v\d+, "
                             r"tuner v2 to v6\n$")
        # Of a clone that git looks at, the revision too: two builds differ in it.
        in_git = shutil.which("git") is not None and subprocess.run(
            ["git", "--git-dir", f"{ROOT}/.git", "rev-parse", "HEAD"],
            capture_output=True).returncode == 0
        revision = r"\+[0-9a-f]{12}(-dirty)?" if in_git else ""
        self.assertRegex(result.stdout, rf"^deft \d+\.\d+\.\d+{revision}\n")
        result = self.deft("version", "--library", "/no/lib.so")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/no/lib.so", result.stderr)

    def test_help(self):
        for arguments in (["--help"], ["run", "--help"], ["env", "-h"], ["report", "--help"],
                          ["help"], ["help", "plan"]):
            result = self.deft(*arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("Usage:", result.stdout)

    def test_the_manual_page_has_every_command(self):
        with open(f"{ROOT}/docs/deft.1", encoding="utf-8") as page:
            synopsis, commands = page.read().replace("\\-", "-").split(".SH COMMANDS\n")
        first = self.deft("completion", "bash").stdout.split('COMP_CWORD" -eq 1')[1]
        words = set(re.search(r"compgen -W '([^']+)'", first)[1].split())
        names = {word for word in words if not word.startswith("-")} - {"help"}
        self.assertIn("run", names)
        for name in names:
            self.assertRegex(commands, rf"\.TP\n\.BR? {name}\b")
            if name != "version":
                self.assertRegex(synopsis, rf"(?m)^\.B deft {name}$")

    def test_usage_errors_are_one_line_with_a_hint(self):
        for arguments, hint in ((["reprot"], "did you mean report?"),
                                (["env", "--jsno"], "did you mean --json?"),
                                (["--verison"], "did you mean --version?"), (["env", "x"], "'x'"),
                                ([], "one of run, env, report"),
                                (["help", "xyzzy"], "see deft --help"),
                                (["xyzzy"], "see deft --help"),
                                (["env", "--json", "--man"], "choose one"), (["report"], "usage:"),
                                (["topo", "--host", "x"], "'x' is not a whole number from 1"),
                                (["doctor", "--pid", "x"], "'x' is not a whole number from 1"),
                                (["doctor", "--port", "0"], "'0' is not a whole number from 1"),
                                (["report", "--jsn", "f"], "--json"), ([""], "''")):
            with self.subTest(arguments=arguments):
                result = self.deft(*arguments)
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")),
                                 (2, "", 1), result.stderr)
                self.assertIn(hint, result.stderr)

    def test_env(self):
        result = self.deft("env", env={"DEFT_LOG": "info"})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("DEFT_LOG=info   [environment]", result.stdout)
        result = self.deft("env", "--json", env={"DEFT_MODE": "x", "DEFT_MOED": "y"})
        self.assertEqual(result.returncode, 1, "a wrong value")
        self.assertEqual(self.deft("env", env={"DEFT_PREDICT": "late"}).returncode, 1)
        self.assertIn("problem: DEFT_OPTIMIZER='x'",
                      self.deft("env", env={"DEFT_OPTIMIZER": "x"}).stdout)
        document = json.loads(result.stdout)
        self.assertEqual((len(document["problems"]), len(document["warnings"])), (1, 1))

    def test_the_reference_page_is_up_to_date(self):
        page = pathlib.Path(ROOT, "docs", "configuration.md").read_text()
        self.assertEqual(page, self.deft("env", "--markdown").stdout,
                         "run: build/tools/deft env --markdown > docs/configuration.md")

    def test_every_variable_in_the_sources_is_in_the_table(self):
        """A DEFT_* read behind the table's back would have no check and no documentation."""
        known = {v["name"] for v in json.loads(self.deft("env", "--json").stdout)["variables"]}
        read = re.compile(r'getenv\(\s*"(DEFT_[A-Z_]+)"')
        for room in ("base", "planner", "plugin", "shim", "topology", "tools"):
            for path in pathlib.Path(ROOT, room).rglob("*.[ch]*"):
                self.assertEqual(read.findall(path.read_text()), [],
                                 f"{path}: use Config::process()")
        documents = [pathlib.Path(ROOT, "README.md"), *pathlib.Path(ROOT, "docs").glob("*.md")]
        for path in documents:
            named = set(re.findall(r"\bDEFT_[A-Z_]+[A-Z]\b", path.read_text()))
            self.assertEqual(named - known, set(), f"{path} speaks of variables that do not exist")

    def test_report(self):
        files = [self.write(f"{rank}.json", report_of(rank)) for rank in (0, 1)]
        result = self.deft("report", *files)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("2 of 2 ranks", result.stdout)
        document = json.loads(self.deft("report", "--json", *files).stdout)
        self.assertEqual(document["ranks"][1]["rank"], 1)
        self.assertEqual([document[name] for name in ("nccl_version", "mode", "hosts")],
                         [22809, "observe", ["h"]])
        self.assertEqual(document["ranks"][0]["hooks"],
                         {"in_path": True, "calls": 60, "captured": 0, "lost": 0,
                          "events_note": ""})
        page = self.deft("report", "--html", *files)
        self.assertEqual((page.returncode, page.stderr), (0, ""))
        self.assertTrue(page.stdout.startswith("<!DOCTYPE html>"))
        self.assertEqual(self.deft("report", "--html", "--json", *files).returncode, 2)
        self.assertEqual(self.deft("report", files[0]).returncode, 0,
                         "one rank alone is worth reading")
        self.assertEqual(self.deft("report", files[0], files[0]).returncode, 1,
                         "twice the same rank")

    def test_report_says_what_is_wrong_with_a_file_and_shows_the_others(self):
        good = self.write("good.json", report_of(0))
        cut = self.write("cut.json", json.dumps(report_of(1))[:100])
        cases = [(self.folder / "absent", "No such file"), (self.folder, "folder"),
                 (cut, "line 1, column 101"), (self.write("other", "{}"), "not a report"),
                 (self.write("text", "hello"), "not valid JSON"),
                 (self.write("new", {**report_of(1), "version": 9}), "version 9")]
        for path, mention in cases:
            with self.subTest(path=path):
                result = self.deft("report", path)
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")),
                                 (1, "", 1))
                self.assertIn(f"{path}: ", result.stderr)
                self.assertIn(mention, result.stderr)
                result = self.deft("report", good, path)
                self.assertEqual(result.returncode, 1)
                self.assertIn("1 of 2 ranks", result.stdout)

    def test_a_reader_that_goes_away_is_no_error(self):
        read, write = os.pipe()
        os.close(read)
        result = self.deft("env", capture_output=False, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_disk_is(self):
        with open("/dev/full", "w") as full:
            result = self.deft("env", capture_output=False, stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn("No space left", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
