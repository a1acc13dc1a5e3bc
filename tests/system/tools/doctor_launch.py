# SPDX-License-Identifier: Apache-2.0
"""How a job is started: wrappers, containers, where its ranks meet, and how values are written."""
import os
import shutil

from doctor_host import two_hosts
from doctor_support import LIBRARY, STATIC_PROBE, DoctorTest, needs_network, needs_root

PRELOADED = {"LD_PRELOAD": LIBRARY, "NCCL_NET_PLUGIN": "deft"}


@needs_network
class Launch(DoctorTest):
    def launched(self, name, severity, *mention, command, env=None):
        """The finding on a command, whose launchers are stand-ins in this test's folder."""
        for word in ("docker", "numactl", "torchrun"):
            if not (self.folder / word).exists():
                self.script(word, "#!/bin/sh\n")
        self.first(name, severity, *mention, arguments=("--", *command), inside=two_hosts(),
                   env={"PATH": f"{self.folder}:/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})})

    def well(self, *command, env=None):
        result = self.doctor("--", *command, inside=two_hosts(),
                             env={"PATH": f"{self.folder}:/usr/sbin:/usr/bin:/sbin:/bin",
                                  **(env or {})})
        self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)

    def test_behind_wrappers(self):
        missing = "/no/such/train"
        self.script("numactl", "#!/bin/sh\n")
        for words in (("numactl", "--cpunodebind", "0", "--membind", "0"), ("flock", "/tmp/lock"),
                      ("timeout", "--signal", "KILL", "5"), ("setpriv", "--reuid", "0"),
                      ("unshare", "-n"), ("xargs", "-n", "1")):
            with self.subTest(words=words):
                self.launched("command-not-found", "error", missing, command=(*words, missing))
                self.well(*words, "true")
        for words in (("su", "root", "-c"), ("su", "-c"), ("script", "-qc")):
            with self.subTest(words=words):
                self.launched("preload-reset", "error", "sh -c:1",
                              command=(*words, "unset LD_PRELOAD; exec python3 x.py"))
        self.launched("command-not-found", "error", "cgexec: command not found",
                      command=("cgexec", "-g", "cpu:x", "true"))

    @needs_root
    def test_a_wrapper_with_raised_privileges(self):
        wrapper = shutil.copy("/bin/true", self.folder / "su")
        os.chown(wrapper, 65534, 65534)
        os.chmod(wrapper, 0o4755)
        self.launched("program-raised", "error", str(wrapper), command=("su", "bob", "-c", "true"))

    def test_containers(self):
        job = ("image", "deft", "run", "--", "torchrun", "--nnodes", "2", "train.py")
        for words in (("run",), ("run", "--network", "bridge"), ("run", "--rm", "--net=none")):
            with self.subTest(words=words):
                self.launched("container-network", "warning", "--network=host",
                              command=("docker", *words, *job))
        for words in (("run", "--network=host"), ("run", "--net", "host"),
                      ("run", "--network", "mine"), ("run", "--pod", "p"), ("exec", "c")):
            with self.subTest(words=words):
                self.script("docker", "#!/bin/sh\n")
                self.well("docker", *words, *job)
        self.well("docker", "run", "--gpus", "all", "image", "deft", "run", "--", "torchrun",
                  "--nproc-per-node", "8", "train.py")
        # Its client is no part of the job: Docker's is statically linked.
        if STATIC_PROBE is not None:
            shutil.copy(STATIC_PROBE, self.folder / "docker")
        self.launched("container-unseen", "warning", "docker hands LD_PRELOAD on",
                      command=("docker", "run", "--network=host", "-e", "LD_PRELOAD", "image",
                               "/no/such/train"))
        script = self.script("job.sh", f"#!/bin/sh\ndocker run {' '.join(job)}\n")
        self.launched("container-network", "warning", "job.sh:2", command=(script,))

    def test_gpus_that_are_kept_out_of_a_container(self):
        for value in ("void", "none"):
            self.launched("gpus-hidden", "error", f"NVIDIA_VISIBLE_DEVICES='{value}'",
                          "--gpus all",
                          command=("docker", "run", "-e", f"NVIDIA_VISIBLE_DEVICES={value}",
                                   "image", "deft", "run", "x"))
            self.well("docker", "run", "--gpus", "all", "image", "deft", "run", "x",
                      env={"NVIDIA_VISIBLE_DEVICES": value})
        script = self.write("train.py", "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n")
        self.launched("gpus-hidden", "error", "CUDA_VISIBLE_DEVICES=''",
                      command=("python3", script))

    def test_hosts_that_meet_at_themselves(self):
        script = self.write("train.py", "import json\n")
        for words in (("--nnodes", "2"), ("--nnodes=2:4", "--master_addr", "localhost"),
                      ("--nnodes", "2", "--rdzv-endpoint=127.0.0.1:29400")):
            with self.subTest(words=words):
                self.launched("rendezvous-lonely", "warning", "--nnodes 2",
                              command=("torchrun", *words, script))
        self.launched("rendezvous-lonely", "warning", "::1",
                      command=("python3", "-m", "torch.distributed.run", "--nnodes", "2",
                               "--master-addr", "::1", script))
        job = self.script("job.sh", f"#!/bin/sh\ntorchrun --nnodes 2 {script}\n")
        self.launched("rendezvous-lonely", "warning", "job.sh:2", command=(job,))
        for words in (("--nnodes", "1"), ("--nnodes", "2", "--master-addr", "node1"),
                      ("--standalone", "--nnodes", "2"), ()):
            self.well("torchrun", *words, script)
        self.well("torchrun", "--nnodes", "2", script, env={"PET_MASTER_ADDR": "node1"})

    def test_line_ends_of_another_system(self):
        script = self.script("job.sh", "#!/bin/sh\nexport DEFT_MODE=exact\r\ntrue\r\n")
        self.launched("script-line-ends", "error", "job.sh:2", f"sed -i 's/\\r$//' {script}",
                      command=("sh", script))

    def test_names_to_preload_that_are_written_wrongly(self):
        for name, remedy in ((f'"{LIBRARY}"', "take the quotes out"), (LIBRARY + ",", "put ':'"),
                             ("~/libnccl-net-deft.so", "write the whole path"),
                             ("$DEFT/libnccl-net-deft.so", "write the whole path"),
                             ("./libnccl-net-deft.so", "write the whole path")):
            with self.subTest(name=name):
                self.first("preload-file-missing", "error", remedy, inside=two_hosts(),
                           env={**PRELOADED, "LD_PRELOAD": name})
