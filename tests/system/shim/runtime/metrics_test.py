# SPDX-License-Identifier: Apache-2.0
"""The files of DEFT_METRICS while a job of two ranks runs, read as strictly as Prometheus does; and
`deft top` of the same job."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PLAN_MAIN, LIBRARY, DEFT, SOURCE = map(os.path.abspath, sys.argv[1:5])
DEADLINE = 60
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})\{{((?:{NAME}="(?:[^"\\\n]|\\["\\n])*"(?:,|(?=\}})))*)\}} (\S+)')
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"')


def parse(text):
    """{(name, labels): value}; raises AssertionError where the format is not kept."""
    assert text.endswith("\n") and "\n\n" not in text
    samples, types, order = {}, {}, []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, name) and name not in order, line
            order.append(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert order[-1] == name and name not in types, line
            assert kind in ("counter", "gauge", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), line
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name = found[1]
            family = order[-1]
            suffixes = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
            assert name in [family + suffix for suffix in suffixes], line
            labels = LABEL.findall(found[2])
            assert len({key for key, _ in labels}) == len(labels), line
            key = (name, tuple(sorted(labels)))
            assert key not in samples, line
            samples[key] = float(found[3])
    for (name, labels), value in samples.items():
        if name.endswith("_count"):
            series = dict(labels)
            buckets = [(float(dict(at)["le"]), count) for (of, at), count in samples.items()
                       if of == name[:-6] + "_bucket"
                       and {k: v for k, v in at if k != "le"} == series]
            assert buckets == sorted(buckets) and buckets[-1] == (float("inf"), value), name
            assert [count for _, count in buckets] == sorted(count for _, count in buckets), name
    return samples


def total(samples, name):
    return sum(value for (of, _), value in samples.items() if of == name)


class Metrics(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="deft-metrics-"))
        self.metrics = self.folder / "prom"
        self.metrics.mkdir()
        self.ranks = []
        # LD_PRELOAD is cut at blanks, which the library's path may have.
        self.library = str(self.folder / "libnccl-net-deft.so")
        os.symlink(LIBRARY, self.library)

    def tearDown(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        shutil.rmtree(self.folder)

    def start(self, prefix=(), **settings):
        for rank in range(2):
            environment = {
                **os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"host{rank}",
                "DEFT_INTERFACES": "lo", "DEFT_WARMUP": "10", "LD_PRELOAD": self.library,
                "NCCL_NET_PLUGIN": self.library, "DEFT_GRADIENTS": "trust", "DEFT_MODE": "deft",
                "DEFT_PLAN": "delay1", "DEFT_METRICS": str(self.metrics),
                "DEFT_METRICS_INTERVAL": "1s", "XDG_RUNTIME_DIR": str(self.folder),
                "SLURM_JOB_ID": '7"\\\n7', **settings}
            command = [*prefix, PLAN_MAIN, str(rank), "2", str(self.folder / "id"), "5", "until"]
            if prefix:  # the loader would take the preload into the shell
                environment.pop("LD_PRELOAD")
                command[len(prefix):len(prefix)] = ["env", f"LD_PRELOAD={self.library}"]
            with open(self.folder / f"err{rank}", "w") as err:
                self.ranks.append(subprocess.Popen(command, env=environment, cwd=self.folder,
                                                   stdout=subprocess.DEVNULL, stderr=err))

    def wait_for(self, what):
        end = time.monotonic() + DEADLINE
        while not (found := what()):
            for rank in range(2):
                self.assertIsNone(self.ranks[rank].poll(), self.err(rank))
            self.assertLess(time.monotonic(), end, self.err(0))
            time.sleep(0.05)
        return found

    def err(self, rank):
        return (self.folder / f"err{rank}").read_text()

    def end(self):
        (self.folder / "id.stop").touch()
        for rank in range(2):
            self.assertEqual(self.ranks[rank].wait(DEADLINE), 0, self.err(rank))

    def read(self):
        """What both ranks say, where a plan is in force and its iterations have been measured."""
        files = sorted(self.metrics.glob("deft-*-[01].prom"))
        texts = [file.read_text() for file in files]
        if len(files) != 2 or not all(texts):  # the stale one is empty
            return None
        ready = all(total(each, "deft_plan_in_force") == 1 and total(each, name) > 0
                    for each in map(parse, texts)
                    for name in ("deft_iteration_seconds", "deft_coverage_ratio"))
        return texts if ready else None

    def test_a_running_job(self):
        stale, other = self.metrics / "deft-a-1-0.prom", self.metrics / "other.prom"
        for file in (stale, other):
            file.touch()
            os.utime(file, (1, 1))
        self.start()
        first = self.wait_for(self.read)
        sums = parse(first[0])
        later = self.wait_for(lambda: (now := self.read()) and total(
            parse(now[0]), "deft_plan_iterations_total") > total(
                sums, "deft_plan_iterations_total") and now)
        self.assertFalse(stale.exists())
        for rank, texts in enumerate(zip(first, later)):
            before, after = map(parse, texts)
            for key, value in before.items():
                if key[0].endswith(("_total", "_bucket", "_count")):
                    self.assertGreaterEqual(after[key], value, key)
            labels = dict(next(at for name, at in after if name == "deft_info"))
            self.assertEqual((labels["rank"], labels["mode"], labels["ranks"]),
                             (str(rank), "deft", "2"))
            self.assertEqual(labels["job_id"], '7\\"\\\\?7')
            self.assertGreater(total(after, "deft_link_sent_bytes_total"), 0)
            self.assertEqual(total(after, "deft_link_up"), 1)
            self.assertGreater(total(after, "deft_link_paths"), 0)
            self.assertGreater(total(after, "deft_iteration_seconds"), 0)
            self.assertGreater(total(after, "deft_calls_total"), 0)
        self.check_top()
        if promtool := shutil.which("promtool"):
            subprocess.run([promtool, "check", "metrics"], input=later[0], text=True, check=True)
        self.check_openmetrics(later[0])
        for file in self.metrics.glob("deft-*"):
            self.assertEqual(file.stat().st_mode & 0o777, 0o644)
        self.check_names({line.split(" ")[2] for line in later[0].splitlines()
                          if line.startswith("# TYPE ")})
        self.end()
        self.assertEqual(list(self.metrics.iterdir()), [other])
        self.assertEqual(list(self.folder.glob("deft/*")), [], "sockets")
        self.assertNotIn("WARN", self.err(0) + self.err(1))

    def check_openmetrics(self, text):
        """As node_exporter hands it on to who asks for OpenMetrics, whose rules are stricter."""
        if not importlib.util.find_spec("prometheus_client"):
            return
        from prometheus_client import parser
        from prometheus_client.openmetrics import exposition
        from prometheus_client.openmetrics import parser as strict

        class Registry:
            def collect(self):
                return parser.text_string_to_metric_families(text)

        handed_on = exposition.generate_latest(Registry()).decode()
        families = list(strict.text_string_to_metric_families(handed_on))
        self.assertEqual(len(families), text.count("# TYPE "))

    def check_top(self):
        """Both ranks, their plan, and what their link carries."""
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}
        top = subprocess.run([DEFT, "top", "--once"], env=environment, capture_output=True,
                             text=True, timeout=DEADLINE)
        self.assertEqual((top.returncode, top.stderr), (0, ""))
        # root sees other jobs of this host, too
        job = top.stdout.partition('job 7"')[2].partition("\n\n")[0]
        self.assertIn("2 of 2 ranks here, mode deft: ", job)
        for rank in range(2):
            self.assertRegex(job, rf"\n +{rank} +{self.ranks[rank].pid} +\d+ .* generations\b")
        self.assertRegex(job, r"\n +lo +tcp +[\d.]+ +[\d.]+ +[\d.]+ +\d+")

    def check_names(self, families):
        """Page, rules and dashboard speak of what there is, and the page of all."""
        source = pathlib.Path(SOURCE)
        families = families | {"deft_guard_loss", "deft_guard_loss_expected"}  # PyTorch's alone
        documented = set(re.findall(r"^\| `(deft_\w+)`", (source / "docs/metrics.md").read_text(),
                                    re.M))
        self.assertEqual(documented, families)
        dashboard = json.loads((source / "packaging/prometheus/deft-dashboard.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"]
                       for target in panel["targets"]]
        rules = source / "packaging/prometheus/deft.rules.yml"
        alerts = re.sub(r"summary: .*|/deft-", "", rules.read_text())

        def named(text):
            return {re.sub("_(bucket|sum|count)$", "", name)
                    for name in re.findall(r"\bdeft_\w+", text)}

        shown = named(" ".join(expressions))
        self.assertEqual(shown - families, set())
        self.assertEqual(named(alerts) - shown, set(), "whoever is called sees why")
        if promtool := shutil.which("promtool"):
            panels = self.folder / "dashboard.yml"  # JSON is YAML
            panels.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": [
                {"record": f"panel:{index}", "expr": re.sub(r"\$__\w+", "5m", expression)}
                for index, expression in enumerate(expressions)]}]}))
            subprocess.run([promtool, "check", "rules", str(rules), str(panels)], check=True)

    def test_a_folder_that_is_not_there_or_full_harms_no_job(self):
        full = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
        prefix = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k deft "$0" && '
                  'head -c 4096 /dev/zero > "$0/filled" && exec "$@"', str(self.metrics)]
        gone = {} if full else {"DEFT_METRICS": str(self.folder / "nowhere")}
        self.start(prefix if full else (), DEFT_TOP="0", **gone)
        self.wait_for(lambda: all("cannot write the metrics" in self.err(rank) for rank in (0, 1)))
        self.assertEqual(list(self.folder.glob("deft/*")), [], "sockets, which DEFT_TOP=0 forbids")
        self.end()
        for rank in (0, 1):
            self.assertEqual(self.err(rank).count("WARN"), 1, self.err(rank))
            self.assertIn("No space left" if full else "No such file", self.err(rank))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
