#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deft run: what the command it starts sees, and what happens when something is wrong.

usage: run_test.py DEFT LIBRARY PROBE [STATIC_PROBE]   (probes: tests/system/preload/guest_probe.c)
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

import run_observed
import run_programs
import run_settings
from run_support import DEFT, LIBRARY, MODULE, PROBE, RunTest, preload


class Seen(RunTest):
    def test_names_library_and_plugin_and_nothing_else(self):
        plain = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        self.assertEqual(self.seen(),
                         {**plain, **MODULE, "LD_PRELOAD": preload(),
                          "NCCL_NET_PLUGIN": "deft"})

    def test_options_become_variables(self):
        seen = self.seen("--mode", "off", "--require", "--out", "x-%r.json", "--interfaces=lo",
                         "--log", "info", env={"DEFT_MODE": "observe"})
        self.assertEqual({k: v for k, v in seen.items() if k.startswith("DEFT_")},
                         {"DEFT_MODE": "off", "DEFT_REQUIRE": "1", "DEFT_OUT": "x-%r.json",
                          "DEFT_INTERFACES": "lo", "DEFT_LOG": "info"})
        self.assertNotIn("NCCL_NET_PLUGIN", seen, "mode off leaves the network to NCCL")

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_a_job_imports_the_module_in_every_mode(self):
        script = "import deft, os; print(deft.available(), os.environ['PYTHONPATH'])"
        for mode, layers in (("off", "auto"), ("observe", "auto"), ("exact", "off"),
                             ("exact", "auto"), ("deft", "off"), ("covap", "off")):
            with self.subTest(mode=mode, layers=layers):
                result = self.deft("run", "--mode", mode, "--", "/usr/bin/python3", "-c", script,
                                   env={"DEFT_LAYERWISE": layers})
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual("/companion:" in result.stdout,
                                 (mode, layers) in (("exact", "auto"), ("deft", "off"),
                                                    ("covap", "off")),
                                 "watched only where gradients or layers may come late")
        # What the job has put on the path itself comes first.
        pathlib.Path(self.folder, "deft.py").write_text("mine = True\n")
        result = self.deft("run", "--mode", "off", "--", "/usr/bin/python3", "-c",
                           "import sys; sys.path.remove(''); import deft; print(deft.mine)",
                           env={"PYTHONPATH": self.folder})
        self.assertEqual(result.stdout, "True\n", result.stderr)

    def test_keeps_other_preloads(self):
        other = os.path.join(self.folder, "libother.so").replace(" ", "_")
        seen = self.deft("run", "--dry-run", "--", "true", env={"LD_PRELOAD": other}).stdout
        self.assertRegex(seen, rf"LD_PRELOAD=\S*libnccl-net-deft\.so:{re.escape(other)} ")

    def test_respects_a_plugin_the_user_named(self):
        seen = self.seen(env={"NCCL_NET_PLUGIN": "aws-ofi"}, err="NCCL_NET_PLUGIN='aws-ofi'")
        self.assertEqual(seen["NCCL_NET_PLUGIN"], "aws-ofi")
        self.assertEqual(self.seen(env={"NCCL_NET_PLUGIN": "other,deft"})["NCCL_NET_PLUGIN"],
                         "other,deft")
        self.seen(env={"NCCL_NET": "Socket"}, err="NCCL_NET='Socket'")
        self.check_refused(125, "NCCL_NET_PLUGIN='none'", "required",
                           arguments=["run", "--require"], env={"NCCL_NET_PLUGIN": "none"})

    def test_the_library_is_really_preloaded_from_any_path(self):
        for name in ("plain", "with blank", "with:colon", "with $LIB", "a b:c;d"):
            with self.subTest(folder=name):
                folder = pathlib.Path(self.folder) / name
                folder.mkdir()
                library = shutil.copy(LIBRARY, folder)
                result = self.deft("run", "--library", library, "--", "cat", "/proc/self/maps")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn(str(folder), result.stdout)
                # As conda and module files do.
                script = "LD_LIBRARY_PATH=/opt/conda/lib cat /proc/self/maps"
                result = self.deft("run", "--library", library, "--", "sh", "-c", script)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn(str(folder), result.stdout)

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no python3")
    def test_the_guest_opens_the_library_from_any_path(self):
        for name in ("plain", "with blank", "with:colon"):
            with self.subTest(folder=name):
                folder = pathlib.Path(self.folder) / name
                folder.mkdir()
                shutil.copy(LIBRARY, folder)
                guest = shutil.copy(os.path.join(os.path.dirname(LIBRARY), "libdeft-preload.so"),
                                    folder)
                script = "import deft; deft.version(); print(open('/proc/self/maps').read())"
                result = self.deft("run", "--library", guest, "--", "/usr/bin/python3", "-B", "-c",
                                   script)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn(f"{folder}/libnccl-net-deft.so", result.stdout)

    def test_is_the_command_itself(self):
        """Same process id, exit code, signals, streams, arguments."""
        process = subprocess.Popen([DEFT, "run", "--", "/bin/sh", "-c", "echo $$ \"$@\"; exit 41",
                                    "sh", "--mode", "x y", "--"],
                                   env={"PATH": "/usr/bin:/bin"}, cwd=self.folder,
                                   stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=60)
        self.assertEqual((out, process.returncode), (f"{process.pid} --mode x y --\n", 41))
        self.assertEqual(self.deft("run", "--", "/bin/sh", "-c", "kill -9 $$").returncode,
                         -signal.SIGKILL)
        result = self.deft("run", "--", PROBE, "state")
        self.assertEqual(result.returncode, 0)
        plain = subprocess.run([PROBE, "state"],
                               env={"PATH": "/usr/bin:/bin", "LC_ALL": "C",
                                    "NCCL_NET_PLUGIN": "deft", **MODULE},
                               cwd=self.folder, capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=60)
        self.assertEqual(result.stdout, plain.stdout, "descriptors, signals, environment")

    def test_the_dashes_may_be_left_out(self):
        self.assertEqual(self.deft("run", "--mode", "off", "echo", "--log", "x").stdout,
                         "--log x\n")

    def test_dry_run_is_a_line_for_the_shell(self):
        result = self.deft("run", "--dry-run", "--out", "a b.json", "--", "sh", "-c",
                           "echo $DEFT_OUT '$x'")
        self.assertIn(result.returncode, (0, 1, 3))  # as of doctor
        again = subprocess.run(["/bin/sh", "-c", result.stdout], capture_output=True, text=True,
                               timeout=60, env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        self.assertEqual((again.stdout, again.stderr), ("a b.json $x\n", ""))

    def test_dry_run_says_everything_and_starts_nothing(self):
        conf = pathlib.Path(self.folder, "conf")
        conf.write_text("DEFT_LINK_TIMEOUT=7s\n")
        witness = os.path.join(self.folder, "started")
        env = {"DEFT_INTERFACES": "lo", "DEFT_CONF": str(conf)}
        result = self.deft("run", "--dry-run", "--log", "info", "--", "touch", witness, env=env)
        self.assertFalse(os.path.exists(witness))
        *comments, command = result.stdout.splitlines()
        self.assertTrue(command.startswith("env ") and command.endswith(f"touch '{witness}'"))
        self.assertTrue(all(line.startswith("# ") for line in comments))
        version = self.deft("--version").stdout.split()[1]
        for name, text in (("library", f"{LIBRARY} {version}, preloaded"),
                           ("mode", "exact (default)"), ("setting", "DEFT_LOG=info (environment)"),
                           ("setting", f"DEFT_LINK_TIMEOUT=7s ({conf}:1)"),
                           ("sources", f"the environment, {conf}, /etc/deft/deft.conf"),
                           ("NCCL", ""), ("network", "deft's plugin over the links below"),
                           ("link", "lo, rate not known, MTU "), ("sets", "LD_PRELOAD="),
                           ("sets", "NCCL_NET_PLUGIN=deft"), ("starts", "/usr/bin/touch")):
            with self.subTest(name=name, text=text):
                self.assertTrue([line for line in comments
                                 if line.startswith(f"# {name:<9} {text}")], result.stdout)
        # Its status is the doctor's.
        for more in ({}, {"NCCL_NET_PLUGIN": "aws-ofi"}):
            dry = self.deft("run", "--dry-run", "--", "true", env={**env, **more})
            judged = self.deft("doctor", "--", DEFT, "run", "--", "true", env={**env, **more})
            self.assertEqual(dry.returncode, judged.returncode, dry.stdout + judged.stdout)
        self.assertEqual(dry.returncode, 3)
        self.assertIn("# error     plugin-other: NCCL_NET_PLUGIN='aws-ofi'", dry.stdout)
        self.assertIn("# network   as NCCL_NET_PLUGIN=aws-ofi says", dry.stdout)


class Ucx(RunTest):
    """Links over UCX, which is only fit for a guest in an environment of its own."""

    PREPARED = {"UCX_MEM_MMAP_HOOK_MODE": "none", "UCX_HANDLE_ERRORS": "none",
                "UCX_DEBUG_SIGNO": "0"}

    def ucx_of(self, seen):
        return {name: value for name, value in seen.items() if name.startswith("UCX_")}

    def test_its_environment_is_made_where_ucx_is_asked_for(self):
        self.assertEqual(self.ucx_of(self.seen(env={"DEFT_UCX": "on"})), self.PREPARED)
        self.assertEqual(self.ucx_of(self.seen()), {})
        self.assertEqual(self.ucx_of(self.seen("--mode", "off", env={"DEFT_UCX": "on"})), {})

    def test_what_the_user_has_set_is_kept(self):
        other = {"UCX_HANDLE_ERRORS": "bt"}
        seen = self.seen(env={"DEFT_UCX": "on", **other}, err="UCX_HANDLE_ERRORS='bt'")
        self.assertEqual(seen["UCX_HANDLE_ERRORS"], "bt")
        self.check_refused(125, "UCX_HANDLE_ERRORS='bt'", "required",
                           arguments=["run", "--require"], env={"DEFT_UCX": "on", **other})


class Networks(RunTest):
    """Hosts where NCCL has a network of its own."""

    def tree_with_rdma(self):
        """A sysfs tree with one active InfiniBand port."""
        port = pathlib.Path(self.folder, "sys/class/infiniband/mlx5_0/ports/1")
        (port / "gids").mkdir(parents=True, exist_ok=True)
        for name, text in {"state": "4: ACTIVE", "link_layer": "InfiniBand",
                           "rate": "400 Gb/sec (4X NDR)",
                           "gids/0": "fe80:0000:0000:0000:506b:4b03:00aa:0001"}.items():
            (port / name).write_text(text + "\n")
        return {"DEFT_SYSFS": os.path.join(self.folder, "sys")}

    def test_says_who_carries_a_job_on_a_host_with_rdma(self):
        tree = self.tree_with_rdma()
        for extra, mention in (({}, "RDMA is active (mlx5_0:1): NCCL's IB carries the job, "
                                    "deft's links serve lanes (DEFT_RDMA=aside)"),
                               ({"DEFT_RDMA": "replace"},
                                "deft's RDMA and TCP links carry the job in the place of NCCL's "
                                "IB (DEFT_RDMA=replace)"),
                               ({"DEFT_MODE": "observe"},
                                "deft's links are not used in mode observe"),
                               ({"NCCL_NET": "deft"},
                                "deft's TCP links carry the job in the place of NCCL's "
                                "IB (NCCL_NET=deft)")):
            with self.subTest(extra=extra):
                result = self.deft("run", "--", "true", env={**tree, **extra})
                self.assertEqual((result.returncode, result.stderr.count("\n")), (0, 1),
                                 result.stderr)
                self.assertIn(mention, result.stderr)
        for extra in ({"NCCL_IB_DISABLE": "1"}, {"DEFT_MODE": "off"}, {"NCCL_IB_HCA": "^mlx5_0"}):
            self.assertEqual(self.deft("run", "--", "true", env={**tree, **extra}).stderr, "")

    def test_topo_says_who_carries_a_job(self):
        tree = self.tree_with_rdma()
        for extra, driver, mention in (
                ({}, "NCCL", "NCCL's IB carries the job, deft's links serve lanes"),
                ({"DEFT_RDMA": "replace"}, "deft",
                 "deft's RDMA and TCP links carry the job in the place of NCCL's IB"),
                ({"NCCL_NET": "deft"}, "nobody",
                 "deft's TCP links carry the job in the place of NCCL's IB")):
            result = self.deft("topo", env={**tree, "DEFT_INTERFACES": "lo", **extra})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, r"mlx5_0:1 +ib +400G +up .*\b" + driver)
            self.assertIn(mention, result.stdout)

    def test_dry_run_says_what_takes_the_place_of_ib(self):
        for extra, mention in (({"DEFT_RDMA": "replace"}, "the RDMA ports mlx5_0:1 and the links"),
                               ({"NCCL_NET": "deft"}, "deft's plugin over the links")):
            shown = self.deft("run", "--dry-run", "--", "true",
                              env={**self.tree_with_rdma(), **extra}).stdout
            self.assertRegex(shown, f"# network .*{mention} below, in the place of NCCL's IB")

    def test_leaves_a_vendors_plugin_in_its_place(self):
        vendor = os.path.join(self.folder, "vendor")
        os.mkdir(vendor)
        # any shared object of this machine
        shutil.copy(LIBRARY, os.path.join(vendor, "libnccl-net.so"))
        search = {"LD_LIBRARY_PATH": vendor, **self.tree_with_rdma()}
        seen = self.seen(env=search, err=f"{vendor}/libnccl-net.so is the network plugin that NCCL "
                                         "loads here and is kept")
        self.assertNotIn("NCCL_NET_PLUGIN", seen)
        self.assertIn(os.path.basename(LIBRARY), seen["LD_PRELOAD"],
                      "the hooks are at work all the same")
        self.assertEqual(self.seen("--plugin", env=search, err="RDMA is active")["NCCL_NET_PLUGIN"],
                         "deft")
        self.assertEqual(self.seen(env={**search, "NCCL_NET_PLUGIN": "deft"},
                                   err="RDMA is active")["NCCL_NET_PLUGIN"], "deft")
        self.check_refused(125, "--plugin", "required", arguments=["run", "--require"], env=search)


def load_tests(loader, tests, _):
    for module in (run_settings, run_observed, run_programs):
        tests.addTests(loader.loadTestsFromModule(module))
    return tests


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
