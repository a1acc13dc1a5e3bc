#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deft run: what the command it starts sees, and what happens when something is wrong.

usage: run_test.py DEFT LIBRARY PROBE [STATIC_PROBE]   (probes: tests/system/preload/guest_probe.c)
"""
import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

DEFT, LIBRARY, PROBE = map(os.path.abspath, sys.argv[1:4])
STATIC_PROBE = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else None
# Of deft.py, for jobs that import it: beside the command in the build tree.
MODULE = {"PYTHONPATH": os.path.join(os.path.dirname(DEFT), "python")}


def preload():
    """What deft run has put into LD_PRELOAD. The loader splits that at blanks: where the build
    folder's path has one, a link stands for the library."""
    if " " not in LIBRARY:
        return LIBRARY
    links = glob.glob(f"/tmp/deft-{os.getuid()}/*/{os.path.basename(LIBRARY)}")
    return next(link for link in links if os.readlink(link) == LIBRARY)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="deft run ")
        self.addCleanup(shutil.rmtree, self.folder)

    def deft(self, *arguments, env=None, **options):
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **(env or {})}
        return subprocess.run([DEFT, *arguments], env=environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              **options)

    def seen(self, *arguments, env=None, err=""):
        """The environment the command gets; standard error must be as said."""
        result = self.deft("run", *arguments, "--", "/usr/bin/env", "-0", env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        (self.assertIn if err else self.assertEqual)(err, result.stderr)
        return dict(line.split("=", 1) for line in result.stdout.split("\0") if line)

    def check_refused(self, code, *mentions, arguments, env=None):
        """One line, the code, and nothing started."""
        witness = os.path.join(self.folder, "started")
        result = self.deft(*arguments, "--", "touch", witness, env=env)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("deft: "), result.stderr)
        for mention in mentions:
            self.assertIn(mention, result.stderr)
        self.assertFalse(os.path.exists(witness))

    # What the command sees.

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
        for mode in ("off", "observe", "exact", "deft", "covap"):
            with self.subTest(mode=mode):
                result = self.deft("run", "--mode", mode, "--", "/usr/bin/python3", "-c", script)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual("python/observer:" in result.stdout, mode in ("deft", "covap"),
                                 "watched only where gradients may come late")
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
        self.assertEqual(result.returncode, 0)
        again = subprocess.run(["/bin/sh", "-c", result.stdout], capture_output=True, text=True,
                               timeout=60, env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        self.assertEqual((again.stdout, again.stderr), ("a b.json $x\n", ""))

    # What is wrong, and what is said about it.

    def test_command_line(self):
        self.check_refused(2, "--mode 'warp'", "off|observe", arguments=["run", "--mode", "warp"])
        self.check_refused(2, "--moed", "did you mean --mode", arguments=["run", "--moed", "off"])
        self.check_refused(2, "--out", arguments=["run", "--out"])
        self.check_refused(2, "'rnu'", "did you mean run", arguments=["rnu"])
        self.check_refused(2, "no command", arguments=[])
        result = self.deft("run")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))
        self.assertIn("usage: deft run", result.stderr)

    def test_configuration(self):
        self.check_refused(125, "DEFT_MODE='warp'", "environment", "nothing was started",
                           arguments=["run"], env={"DEFT_MODE": "warp"})
        self.check_refused(125, "DEFT_CONF='/no/file'", "No such file", arguments=["run"],
                           env={"DEFT_CONF": "/no/file"})
        conf = os.path.join(self.folder, "conf")
        pathlib.Path(conf).write_text("# mine\nDEFT_LINK_TIMEOUT=soon\n")
        self.check_refused(125, f"{conf}:2", "'soon'", "100ms..1h", arguments=["run"],
                           env={"DEFT_CONF": conf})
        self.check_refused(125, "DEFT_PREDICT='lead:x'", "lead:0..10", arguments=["run"],
                           env={"DEFT_PREDICT": "lead:x"})
        self.check_refused(125, "DEFT_OPTIMIZER='sgdd'", "adamw", arguments=["run"],
                           env={"DEFT_OPTIMIZER": "sgdd"})
        self.check_refused(125, "DEFT_LANES='IB,ib'", "twice", arguments=["run"],
                           env={"DEFT_LANES": "IB,ib"})
        self.check_refused(125, "DEFT_NCCL_LIB='/no/lib'", "No such file", arguments=["run"],
                           env={"DEFT_NCCL_LIB": "/no/lib"})
        self.seen(env={"DEFT_PREDICT": "damp:0.5", "DEFT_OPTIMIZER": "SGD:momentum=0.9,lr=0.1"})
        self.check_refused(125, "DEFT_REQUIRE='x'", "1 more", arguments=["run"],
                           env={"DEFT_REQUIRE": "x", "DEFT_LOG": "x"})

    def test_unknown_variable_is_a_warning(self):
        self.seen(env={"DEFT_MOED": "off"}, err="did you mean DEFT_MODE?")

    def test_package_variables_are_not_ours(self):
        self.seen(env={"DEFT_HOME": "/opt/deft", "DEFT_ROOT": "/opt/deft", "DEFT_DIR": "/opt/deft"})

    def test_kill_switch(self):
        for word in ("off", "OFF", "0", "no", "No", "Disabled"):
            seen = self.seen(env={"DEFT_MODE": word})
            self.assertNotIn("NCCL_NET_PLUGIN", seen, word)
        for word in ("1", "0", "yes", " "):
            seen = self.seen(env={"DEFT_DISABLE": word, "DEFT_MODE": "warp", "DEFT_REQUIRE": "x",
                                  "DEFT_LOGG": "x"})
            self.assertNotIn("NCCL_NET_PLUGIN", seen, word)
        self.assertIn("NCCL_NET_PLUGIN", self.seen(env={"DEFT_DISABLE": ""}))

    def central(self, text, *arguments, env=None, mode=0o644):
        """deft run ... env where /etc/deft/deft.conf holds this text: in a mount namespace whose
        /etc is a copy."""
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            self.skipTest("no mount namespace can be made here")
        etc = pathlib.Path(self.folder, "etc")
        (etc / "deft").mkdir(parents=True, exist_ok=True)
        for name in ("ld.so.cache", "passwd", "nsswitch.conf", "hosts"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", etc / name)
        conf = etc / "deft/deft.conf"
        conf.write_text(text) if text is not None else conf.mkdir(exist_ok=True)
        conf.chmod(mode)
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **(env or {})}
        return subprocess.run(["unshare", "--mount", "sh", "-c",
                               'mount --bind "$0" /etc && exec "$@"', str(etc), DEFT, "run",
                               *arguments, "--", "/usr/bin/env", "-0"], env=environment,
                              cwd=self.folder, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)

    def test_a_good_central_file_holds(self):
        result = self.central("# the fleet's\nDEFT_MODE=off\n")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("NCCL_NET_PLUGIN", result.stdout)

    def test_a_central_mistake_stops_no_job(self):
        for text in ("DEFT_MODE=of\n", "DEFT_MOED=off\n", "DEFT_MODE=observe # for a week\n",
                     "[deft]\nDEFT_MODE=observe\n", "DEFT_REQUIRE=1\nDEFT_LINK_TIMEOUT=soon\n",
                     "DEFT_INTERFACES=nosuch0\n", "DEFT_OPTIMIZER=sgdd\n",
                     "DEFT_LOG_FILE=/no/such/folder/x\n", None,
                     # No line of it holds, DEFT_REQUIRE least of all.
                     *(f"DEFT_REQUIRE=1\n{line}\n"
                       for line in ("DEFT_OPTIMIZER=sgdd", "DEFT_INTERFACES=nosuch0",
                                    "DEFT_LANES=IB,ib",
                                   "DEFT_PREDICT=x", "DEFT_LOG_FILE=/no/such/folder/x",
                                    "DEFT_OUT=/no/such/x",
                                   "DEFT_NCCL_LIB=/no/lib")),
                     "DEFT_OUT=/tmp/%h.json # x\n", "DEFT_DISABLE= # not now\n",
                     "DEFT_TCP_CONGESTION=bbr # x\n"):
            for env in ({}, {"DEFT_MODE": "deft"}):
                with self.subTest(text=text, env=env):
                    result = self.central(text, env=env)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                    self.assertIn("/etc/deft/deft.conf", result.stderr)
                    self.assertIn("without deft", result.stderr)
                    self.assertNotIn("LD_PRELOAD", result.stdout)
                    self.assertNotIn("NCCL_NET_PLUGIN", result.stdout)
            shutil.rmtree(os.path.join(self.folder, "etc"))

    def test_a_central_file_that_may_not_be_read_stops_no_job(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a file that somebody else may not read")
        os.chmod(self.folder, 0o755)
        result = self.central("DEFT_MODE=observe\n", env={"DEFT": DEFT}, mode=0o600)
        self.assertEqual(result.returncode, 0)
        result = subprocess.run(["unshare", "--mount", "sh", "-c",
                                 'mount --bind "$0" /etc && exec setpriv --reuid 65534 --regid '
                                 '65534 --clear-groups "$@"',
                                 os.path.join(self.folder, "etc"), DEFT, "run", "--",
                                 "/usr/bin/env"], capture_output=True, text=True,
                                timeout=120, cwd="/", env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
        if "Permission denied" in result.stderr and "deft.conf" not in result.stderr:
            self.skipTest("the build folder is not everybody's to read")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("/etc/deft/deft.conf", result.stderr)
        self.assertNotIn("LD_PRELOAD", result.stdout)

    def test_the_user_s_own_mistake_is_an_error_all_the_same(self):
        result = self.central("DEFT_MODE=of\n", env={"DEFT_LOG": "loud"})
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertIn("DEFT_LOG='loud'", result.stderr)
        result = self.central("DEFT_MODE=of\n", "--require")
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertIn("DEFT_MODE='of'", result.stderr)
        # The user wants deft, or nothing.
        result = self.central("DEFT_OPTIMIZER=sgdd\n", "--require")
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        result = self.central("DEFT_REQUIRE=1\n", env={"DEFT_OPTIMIZER": "sgdd"})
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        # What the user sets counts in the place of what is wrong.
        result = self.central("DEFT_OPTIMIZER=sgdd\nDEFT_REQUIRE=1\n",
                              env={"DEFT_OPTIMIZER": "sgd"})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("NCCL_NET_PLUGIN", result.stdout)

    def test_interfaces(self):
        self.check_refused(125, "DEFT_INTERFACES=nosuch0", "this host has", "lo",
                           arguments=["run", "--interfaces", "nosuch0"])
        # What the plugin would refuse, in its own words.
        for wrong in ("lo,nosuch0", "=l", "=lo,=lo", "lo:5000", "127.0.0.1@1gb", "192.0.2.1"):
            self.check_refused(125, f"DEFT_INTERFACES={wrong}",
                               arguments=["run", "--interfaces", wrong])
        for right in ("^nosuch0", "lo, 127.0.0.2@1gbit", " lo"):
            self.seen("--interfaces", right)
        self.seen("--mode", "off", "--interfaces", "nosuch0")
        conf = pathlib.Path(self.folder, "conf")
        conf.write_text("DEFT_INTERFACES=nosuch0\n")
        self.check_refused(125, f"DEFT_INTERFACES ({conf}:1)=nosuch0", arguments=["run"],
                           env={"DEFT_CONF": str(conf)})
        result = self.deft("env", env={"DEFT_INTERFACES": "lo:5000"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("problem: DEFT_INTERFACES=lo:5000", result.stdout)

    def test_output_folder(self):
        self.check_refused(125, "DEFT_OUT='/no/such/x'", "/no/such", "make it first",
                           arguments=["run"], env={"DEFT_OUT": "/no/such/x"})
        self.check_refused(125, "is a folder", arguments=["run", "--out", self.folder])
        self.check_refused(125, "DEFT_LOG_FILE", "/no/such", arguments=["run"],
                           env={"DEFT_LOG_FILE": "/no/such/x"})

    def test_makes_the_folder_that_out_names(self):
        def made():
            return sorted(str(path.relative_to(self.folder))
                          for path in pathlib.Path(self.folder).rglob("*"))
        pathlib.Path(self.folder, "file").touch()
        # Neither for a look, nor where nothing is started or written.
        out = ["--out", "a/b/%r.json"]
        self.assertEqual(self.deft("run", "--dry-run", *out, "--", "true").returncode, 0)
        self.assertEqual(self.deft("run", *out, "--library", "/no/lib.so", "--", "true").returncode,
                         125)
        self.assertEqual(self.deft("run", "--mode", "off", *out, "--", "true").returncode, 0)
        self.assertEqual(made(), ["file"])
        for _ in range(2):
            result = self.deft("run", *out, "--", "test", "-d", "a/b")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        # Not in a file's place, and not one for each rank or process.
        self.check_refused(125, "file/b", "Not a directory",
                           arguments=["run", "--out", "file/b/%r.json"])
        self.check_refused(125, "/proc/x/y cannot be made",
                           arguments=["run", "--out", "/proc/x/y/%r.json"])
        for pattern in ("c/%r/x.json", "c-%p/x.json", "c/d/"):
            self.check_refused(125, "make it first", arguments=["run", "--out", pattern])
        self.assertEqual([path for path in made() if path.startswith("c")], [])

    def test_output_is_looked_at_where_it_is_written(self):
        # A folder has the name that the file has by default.
        os.mkdir(os.path.join(self.folder, f"deft-{socket.gethostname()}-0.json"))
        for mode in ("off", "exact", "deft", "covap"):
            self.seen("--mode", mode)
        self.seen(env={"DEFT_OUT": ""})
        self.check_refused(125, "is a folder", arguments=["run", "--mode", "observe"])

    def test_library(self):
        self.check_refused(125, "--library /no/lib.so", "No such file",
                           arguments=["run", "--library", "/no/lib.so"])
        self.check_refused(125, "not a shared library", arguments=["run", "--library", __file__])
        self.check_refused(125, "not a shared library", arguments=["run", "--library", "/bin/ls"])

    def observed(self, script, env=None):
        """What deft was told of the optimizers that a job makes with a small stand-in for
        torch.optim."""
        optim = pathlib.Path(self.folder, "python", "torch", "optim")
        optim.mkdir(parents=True, exist_ok=True)
        (optim.parent / "__init__.py").touch()
        (optim / "optimizer.py").write_text(
            "class Optimizer:\n    def __init__(self, params, defaults):\n"
            "        self.defaults = defaults\n"
            "        self.param_groups = [dict(defaults, **group) for group in params or [{}]]\n")
        for place in ("amp", "cuda/amp"):
            amp = optim.parent / place
            amp.mkdir(parents=True, exist_ok=True)
            (amp / "__init__.py").touch()
            (amp.parent / "__init__.py").touch()
            (amp / "grad_scaler.py").write_text("class GradScaler:\n"
                                                "    def __init__(self, enabled=True):\n"
                                                "        self._enabled = enabled\n"
                                                "    def is_enabled(self):\n"
                                                "        return self._enabled\n")
        utils = optim.parent / "nn" / "utils"
        utils.mkdir(parents=True, exist_ok=True)
        (utils.parent / "__init__.py").touch()
        (utils / "__init__.py").write_text("from .clip_grad import clip_grad_norm_, "
                                           "clip_grad_value_\n")
        (utils / "clip_grad.py").write_text("def clip_grad_norm_(parameters, max_norm):\n"
                                            "    return parameters * max_norm\n"
                                            "def clip_grad_value_(parameters, clip_value):\n"
                                            "    pass\n")
        (optim / "__init__.py").write_text(
            "from .optimizer import Optimizer\nclass SGD(Optimizer):\n"
            "    def __init__(self, params, lr, momentum=0, nesterov=False):\n"
            "        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))\n"
            "class AdamW(Optimizer):\n    def __init__(self, params, lr):\n"
            "        super().__init__(params, dict(lr=lr, betas=(0.8, 0.99)))\n")
        (optim.parents[1] / "sitecustomize.py").write_text("print('mine')\n")
        result = self.deft("run", "--mode", "deft", "--log", "info", "--", "/usr/bin/python3", "-c",
                           "import torch.optim as o\n" + script,
                           env={"PYTHONPATH": str(optim.parents[1]), **(env or {})})
        self.assertEqual((result.returncode, result.stdout), (0, "mine\n"), result.stderr)
        return [line.split("the job's optimizer: ")[-1].split("deft INFO ")[-1]
                for line in result.stderr.splitlines() if "the job" in line]

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_the_optimizer_of_a_pytorch_job_is_observed(self):
        self.assertEqual(self.observed("o.SGD([], 0.1, momentum=0.9)"), ["sgd:momentum=0.9,lr=0.1"])
        self.assertEqual(self.observed("o.SGD([], 0.1, momentum=0.9, nesterov=True)"),
                         ["sgd:momentum=0.9,nesterov=1,lr=0.1"])
        self.assertEqual(self.observed("assert o.AdamW([], 1e-3).defaults['lr'] == 1e-3"),
                         ["adamw:momentum=0.8,lr=0.001"])
        self.assertEqual(self.observed("o.SGD([], 0.1); o.AdamW([], 0.1)"),
                         ["sgd:momentum=0,lr=0.1", "unknown"])
        self.assertEqual(self.observed("class Mine(o.SGD): pass\nMine([], 0.1)"), ["unknown"])
        self.assertEqual(self.observed("o.AdamW([], 0.1); o.AdamW([], 0.2)"),
                         ["adamw:momentum=0.8,lr=0.1", "adamw:momentum=0.8"])
        self.assertEqual(self.observed("o.AdamW([{'lr': 1}, {}], 0.2)"), ["adamw:momentum=0.8"])
        self.assertEqual(self.observed("o.SGD([{'momentum': 0.9}], 0.1)"),
                         ["sgd:momentum=0.9,lr=0.1"])
        self.assertEqual(self.observed("o.SGD([{'momentum': 0}, {}], 0.1, momentum=0.9)"),
                         ["unknown"])
        self.assertEqual(self.observed("o.SGD([], 0.1)", {"DEFT_OBSERVE_OPTIMIZER": "0"}), [])
        self.assertEqual(self.observed("o.SGD([], 0.1)", {"DEFT_OPTIMIZER": "adam"}), [])

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_what_a_job_says_itself_wins(self):
        for script in ("deft.set_optimizer('adam'); o.SGD([], 0.1)",
                       "o.SGD([], 0.1); deft.set_optimizer('adam')"):
            self.assertEqual(self.observed("import deft\n" + script)[-1], "adam", script)

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_clipping_is_observed_when_it_is_done(self):
        clip = "import torch.nn.utils as u\n"
        said = self.observed(clip + "assert u.clip_grad_norm_(3, max_norm=5) == 15\n"
                                    "u.clip_grad_norm_(1, 1)")
        self.assertEqual(len(said), 1, said)
        self.assertTrue(said[0].endswith("the job clips its gradients"), said)
        self.assertTrue(self.observed(clip +
                                      "u.clip_grad_value_(1, 1)")[0].endswith(
                                          "the job clips its gradients"))
        self.assertEqual(self.observed(clip), [], "a function that is not called")
        self.assertEqual(self.observed(clip + "u.clip_grad_norm_(1, 1)",
                                       {"DEFT_OBSERVE_OPTIMIZER": "0"}), [])

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_a_gradient_scaler_is_observed(self):
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = f"import {module} as s\ns.GradScaler"
            self.assertTrue(self.observed(scaler +
                                          "()")[0].endswith("the job scales its gradients"))
            self.assertEqual(self.observed(scaler + "(enabled=False)"), [])
            self.assertEqual(self.observed(scaler + "()", {"DEFT_OBSERVE_OPTIMIZER": "0"}), [])
            self.assertEqual(len(self.observed(scaler + "()", {"DEFT_OPTIMIZER": "adam"})), 1)

    # Hosts where NCCL has a network of its own.

    def tree_with_rdma(self):
        """A sysfs tree with one active InfiniBand port."""
        port = pathlib.Path(self.folder, "sys/class/infiniband/mlx5_0/ports/1")
        (port / "gids").mkdir(parents=True)
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
                                "deft's TCP links carry the job in the place of NCCL's IB "
                                "(DEFT_RDMA=replace)"),
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
        for extra, mention in (({}, "NCCL's IB carries the job, deft's links serve lanes"),
                               ({"DEFT_RDMA": "replace"},
                                "deft's TCP links carry the job in the place of NCCL's IB")):
            result = self.deft("topo", env={**tree, "DEFT_INTERFACES": "lo", **extra})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("mlx5_0:1  InfiniBand  400G", result.stdout)
            self.assertIn(mention, result.stdout)

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

    def test_command_that_cannot_be_started(self):
        script = os.path.join(self.folder, "script")
        pathlib.Path(script).write_text("#!/no/interpreter\n")
        result = self.deft("run", "--", script)
        self.assertEqual(result.returncode, 126)
        self.assertIn("Permission denied", result.stderr)
        os.chmod(script, 0o755)
        result = self.deft("run", "--", script)
        self.assertEqual(result.returncode, 126)
        self.assertIn("interpreter /no/interpreter does not exist", result.stderr)
        result = self.deft("run", "--", "no-such-command")
        self.assertEqual((result.returncode, result.stderr),
                         (127, "deft: no-such-command: command not found\n"))
        self.assertEqual(self.deft("run", "--", self.folder).returncode, 126)

    def test_says_when_the_command_loses_the_environment(self):
        tools = os.path.join(self.folder, "tools")
        os.mkdir(tools)
        for name in ("ssh", "sudo"):
            program = os.path.join(tools, name)
            pathlib.Path(program).write_text("#!/bin/sh\nexit 3\n")
            os.chmod(program, 0o755)
        for command, mention in ((("ssh", "host1", "true"),
                                  "ssh hands no environment to other hosts"),
                                 ((os.path.join(tools, "sudo"), "true"),
                                  "sudo clears the environment"),
                                 (("sudo", "-E", "true"), "never LD_PRELOAD")):
            with self.subTest(command=command):
                env = {"PATH": f"{tools}:/usr/bin:/bin"}
                result = self.deft("run", "--", *command, env=env)
                self.assertEqual((result.returncode, result.stderr.count("\n")), (3, 1),
                                 result.stderr)
                self.assertTrue(result.stderr.startswith("deft: warning: "), result.stderr)
                self.assertIn(mention, result.stderr)
                self.assertIn("put deft behind it", result.stderr)
                off = self.deft("run", "--mode", "off", "--", *command, env=env)
                self.assertEqual((off.returncode, off.stderr), (3, ""))
                required = self.deft("run", "--require", "--", *command, env=env)
                self.assertEqual(required.returncode, 125)
                self.assertIn("nothing was started", required.stderr)
        result = self.deft("run", "--", "env", "-i", "/usr/bin/env")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (0, "", 1))
        self.assertIn("env -i clears the environment", result.stderr)

    def test_command_the_loader_does_not_preload_into(self):
        if STATIC_PROBE:
            result = self.deft("run", "--", STATIC_PROBE, "threads")
            self.assertEqual((result.returncode, result.stdout.count("\n")), (0, 8))
            self.assertIn("statically linked", result.stderr)
            self.check_one_line_refusal(STATIC_PROBE)
        if os.geteuid() == 0:
            program = shutil.copy(PROBE, self.folder)
            os.chown(program, 65534, 65534)
            os.chmod(program, 0o755 | stat.S_ISUID)
            self.assertIn("raised privileges", self.deft("run", "--", program, "threads").stderr)

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no python3")
    def test_preload_that_a_program_takes_for_its_own(self):
        other = shutil.copy(LIBRARY,
                            os.path.join(tempfile.mkdtemp(prefix="own-", dir="/tmp"),
                                         "memory_saver.so"))
        self.addCleanup(shutil.rmtree, os.path.dirname(other))
        script = ("import ctypes, os; ctypes.CDLL(os.environ['LD_PRELOAD']); "
                  "maps = open('/proc/self/maps').read(); print('libnccl-net-deft.so' in maps, "
                  f"{other!r} in maps)")
        for name in ("/usr/bin/python3", "python3"):
            result = self.deft("run", "--", name, "-c", script, env={"LD_PRELOAD": other})
            self.assertEqual((result.returncode, result.stdout, result.stderr),
                             (0, "True True\n", ""))
        # A launcher hands the variable to other hosts, where only the library's own path may be
        # one; several are nobody's own.
        launcher = os.path.join(self.folder, "srun")
        pathlib.Path(launcher).write_text('#!/bin/sh\nexec env\n')
        os.chmod(launcher, 0o755)
        own = os.path.basename(LIBRARY) if " " in LIBRARY else LIBRARY
        self.assertIn(f"LD_PRELOAD={own}:{other}\n",
                      self.deft("run", "--", launcher, env={"LD_PRELOAD": other}).stdout)
        self.assertEqual(self.seen(env={"LD_PRELOAD": f"{other} {other}"})["LD_PRELOAD"],
                         f"{preload()}:{other} {other}")

    def other_program(self, loader_content):
        """The probe as a program of another loader, whose file has this content; None: there is
        no such file."""
        # the path has to fit in the place of glibc's
        folder = tempfile.mkdtemp(prefix="ld-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        loader = os.path.join(folder, "ld")
        if loader_content is not None:
            pathlib.Path(loader).write_bytes(loader_content)
        content = pathlib.Path(PROBE).read_bytes()
        own = re.search(rb"/lib\S*/ld-linux[\w.-]*\0", content)[0]
        program = os.path.join(folder, "probe")
        pathlib.Path(program).write_bytes(content.replace(own,
                                                          loader.encode().ljust(len(own), b"\0"),
                                                          1))
        os.chmod(program, 0o755)
        return program, loader

    def test_program_of_another_c_library_is_refused(self):
        for content, name in ((b"\x7fELF... musl libc (x86_64)\n", "musl"),
                              (b"\x7fELF...", "another C library")):
            program, loader = self.other_program(content)
            script = os.path.join(os.path.dirname(program), "script")
            pathlib.Path(script).write_text(f"#!{program} threads\n")
            os.chmod(script, 0o755)
            for command in (program, script):
                for options in ((), ("--require",), ("--dry-run",)):
                    with self.subTest(name=name, command=command, options=options):
                        result = self.deft("run", *options, "--", command)
                        self.assertEqual((result.returncode, result.stdout), (125, ""),
                                         result.stderr)
                        self.assertEqual(result.stderr, f"deft: {program} is a program of {name} "
                                                        f"(its loader is {loader}), "
                                                        "and deft's library is one of glibc, "
                                                        "so the loader would end the program; "
                                                        "start it without deft; "
                                                        "nothing was started\n")
            # The guest goes into it, and in mode off nothing has to.
            guest = os.path.join(os.path.dirname(LIBRARY), "libdeft-preload.so")
            shown = self.deft("run", "--dry-run", "--library", guest, "--", program)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("libdeft-preload.so", shown.stdout)
            off = self.deft("run", "--mode", "off", "--dry-run", "--", program)
            self.assertEqual(off.returncode, 0)
            self.assertNotIn("LD_PRELOAD", off.stdout)
            self.assertIn("warning: ", off.stderr)

    def test_glibc_by_any_other_name_is_glibc(self):
        program, loader = self.other_program(None)
        os.symlink(self.glibc_loader(), loader)
        result = self.deft("run", "--", program, "threads")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_missing_loader_is_named(self):
        program, loader = self.other_program(None)
        result = self.deft("run", "--", program)
        self.assertEqual((result.returncode, result.stderr),
                         (126,
                          f"deft: cannot execute {program}: its loader {loader} does not exist\n"))

    @staticmethod
    def glibc_loader():
        return re.search(rb"/lib\S*/ld-linux[\w.-]*(?=\0)",
                         pathlib.Path(PROBE).read_bytes())[0].decode()

    @unittest.skipUnless(shutil.which("musl-gcc"), "no musl-gcc (package musl-tools)")
    def test_program_of_musl(self):
        program = os.path.join(self.folder, "hello")
        pathlib.Path(self.folder,
                     "hello.c").write_text('#include <stdio.h>\n'
                                           'int main(void) { return puts("hello") < 0; }\n')
        subprocess.run(["musl-gcc", "-o", program, program + ".c"], check=True, timeout=60)
        result = self.deft("run", "--", program)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")),
                         (125, "", 1))
        self.assertIn("is a program of musl", result.stderr)
        guest = os.path.join(os.path.dirname(LIBRARY), "libdeft-preload.so")
        result = self.deft("run", "--library", guest, "--", program)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "hello\n", ""))

    def check_one_line_refusal(self, program):
        result = self.deft("run", "--require", "--", program, "threads")
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertIn("required", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
