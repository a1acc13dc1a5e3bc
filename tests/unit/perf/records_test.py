# SPDX-License-Identifier: Apache-2.0
"""What a record of several runs says about how each figure in it was measured. Runs no
benchmark."""

import contextlib
import io
import json
import os
import subprocess
import tempfile
import unittest
import unittest.mock

from perf.common import records
from perf.e2e import run as e2e
from perf.policies import run as policies

COMMIT = "v0.1-7-gabcdef0-dirty"


class Record(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "record.json")

    def write(self, document):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def read(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)


class Policies(Record):
    CELLS = [{"model": "vgg19", "coverage": 1.0, "policy": "plain"}]

    def refused(self, *arguments, machine=None, cells=None, other=None):
        """What is said about cells to be put beside those of a run with the default settings; ""
        if they may be."""
        fresh = policies.parse(["--json", os.path.join(os.path.dirname(self.path), "none.json")])
        self.write({"machine": machine or policies.machine.describe(), **policies.shared(fresh),
                    "cells": self.CELLS if cells is None else cells, **(other or {})})
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                policies.parse(["--json", self.path, *arguments])
            except SystemExit as ending:
                self.assertEqual((ending.code, said.getvalue().count("\n")), (2, 1),
                                 said.getvalue())
        return said.getvalue()

    def test_cells_with_other_settings_are_not_put_beside_them(self):
        self.assertEqual(self.refused(), "")
        for arguments, mention in ((["--links", "1gbit+500mbit"],
                                    "links 400mbit+200mbit, not 1gbit+500mbit"),
                                   (["--compute", "20"], "compute_ms 40.0, not 20.0"),
                                   (["--iterations", "60"], "iterations 80, not 60"),
                                   (["--window", "10"], "window 12, not 10")):
            with self.subTest(arguments=arguments):
                self.assertIn(mention, self.refused(*arguments))
                self.assertEqual(self.refused(*arguments, cells=[]), "",
                                 "there is nothing to put them beside")

    def test_cells_of_links_with_longer_bursts_are_not_put_beside_them(self):
        self.assertIn("burst_ms None, not 1.0", self.refused(other={"burst_ms": None}))

    def test_cells_of_another_machine_are_not_put_beside_them(self):
        other = {**policies.machine.describe(), "cpu": "another one"}
        self.assertIn("cpu another one, not", self.refused(machine=other))


class EndToEnd(Record):
    def measure(self, job, coverage, *arguments):
        options = e2e.parse(["--rounds", "1", *arguments])
        figures = {"plain": {"iteration_ms": 2.0, "bound_ms": 1.0, "of_bound": 2.0, "of_plain": 1.0,
                             "compute_ms": 1.0, "transfer_ms": 1.0, "sent": [1],
                             "replicas_equal": True}}
        with unittest.mock.patch.object(e2e.hosts, "create",
                                        lambda *_, **_more: contextlib.nullcontext()), \
                unittest.mock.patch.object(e2e.ranks, "raw_gbit", lambda *_: [1.0]), \
                unittest.mock.patch.object(e2e, "one_round", lambda *_: figures):
            return e2e.measure(job, coverage, ["1gbit"], options, None, COMMIT)

    def test_each_result_has_its_own_settings(self):
        results = [self.measure("replay", 0.9, "--compute", "40", "--window", "20"),
                   self.measure("ddp", None, "--iterations", "130")]
        e2e.save(self.path, {}, results)
        kept = self.read()
        self.assertEqual([{name: one[name] for name in ("revision", "iterations", "window",
                                                        "compute")} for one in kept["results"]],
                         [{"revision": COMMIT, "iterations": 110, "window": 20, "compute": 40.0},
                          {"revision": COMMIT, "iterations": 130, "window": 30, "compute": None}])
        self.assertFalse({"iterations", "window", "rounds"} & set(kept),
                         "of the last run only: nothing that holds for all results")


class Layout(Record):
    SAMPLES = [round(number / 7, 6) for number in range(200)]
    DOCUMENT = {"format": "x", "none": [], "empty": {}, "text": "a\n\"b\"", 3: True, "pair": (1, 2),
                "runs": [{"raw": SAMPLES,
                          "inner": {"raw": SAMPLES, "deep": [{"raw": SAMPLES}]}}] * 2}

    def test_nothing_is_lost(self):
        records.replace(self.path, self.DOCUMENT)
        self.assertEqual(self.read(), json.loads(json.dumps(self.DOCUMENT)))
        self.assertEqual(os.listdir(os.path.dirname(self.path)), [os.path.basename(self.path)])
        records.write(self.path, self.DOCUMENT, one_a_line=("runs",))
        self.assertEqual(self.read(), json.loads(json.dumps(self.DOCUMENT)))

    def test_a_set_of_samples_is_one_line(self):
        line = json.dumps(self.SAMPLES)
        lines = records.text(self.DOCUMENT).splitlines()
        self.assertEqual(sum(line in one for one in lines), 6)
        self.assertEqual(max(one.count("[") for one in lines if line in one), 1)
        whole = records.text(self.DOCUMENT, one_a_line=("runs",)).splitlines()
        self.assertEqual([one.count(line) for one in whole if line in one], [3, 3])

    def test_standard_output(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            records.write("-", {"a": [1]})
        self.assertEqual(said.getvalue(), '{"a": [1]}\n')


class Revision(unittest.TestCase):
    def test_outside_a_clone_there_is_none(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            self.assertEqual(e2e.machine.revision(folder), "")

    def test_a_record_that_is_being_written_is_no_change(self):
        def git(*arguments):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", folder,
                            *arguments], check=True, capture_output=True)

        def write(name, text):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("shim/course.cpp", "perf/results/e2e.json"):
                write(name, "1")
            git("init", "-q")
            git("add", ".")
            git("commit", "-q", "-m", "all")
            clean = e2e.machine.revision(folder)
            self.assertRegex(clean, "^[0-9a-f]{7,}$")
            write("perf/results/e2e.json", "2")
            self.assertEqual(e2e.machine.revision(folder), clean)
            write("shim/course.cpp", "2")
            self.assertEqual(e2e.machine.revision(folder), clean + "-dirty")

    def test_without_git_there_is_none(self):
        with unittest.mock.patch.object(e2e.machine.subprocess, "run",
                                        side_effect=FileNotFoundError("git")):
            self.assertEqual(e2e.machine.revision("/some/where"), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
