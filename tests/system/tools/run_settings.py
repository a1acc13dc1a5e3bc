# SPDX-License-Identifier: Apache-2.0
"""What deft run says of options, settings and files that are wrong."""
import os
import pathlib
import re
import shutil
import socket
import subprocess

from run_support import DEFT, RunTest


class Settings(RunTest):
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
        """deft run ... env where /etc/deft/deft.conf holds this text."""
        return self.where_central(text, DEFT, "run", *arguments, "--", "/usr/bin/env", "-0",
                                  env=env, mode=mode)

    def where_central(self, text, *command, env=None, mode=0o644):
        """In a mount namespace whose /etc is a copy, with this text in /etc/deft/deft.conf."""
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
                               'mount --bind "$0" /etc && exec "$@"', str(etc), *command],
                              env=environment,
                              cwd=self.folder, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)

    def test_a_good_central_file_holds(self):
        result = self.central("# the fleet's\nDEFT_MODE=off\n")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("NCCL_NET_PLUGIN", result.stdout)

    def test_the_fleet_s_page_does_what_it_says(self):
        page = (pathlib.Path(__file__).parents[3] / "docs/fleets.md").read_text()
        user = str(os.getuid())
        partition = re.search(r"^(?: +ceiling=exact .*\n)(?: +\S.*\n)+", page, re.M)[0]
        job = re.search(r"(?: +\[user=1234 .*\n)(?: +\S.*\n)+", page)[0].replace("1234", user)
        steps = page.partition("## Once through")[2].partition("\n## ")[0]
        folder = pathlib.Path(self.folder, "bin")
        folder.mkdir()
        (folder / "deft").symlink_to(DEFT)
        for name in ("train.py", "other.py"):
            pathlib.Path(self.folder, name).touch()
        texts = {"3": partition + job, "4": "force.DEFT_MODE=off\n"}
        self.assertIn("$ echo " + texts["4"].rstrip(), steps)
        tried = 0
        for number, step in re.findall(r"^(\d)\. ((?:.*\n)+?)(?=^\d\. |\Z)", steps, re.M):
            # Each command that prints something, with what it prints.
            for command, answer in re.findall(r"^ +\$ (.*\bgrep .*)\n +(\S.*)$", step, re.M):
                with self.subTest(step=number, command=command):
                    result = self.where_central(texts.get(number, partition), "sh", "-c", command,
                                                env={"PATH": f"{folder}:/usr/bin:/bin"})
                    self.assertEqual(result.stdout.splitlines(), [answer.replace("1234", user)],
                                     result.stderr)
                    tried += 1
        self.assertEqual(tried, 6)

    def test_a_central_line_that_is_wrong_is_ignored(self):
        for text in ("DEFT_MOED=off\n", "DEFT_REQUIRE=1\nDEFT_LINK_TIMEOUT=soon\n",
                     "[deft]\nDEFT_MODE=off\n", "DEFT_INTERFACES=nosuch0\n",
                     "DEFT_LOG_FILE=/no/such/folder/x\n", "celing=off # \n",
                     *(f"DEFT_REQUIRE=1\n{line}\n"
                       for line in ("DEFT_OPTIMIZER=sgdd", "force.DEFT_LANES=IB,ib",
                                    "DEFT_OUT=/no/such/x", "DEFT_NCCL_LIB=/no/lib"))):
            with self.subTest(text=text):
                result = self.central(text)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                self.assertIn("/etc/deft/deft.conf", result.stderr)
                self.assertIn("NCCL_NET_PLUGIN", result.stdout)

    def test_a_central_file_forces_and_caps(self):
        result = self.central("force.DEFT_MODE=off # for now\n", env={"DEFT_MODE": "deft"})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("warning: DEFT_MODE=deft (environment) gives way to 'off'", result.stderr)
        self.assertNotIn("NCCL_NET_PLUGIN", result.stdout)
        # Of the command, not of deft itself.
        for pattern, off in (("env", True), ("deft", False)):
            result = self.central(f"[executable={pattern}]\nforce.DEFT_MODE=off\n")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual("NCCL_NET_PLUGIN" not in result.stdout, off)

    def test_a_central_mode_that_is_wrong_stops_no_job(self):
        for text in ("DEFT_MODE=of\n", "force.DEFT_MODE=of\n",
                     "DEFT_REQUIRE=1\nceiling=exakt\n", None):
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

    def test_a_folder_of_metrics_that_is_none(self):
        for wrong, why in (("/dev/null", "Not a directory"), ("/no/such", "No such file"),
                           ("~/metrics", "write it out")):
            result = self.deft("run", "--", "true", env={"DEFT_METRICS": wrong})
            self.assertEqual(result.returncode, 0)
            self.assertIn(f"warning: DEFT_METRICS='{wrong}' (environment)", result.stderr)
            self.assertIn(why, result.stderr)
        self.assertNotIn("DEFT_METRICS", self.deft(
            "run", "--", "true", env={"DEFT_METRICS": self.folder}).stderr)

    def test_makes_the_folder_that_out_names(self):
        def made():
            return sorted(str(path.relative_to(self.folder))
                          for path in pathlib.Path(self.folder).rglob("*"))
        pathlib.Path(self.folder, "file").touch()
        # Neither for a look, nor where nothing is started or written.
        out = ["--out", "a/b/%r.json"]
        # A look ends as the doctor's: this host may have something wrong.
        self.assertEqual(self.deft("run", "--dry-run", *out, "--", "true").returncode,
                         self.deft("doctor", "--", "true").returncode)
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
        os.mkdir(os.path.join(self.folder, f"deft-{socket.gethostname()}.json"))
        for mode in ("off", "exact", "deft", "covap"):
            self.seen("--mode", mode)
        self.seen(env={"DEFT_OUT": ""})
        self.check_refused(125, "is a folder", arguments=["run", "--mode", "observe"])

    def test_library(self):
        self.check_refused(125, "--library /no/lib.so", "No such file",
                           arguments=["run", "--library", "/no/lib.so"])
        self.check_refused(125, "not a shared library", arguments=["run", "--library", __file__])
        self.check_refused(125, "not a shared library", arguments=["run", "--library", "/bin/ls"])
