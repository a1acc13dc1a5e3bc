#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `deft plan`, `deft sim` and `deft advise` as a user does. Usage: planner_cli.py DEFT"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

DEFT = os.path.abspath(sys.argv[1])
POLICIES = ["none", "wfbp", "mg-wfbp", "bytescheduler", "us-byte", "dear", "deft", "covap", "edf",
            "fewest-links", "best"]


# NCCL's file of a host with four GPUs behind a switch of NVLinks, and two ports and one interface.
NODE = ('<system version="1"><cpu numaid="0">' + "".join(
    f'<pci busid="0000:1{gpu}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
    f'<gpu dev="{gpu}" sm="90"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>'
    "</pci>" for gpu in range(4)) + "".join(
    f'<pci busid="0000:2{port}:00.0" class="0x020700"><nic><net name="mlx5_{port}" speed="200000" '
    'port="1"/></nic></pci>' for port in range(2)) +
    '<nic><net name="eth0" speed="25000" port="0"/></nic></cpu></system>')


class PlannerCommands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text, mode="w"):
        path = os.path.join(self.folder.name, name)
        with open(path, mode) as out:
            out.write(text)
        return path

    def deft(self, *arguments, code=0):
        done = subprocess.run([DEFT, *arguments], capture_output=True, text=True, timeout=240,
                              cwd=self.folder.name)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        if code == 0:
            self.assertEqual(done.stderr, "")
            return done.stdout
        # One clear line and nothing else.
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("deft: "), done.stderr)
        return done.stderr

    def test_sim_prints_every_policy(self):
        out = self.deft("sim", "--profile", "model:vgg19", "--links", "10GbE", "--ranks", "16",
                        "--policy", "all")
        rows = [line.split()[0] for line in out.splitlines() if line
                and line.split()[0] in POLICIES]
        self.assertEqual(rows, POLICIES)
        # One verdict, which counts updates; a policy is told from the mode that has its name.
        self.assertRegex(out, r"\nverdict: best \(\w.*\): .* per iteration, .* to the same loss")
        self.assertEqual(out.count("verdict"), 1)
        self.assertIn("\ndeft (paper) ", out)
        self.assertIn("\ncovap (paper) ", out)
        self.assertIn("ddl-benchmarks", out)  # where the link's rate comes from
        self.assertIn("2 merged, in turns (", out)
        self.assertIn("mode deft by default does one of the two, and merges whole", out)

    def test_sim_knows_nodes(self):
        """NVLink inside, NICs between: from the file of a machine, for one node and for several."""
        machine = self.file("node.xml", NODE)
        arguments = ("--profile", "model:gpt2", "--links", machine, "--json")
        inside = json.loads(self.deft("sim", *arguments, "--ranks", "4"))
        [link] = inside["links"]
        self.assertEqual((link["name"], link["kind"], inside["nodes"]), ("nvlink", "nvlink", 1))
        self.assertIn("4 of the 4 GPUs of one node, 371 GB/s each", link["source"])
        between = json.loads(self.deft("sim", *arguments, "--nodes", "2"))
        self.assertEqual((between["ranks"], between["nodes"]), (8, 2))
        self.assertEqual([link["kind"] for link in between["links"]], ["ib", "tcp"])
        self.assertIn("2 nodes of 4 GPUs, NVLink 371 GB/s inside, 2 x ib 200 Gbit/s between, "
                      "nominal", between["links"][0]["source"])
        self.assertIn("1 x tcp 25 Gbit/s between", between["links"][1]["source"])
        self.assertGreater(self.iteration(between), self.iteration(inside))
        more = json.loads(self.deft("sim", *arguments, "--nodes", "16"))
        self.assertGreater(self.iteration(more), self.iteration(between))
        # A tenth of the rate between nodes is what an iteration feels.
        slow = self.file("slow.xml", NODE.replace('speed="200000"', 'speed="20000"'))
        slower = json.loads(self.deft("sim", "--profile", "model:gpt2", "--links", slow, "--json",
                                      "--nodes", "2"))
        self.assertGreater(self.iteration(slower), 2 * self.iteration(between))
        # And what is inside, if that is slow.
        pci = self.file("pci.xml", re.sub("<nvlink[^>]*>", "", NODE))
        without = json.loads(self.deft("sim", "--profile", "model:gpt2", "--links", pci, "--json",
                                       "--nodes", "2"))
        self.assertIn("PCI (no NVLink is known) 48 GB/s inside", without["links"][0]["source"])
        self.assertGreater(self.iteration(without), self.iteration(between))

    @staticmethod
    def iteration(simulated):
        return next(row["iteration_ms"] for row in simulated["policies"] if row["policy"] == "none")

    def test_plan_on_a_topology(self):
        machine = self.file("node.xml", NODE)
        plan = json.loads(self.deft("plan", "--profile", "model:gpt2", "--links", machine,
                                    "--nodes", "2", "--json"))
        self.assertEqual(plan["format"], "deft-plan")

    def test_topologies_that_make_no_fabric(self):
        machine = self.file("node.xml", NODE)
        for links, extra, *mentions in (
                (machine, ("--ranks", "6"), "6 ranks", "nodes of 4 GPUs", "--nodes"),
                (machine, ("--ranks", "8", "--nodes", "2"), "--nodes and --ranks"),
                ("10GbE", ("--nodes", "2"), "--nodes", "--links takes topo"),
                (self.file("none.xml", re.sub(r"<pci.*?</pci>", "", NODE, flags=re.DOTALL)),
                 ("--nodes", "2"), "no GPU"),
                (self.file("alone.xml", re.sub(r"<nic>.*?</nic>", "", NODE, flags=re.DOTALL)
                           .replace('class="0x020700"', 'class="0x010802"')),
                 ("--nodes", "2"), "neither NCCL nor deft would drive", "deft topo"),
                (self.file("broken.xml", NODE[:-9]), ("--nodes", "2"), "not closed"),
                ("missing.xml", ("--nodes", "2"), "No such file")):
            with self.subTest(links=links, extra=extra):
                said = self.deft("sim", "--profile", "model:gpt2", "--links", links, *extra, code=1)
                for mention in mentions:
                    self.assertIn(mention, said)

    def test_sim_json_agrees_with_one_policy(self):
        arguments = ("sim", "--profile", "model:gpt2", "--links", "100Gb-IB,10GbE", "--ranks", "8",
                     "--json")
        everything = json.loads(self.deft(*arguments))
        self.assertEqual([row["policy"] for row in everything["policies"]], POLICIES)
        alone = json.loads(self.deft(*arguments, "--policy", "best"))
        self.assertEqual(alone["policies"], everything["policies"][-1:])
        best = everything["policies"][-1]
        for row in everything["policies"]:
            self.assertGreaterEqual(row["gap"], -1e-9)
            if row["barrier"] == "update" and row["max_delay"] <= 1 and row["max_merge"] <= 2:
                # the noise of "do nothing"
                self.assertLessEqual(best["iteration_ms"] / best["progress"],
                                     row["iteration_ms"] / row["progress"] * 1.03)

    def test_best_names_the_policy_and_may_delay_the_tail_alone(self):
        job = ("sim", "--profile", "model:bert-base,seconds=0.3", "--links", "10GbE",
               "--ranks", "16", "--policy", "best", "--max-merge", "1", "--json")
        late = json.loads(self.deft(*job, "--no-mixed-ages", "--age-price", "0"))["policies"][0]
        self.assertEqual((late["origin"], late["late"]), ("generations", 1))
        tail = json.loads(self.deft(*job))["policies"][0]
        self.assertEqual(tail["origin"], "mixed-ages")
        self.assertLess(tail["late"], 1)
        self.assertLess(tail["iteration_ms"], late["iteration_ms"] * 1.001)
        fresh = json.loads(self.deft(*job, "--age-price", "100"))["policies"][0]
        self.assertEqual((fresh["late"], fresh["progress"]), (0, 1))
        self.assertIn("best (mixed-ages)", self.deft(*job[:-1]))
        self.assertIn("% of the bytes late", self.deft("plan", *job[1:7]))

    def test_a_named_policy_says_where_the_job_as_it_is_is_better(self):
        job = ("plan", "--profile", "model:gpt2", "--links", "10GbE", "--ranks", "1024", "--policy")
        out = self.deft(*job, "deft")
        self.assertIn("verdict: keep (the job as it is is better by progress: 970.622 ms for a "
                      "synchronous update's worth, this plan 1337.", out)
        self.assertNotIn("better by progress", self.deft(*job, "none"))

    def test_advise_draws_the_curve(self):
        job = ("advise", "model:bert-large,seconds=0.5", "--links", "10GbE,10GbE", "--ranks", "16",
               "--curve")
        out = self.deft(*job, "--svg", "curve.svg")
        self.assertIn("you are here: compute is ", out)
        self.assertIn("mode exact, DEFT_LAYERWISE=auto", out)
        self.assertIn("ordering over overlap: 1.33x", out)
        xml.dom.minidom.parse(os.path.join(self.folder.name, "curve.svg"))
        curve = json.loads(self.deft(*job, "--json"))[0]["curve"]
        self.assertEqual(len(curve["points"]), 33)
        self.assertIn("add --curve", self.deft(*job[:-1], "--svg", "x.svg", code=2))
        links = ("--links", "10GbE", "--ranks", "16")
        self.assertIn("is the batch meant", self.deft("advise", "model:vgg19,batch=1", *links))
        for command in ("plan", "sim"):
            self.assertIn("note: the transfers take ",
                          self.deft(command, "--profile", "model:vgg19,batch=1", *links))
            self.assertNotIn("the transfers take",
                             self.deft(command, "--profile", "model:vgg19", *links))

    def test_links_say_where_nobody_measured(self):
        job = ("--profile", "model:resnet50", "--links", "10GbE", "--ranks")
        self.assertNotIn("beyond", self.deft("sim", *job, "32", "--policy", "none"))
        self.assertIn("beyond its measurements: 10GbE (measured with 8 to 32 ranks, used for 4096)",
                      self.deft("sim", *job, "4096", "--policy", "none"))
        self.assertIn("beyond its measurements", self.deft("plan", *job, "4096"))
        self.deft("plan", *job, "4096", "--out", "beyond.json")
        self.assertIn("beyond its", self.deft("plan", *job, "4096", "--check", "beyond.json"))
        with open(os.path.join(self.folder.name, "beyond.json"), encoding="utf-8") as file:
            saved = json.load(file)
        self.assertEqual(saved["beyond"], {"10GbE": "measured with 8 to 32 ranks, used for 4096"})
        self.assertEqual(json.loads(self.deft("plan", *job, "4096", "--json")), saved)
        self.assertEqual(json.loads(self.deft("plan", *job, "32", "--json"))["beyond"], {})
        advice = ("advise", "model:resnet50", *job[2:], "4096")
        self.assertIn("beyond its measurements", self.deft(*advice))
        self.assertEqual(json.loads(self.deft(*advice, "--json"))[0]["beyond"],
                         {"10GbE": "measured with 8 to 32 ranks, used for 4096"})

    def test_links_say_which_messages_nobody_measured(self):
        job = ("--profile", "model:resnet50", "--links", "400Gb-IB", "--ranks", "2")
        self.assertNotIn("beyond", self.deft("sim", *job, "--policy", "none"))
        job = ("--profile", "model:resnet50,layers", *job[2:], "--policy", "none")
        self.assertIn("beyond its measurements: 400Gb-IB (measured with messages of 2 MiB to 32 "
                      "MiB, used for 16.5 KiB to 9 MiB)", self.deft("plan", *job))
        sim = json.loads(self.deft("sim", *job, "--json"))
        self.assertIn("used for 16.5 KiB to 9 MiB", sim["links"][0]["beyond"])
        advice = json.loads(self.deft("advise", "model:resnet50", "--links", "4x100Gb-EFA",
                                      "--ranks", "32", "--json"))
        self.assertIn("measured with messages of 1 GiB, used for",
                      advice[0]["beyond"]["4x100Gb-EFA"])
        links = os.path.join(self.folder.name, "points.toml")
        with open(links, "w", encoding="utf-8") as file:
            file.write("[[links]]\nname = 'eth'\npoints = [[1048576, 0.001], [4194304, 0.004]]\n")
        self.assertIn("beyond its measurements: eth (measured with messages of 1 MiB to 4 MiB",
                      self.deft("plan", "--profile", "model:resnet50", "--links", links))

    def test_advise_draws_a_curve_for_each_job(self):
        out = self.deft("advise", "model:vgg19", "model:resnet50", "--links", "10GbE", "--ranks",
                        "16", "--curve", "--svg", "curves.svg")
        self.assertEqual(out.count("you are here: compute is "), 2)
        path = os.path.join(self.folder.name, "curves.svg")
        drawn = xml.dom.minidom.parse(path)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read().count(">you are here"), 2)
        pictures = [part for part in drawn.documentElement.childNodes if part.nodeName == "svg"]
        heights = [float(part.getAttribute("height")) for part in pictures]
        self.assertEqual([float(part.getAttribute("y")) for part in pictures], [0, heights[0]])
        self.assertEqual(float(drawn.documentElement.getAttribute("height")), sum(heights))

    def test_plan_writes_what_it_is_asked_for(self):
        self.deft("plan", "--profile", "model:resnet50", "--links", "10GbE,10GbE-gloo", "--policy",
                  "deft", "--svg", "a.svg", "--trace", "a.json", "--out", "p.json",
                  "--save-profile", "profile.json")
        drawn = xml.dom.minidom.parse(os.path.join(self.folder.name, "a.svg"))
        [title] = [text.firstChild.data for text in drawn.getElementsByTagName("text")
                   if text.getAttribute("class") == "head"]
        with open(os.path.join(self.folder.name, "a.json"), encoding="utf-8") as file:
            self.assertGreater(len(json.load(file)["traceEvents"]), 10)
        with open(os.path.join(self.folder.name, "p.json"), encoding="utf-8") as file:
            plan = json.load(file)
        printed = json.loads(self.deft("plan", "--profile", "profile.json", "--links",
                                       "10GbE,10GbE-gloo", "--ranks", "16", "--policy", "deft",
                                       "--json"))
        self.assertEqual(printed["transfers"], plan["transfers"])
        iteration = printed["predicted"]["iteration_s"] * 1e3
        self.assertEqual(title, f"deft: 2 iterations of {iteration:.3f} ms")

    def test_links_files(self):
        toml = self.file("l.toml", '[[links]]\nname = "a"\ngbit_per_s = 9.4\n')
        same = self.file("l.json", '{"links": [{"name": "a", "gbit_per_s": 9.4}]}')
        one = json.loads(self.deft("sim", "--profile", "model:vgg16", "--links", toml, "--json"))
        two = json.loads(self.deft("sim", "--profile", "model:vgg16", "--links", same, "--json"))
        self.assertEqual(one, two)

    def test_mixtures_and_repeats(self):
        arguments = ("sim", "--profile", "model:bert-base", "--links", "10GbE+100Gb", "--ranks",
                     "8", "--json", "--jitter", "0.2")
        first = self.deft(*arguments)
        self.assertEqual(first, self.deft(*arguments))
        rows = json.loads(first)
        self.assertEqual([link["name"] for link in rows["links"]], ["10GbE", "100Gb-IB"])
        # the job as it is has the same stragglers
        self.assertEqual(rows["policies"][0]["speedup"], 1)
        other = json.loads(self.deft(*arguments, "--seed", "2"))
        self.assertNotEqual(other["policies"][0]["iteration_ms"],
                            rows["policies"][0]["iteration_ms"])

    def test_stragglers_and_rate_changes(self):
        def iteration(seconds, *more):
            arguments = ("sim", "--profile", f"model:resnet50,seconds={seconds}", "--links",
                         "10GbE", "--policy", "none", "--json")
            return json.loads(self.deft(*arguments, *more))["policies"][0]["iteration_ms"]
        computes, sends = iteration(1), iteration(0.01)
        self.assertGreater(iteration(1, "--straggler", "2"), 1.9 * computes)
        self.assertGreater(iteration(0.01, "--rate-change", "10GbE:0:0.25"), 2 * sends)
        self.assertAlmostEqual(iteration(0.01, "--rate-change", "10GbE:100000000:0.25"), sends,
                               places=6)
        for wrong in ("10GbE", "10GbE:1", "eth9:1:1", "10GbE:x:1", "10GbE:1:0", "10GbE:1:nan", "::",
                      ""):
            self.assertIn("--rate-change", self.deft("sim", "--profile", "model:vgg19", "--links",
                                                     "10GbE", "--rate-change", wrong, code=1))

    def test_a_saved_plan_is_checked(self):
        job = ("plan", "--profile", "model:gpt2", "--links", "10GbE,10GbE-gloo")
        self.deft(*job, "--policy", "deft", "--out", "p.json")
        self.assertIn("sound: policy deft", self.deft(*job, "--check", "p.json"))
        self.assertIn("p.json: ", self.deft(*job, "--check", "p.json", "--max-delay", "0", code=1))
        self.assertIn("p.json: ", self.deft("plan", "--profile", "model:vgg16", "--links", "10GbE",
                                            "--check", "p.json", code=1))
        with open(os.path.join(self.folder.name, "p.json"), encoding="utf-8") as file:
            plan = json.load(file)
        plan["transfers"][0]["end"] -= 512
        self.assertIn("m.json: ",
                      self.deft(*job, "--check", self.file("m.json", json.dumps(plan)), code=1))
        plan["transfers"][0]["end"] = "all"
        self.assertIn("m.json: transfers[0].end: ",
                      self.deft(*job, "--check", self.file("m.json", json.dumps(plan)), code=1))
        plan["version"] = 2
        self.assertIn("m.json: version: ",
                      self.deft(*job, "--check", self.file("m.json", json.dumps(plan)), code=1))

    def test_advise_reads_a_trace(self):
        events = []
        for step in range(3):
            at = 1000 + step * 100000
            events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                           "ts": at, "dur": 100000})
            for k in range(2):
                events.append({"ph": "X", "cat": "kernel",
                               "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                               "ts": at + 40000 + 20000 * k, "dur": 15000,
                               "args": {"In msg nelems": 1000000 * (k + 1), "dtype": "Float"}})
        trace = self.file("t.json", json.dumps({"traceEvents": events}))
        out = self.deft("advise", trace)
        self.assertIn("bucket   1:      8000000 bytes", out)
        found = json.loads(self.deft("advise", trace, "--json"))[0]
        self.assertLessEqual(found["delay"]["gain"]["low"], found["delay"]["gain"]["high"])
        latin = os.path.join(self.folder.name, os.fsdecode(b"gr\xf6\xdfe.json"))
        os.rename(trace, latin)
        self.assertEqual(json.loads(self.deft("advise", latin, "--json"))[0]["delay"],
                         found["delay"])

    def rank_file(self, rank, ranks, milliseconds, **more):
        """What mode observe writes: one bucket that is ready at the end of backward."""
        def spread(value):
            return {"median": value, "p10": value, "p90": value, "n": 40}
        content = {"format": "deft-observe", "version": 1, "host": "h", "rank": rank,
                   "ranks": ranks,
                   "iterations": {"time_ms": spread(milliseconds), "compute_ms": spread(60)},
                   "buckets": [{"bytes": 4 << 20, "ready_ms": spread(50),
                                "transfer_ms": spread(30)}], **more}
        return self.file(f"{ranks}-{rank}.json", json.dumps(content))

    def test_advise_tells_ranks_that_agree_once(self):
        files = [self.rank_file(rank, 8, 90 + rank / 10) for rank in (0, 2, 1, 3, 5)]
        out = self.deft("advise", *files)
        self.assertEqual(len([line for line in out.splitlines() if not line.startswith(" ")]), 1,
                         out)
        self.assertTrue(out.startswith("ranks 0-3, 5: "), out)
        self.assertIn("of rank 2 (", out)
        self.assertIn("5 ranks that agree: 90.000 to 90.500 ms", out)
        # Another job, a rank twice, and a rank of other sums are told apart.
        others = [self.rank_file(0, 2, 90), files[0],
                  self.rank_file(7, 8, 90,
                                 buckets=[{"bytes": 1 << 20,
                                           "ready_ms": {"median": 50, "p10": 50, "p90": 50, "n": 9},
                                           "transfer_ms": {"median": 30, "p10": 30, "p90": 30,
                                                           "n": 9}}])]
        out = self.deft("advise", *files, *others)
        self.assertEqual(len([line for line in out.splitlines() if not line.startswith(" ")]), 4,
                         out)
        self.assertEqual(len(json.loads(self.deft("advise", *files, "--json"))), 5)

    def test_no_plan_is_for_use_under_do_nothing(self):
        # The job was timed at what compute alone takes, and by its transfers it should have taken
        # longer.
        out = self.deft("advise", self.rank_file(0, 1, 60))
        self.assertIn("do nothing", out)
        self.assertIn("(keep)", out)
        self.assertNotIn("(use", out)
        found = json.loads(self.deft("advise", self.rank_file(0, 1, 60), "--json"))[0]
        self.assertEqual(found["best_plan_verdict"], "keep")

    def test_a_plan_says_what_it_gains_to_the_same_loss(self):
        job = ("plan", "--profile", "model:vgg19", "--links", "10GbE")
        out = self.deft(*job, "--max-delay", "0", "--max-merge", "2", "--merge", "whole")
        self.assertRegex(out, r"updates per iteration 0\.5")
        gained = r"\nverdict: use: ([\d.]+)x per iteration, ([\d.]+)x to the same loss"
        gains = re.search(gained, out)
        self.assertAlmostEqual(float(gains[2]), float(gains[1]) * 2 / 3, delta=0.01)
        self.assertIn("worth 0.667 synchronous ones", out)
        late = self.deft(*job, "--max-delay", "1", "--max-merge", "1")
        gains = re.search(gained, late)
        self.assertLess(float(gains[2]), float(gains[1]))
        free = self.deft(*job, "--max-delay", "1", "--max-merge", "1", "--age-price", "0")
        self.assertRegex(free, r"\nverdict: use: [\d.]+x per iteration\n")
        for command in ("plan", "sim"):   # what merging does not pay for is not done
            kept = self.deft(command, *job[1:], "--max-delay", "0", "--merge", "whole",
                             "--noise-scale", "0", "--policy", "best")
            self.assertIn("keep", kept)

    def test_wrong_usage_is_2(self):
        for arguments, says in [
            (["sim"], "--profile and --links"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--policy", "fastest"],
             "'fastest' is none of"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--ranks", "1"], "--ranks"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--jitter", "-1"], "--jitter"),
            (["plan", "--profile", "model:vgg19", "--links", "10GbE", "--max-merge", "0"],
             "--max-merge"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--ranks", "two"],
             "--ranks: 'two' is not a whole number from 2 to 1000000"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--partition-mb", "4KB"],
             "--partition-mb: '4KB' is not a number from 0 to 65536"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--straggler", "5 "],
             "--straggler: '5 ' is not a number from 1 to 1000"),
            (["sim", "--profile", "model:vgg19", "--links", "10GbE", "--seed", "x"],
             "--seed: 'x' is not a whole number from 0 to"),
            (["plan", "--profile", "model:vgg19", "--links", "10GbE", "spare"], "spare"),
            (["advise"], "name a trace"),
        ]:
            self.assertIn(says, self.deft(*arguments, code=2))
        for option in ("--jitter", "--straggler", "--partition-mb", "--credit-mb"):
            for value in ("nan", "-nan", "NAN(1)", "inf"):
                said = self.deft("sim", "--profile", "model:vgg19", "--links", "10GbE", option,
                                 value, code=2)
                self.assertIn(option, said, value)

    def test_wrong_input_is_1_and_names_it(self):
        deep = self.file("deep.toml", "links = " + "[" * 200000)
        for arguments, says in [
            (["--profile", "model:vgg", "--links", "10GbE"], "model:vgg: no such model"),
            (["--profile", "no.json", "--links", "10GbE"], "no.json: "),
            (["--profile", ".", "--links", "10GbE"], ".: "),
            (["--profile", self.file("empty.json", ""), "--links", "10GbE"], "empty.json: "),
            (["--profile", "/dev/zero", "--links", "10GbE"],
             "/dev/zero: neither a file nor a pipe"),
            (["--profile",
              self.file("twice.json", '{"format": "deft-profile", "buckets": [{"bytes": '
                                      '1, "bytes": 2}]}'), "--links", "10GbE"],
             "twice.json: buckets[0].bytes: given twice"),
            (["--profile", self.file("utf16.json", '{"format": "deft-profile"}'.encode("utf-16"),
                                     "wb"), "--links", "10GbE"],
             "utf16.json: "),
            (["--profile", self.file("cut.gz", b"\x1f\x8b\x08abc", "wb"), "--links", "10GbE"],
             "cut.gz: "),
            (["--profile", self.file("text", "hello"), "--links", "10GbE"], "text: "),
            (["--profile", "model:vgg19", "--links", "1GbE"],
             "'1GbE' is neither a file (*.toml, *.json) nor a preset"),
            (["--profile", "model:vgg19", "--links", "no.toml"], "no.toml: "),
            (["--profile", "model:vgg19", "--links", deep], "deep.toml: "),
            (["--profile", "model:vgg19", "--links",
              self.file("l.json", '{"links":[{"name":"a","gbit_per_s":-1}]}')],
             "links[0].gbit_per_s: -1 is outside"),
            (["--profile", "model:vgg19", "--links", "10GbE", "--svg", "no/such/folder.svg"],
             "no/such/folder.svg: "),
        ]:
            self.assertIn(says, self.deft("sim", "--policy", "none", *arguments, code=1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
