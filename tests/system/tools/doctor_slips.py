# SPDX-License-Identifier: Apache-2.0
"""Slips of operators and of job scripts: names, files in the wrong place, what was left behind."""
import subprocess
import sys
import unittest

from doctor_host import listening, two_hosts
from doctor_support import LIBRARY, DoctorTest, needs_cc, needs_mounts, needs_network

PRELOADED = {"LD_PRELOAD": LIBRARY, "NCCL_NET_PLUGIN": "deft"}


def shapes():
    """Whether this kernel has the rule that slows a link."""
    return subprocess.run([*two_hosts("tc qdisc add dev eth0 root tbf rate 1gbit burst 32k latency "
                                      "10ms"), "true"], capture_output=True).returncode == 0


@needs_network
class Slips(DoctorTest):
    def test_names(self):
        for name, meant in (("deft_mode", "DEFT_MODE"), ("DFET_MODE", "DEFT_MODE"),
                            ("Deft_Canary", "DEFT_CANARY"), ("DEFTMODE", "DEFT_MODE")):
            with self.subTest(name=name):
                self.first("setting-unknown", "warning", name, f"did you mean {meant}?",
                           env={name: "off"}, inside=two_hosts())
        self.assertTrue(self.doctor(env={"LEFT_MODE": "1", "DEFT": "1", "_": "x"},
                                    inside=two_hosts()).stdout.startswith("well: "))

    def test_room_that_is_taken(self):
        """Ports, shared memory and a file system: what others have left of them."""
        holds = ("import socket, time\nheld = []\nfor port in range(42000, 42100):\n"
                 "    held.append(socket.create_server(('', port)))\n"
                 "open('held', 'w').close()\ntime.sleep(100)\n")
        script = self.write("hold.py", holds)
        taken = f"{sys.executable} {script} & there=$!\nwait_until '[ -e held ]'"
        self.first("port-range", "warning", "has 100 ports, of which 0 are free",
                   env={"DEFT_PORTS": "42000-42099"}, inside=two_hosts(taken))
        self.assertTrue(self.doctor(env={"DEFT_PORTS": "42000-42999"}, inside=two_hosts(taken))
                        .stdout.startswith("well: "))
        reserved = "/proc/sys/net/ipv4/ip_local_reserved_ports"
        self.first("port-range", "warning", "ip_local_reserved_ports takes 28000",
                   inside=two_hosts(f"echo 32768-60767 >{reserved}"))
        self.assertTrue(self.doctor(inside=two_hosts(f"echo 40000-40999 >{reserved}"))
                        .stdout.startswith("well: "))

    @needs_mounts
    def test_files_that_find_no_room(self):
        shm = "mount -t tmpfs -o size=512m none /dev/shm\n"
        self.first("shm-small", "warning", "512 MiB, of which 2 are free",
                   inside=two_hosts(shm + "head -c 510M /dev/zero >/dev/shm/nccl-x"))
        self.first("shm-small", "warning", "takes no file of this user: Read-only",
                   inside=two_hosts(shm + "mount -o remount,ro /dev/shm"))
        full = ("mkdir full; mount -t tmpfs -o size=4k none full\n"
                "head -c 4096 /dev/zero >full/x")
        self.first("setting-wrong", "error", "DEFT_OUT", "is full",
                   env={"DEFT_OUT": "full/%r.json"}, inside=two_hosts(full))

    def test_ends_of_a_link_with_different_mtus(self):
        self.first("peer-mtu", "warning", "the MTU is 9000 here, and 1500 there",
                   arguments=("--peer", "10.1.0.2"),
                   inside=two_hosts(f"ip link set eth1 mtu 9000\n{listening()}"))

    def test_a_share_that_is_no_percentage(self):
        self.first("switched-off", "error", "DEFT_CANARY=0.05", "write 5% for five jobs",
                   env={"DEFT_CANARY": "0.05", "DEFT_JOB_ID": "1"}, inside=two_hosts())

    def test_files_that_nobody_can_make(self):
        self.first("setting-idle", "warning", "DEFT_KILL_FILE='/no/where/off'", "folder /no/where",
                   env={"DEFT_KILL_FILE": "/no/where/off"}, inside=two_hosts())
        self.first("setting-idle", "warning", "'~' is not replaced",
                   env={"DEFT_METRICS": "~/metrics"}, inside=two_hosts())

    def test_what_the_loader_and_nccl_are_told(self):
        self.first("audit-set", "warning", "LD_AUDIT='/no/audit.so'",
                   inside=two_hosts("export LD_AUDIT=/no/audit.so", '"$@" 2>/dev/null'))
        self.first("nccl-no-shm", "note", "NCCL_SHM_DISABLE=1",
                   env={"NCCL_SHM_DISABLE": "1"}, inside=two_hosts())
        self.first("nccl-no-p2p", "note", "NCCL_P2P_DISABLE=1",
                   env={"NCCL_P2P_DISABLE": "1"}, inside=two_hosts())

    def test_where_hosts_meet(self):
        self.first("rendezvous-lonely", "warning", "MASTER_ADDR=localhost", env={
            "MASTER_ADDR": "localhost", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            inside=two_hosts())
        self.assertTrue(self.doctor(env={
            "MASTER_ADDR": "localhost", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            inside=two_hosts()).stdout.startswith("well: "))

    @needs_mounts
    def test_a_host_whose_name_is_loopback(self):
        self.write("hosts", "127.0.0.1 localhost\n127.0.1.1 node1\n")
        apart = two_hosts(f"mount --bind {self.folder}/hosts /etc/hosts",
                          """unshare -u sh -ec 'hostname node1; exec "$@"' sh "$@\"""")
        self.write("job.sh", "export MASTER_ADDR=$(hostname -i)\nsrun true\n")
        self.first("rendezvous-lonely", "warning", "127.0.1.1 for this host's name",
                   env={"SLURM_JOB_NUM_NODES": "2"}, arguments=("--", "sh", "job.sh"),
                   inside=apart)
        self.first("rendezvous-lonely", "warning", "rank 0 listens there alone", inside=apart,
                   env={"NCCL_COMM_ID": "node1:29400", "SLURM_STEP_NUM_NODES": "2"})
        self.assertTrue(self.doctor(inside=apart, env={
            "MASTER_ADDR": "node1", "SLURM_STEP_NUM_NODES": "2"}).stdout.startswith("well: "))

    def test_a_host_that_is_every_host(self):
        self.first("host-id", "warning", "NCCL_HOSTID='node'", env={"NCCL_HOSTID": "node"},
                   inside=two_hosts())

    @needs_cc
    def test_the_module_for_ucx_preloaded(self):
        module = self.compile("libdeft-ucx.so", "int nothing;", "-shared", "-fPIC")
        self.first("ucx-preloaded", "warning", module,
                   env={**PRELOADED, "LD_PRELOAD": f"{module}:{LIBRARY}"}, inside=two_hosts())

    def test_links(self):
        self.first("loopback-down", "error", "lo is down", "ip link set lo up",
                   inside=two_hosts("ip link set lo down"))
        self.first("link-same-network", "warning", "eth0 and eth1 both have 10.1.0.1",
                   inside=two_hosts("ip addr add 10.1.0.1/24 dev eth1"))
        self.first("listen-backlog", "warning", "net.core.somaxconn is 8",
                   inside=two_hosts("echo 8 >/proc/sys/net/core/somaxconn"))

    def test_rules_that_refuse_a_link(self):
        for rule, mention in (
                ("ip rule add from 10.1.1.1 blackhole", "to its network (10.1.1.3) is "
                 "refused by this host: blackhole"),
                ("ip rule add to 10.1.1.0/24 unreachable", "unreachable"),
                ("ip route add prohibit 10.1.1.2/31", "prohibit"),
                ("ip route del 10.1.1.0/24 dev eth1", "unreachable (a rule, or no route to it)"),
                ("ip route add 10.1.1.0/25 dev eth0", "leaves over eth0")):
            with self.subTest(rule=rule):
                self.first("link-route", "error", "eth1: what 10.1.1.1 sends", mention,
                           inside=two_hosts(rule))
        # Of other networks, and a table of the link's own.
        self.assertTrue(self.doctor(inside=two_hosts(
            "ip rule add to 10.9.0.0/16 blackhole; ip rule add from 10.1.1.1 table 7\n"
            "ip route add 10.1.1.0/24 dev eth1 table 7")).stdout.startswith("well: "))

    @unittest.skipUnless(shapes(), "no tc, or a kernel without tbf")
    def test_a_link_that_is_still_slowed(self):
        self.first("link-shaped", "warning", "eth1 has the rule tbf rate 100Mbit",
                   inside=two_hosts("tc qdisc add dev eth1 root tbf rate 100mbit burst 32k "
                                    "latency 10ms"))
        self.assertTrue(self.doctor(inside=two_hosts("tc qdisc add dev eth1 root fq_codel || true"))
                        .stdout.startswith("well: "))

    def test_other_hosts(self):
        for variable, value in (("DEFT_RDMA", "replace"), ("DEFT_UCX", "on")):
            with self.subTest(variable=variable):
                self.first("peer-settings", "error", f"{variable} is '{value}'",
                           arguments=("--peer", "10.1.0.2"),
                           inside=two_hosts(listening(f"env {variable}={value}", variable)))

    @needs_mounts
    def test_a_link_of_the_operators_that_this_host_lacks(self):
        """A job ignores the line and takes all links."""
        said = self.first("settings-line-ignored", "warning", 'no interface is named "ib0"',
                          inside=two_hosts(
                              f"mkdir -p upper\nmount -t tmpfs none upper\nmkdir upper/u upper/w\n"
                              f"mount -t overlay -o lowerdir=/etc,upperdir={self.folder}/upper/u,"
                              f"workdir={self.folder}/upper/w none /etc\nrm -rf /etc/deft\n"
                              "mkdir /etc/deft\necho DEFT_INTERFACES=ib0 >/etc/deft/deft.conf"))
        self.assertIn("links: eth0 (MTU 1500), eth1 (MTU 1500)", said)

    @needs_mounts
    def test_a_file_of_settings_in_the_wrong_place(self):
        for place in ("/etc/deft.conf", "/etc/deft/deft.conf.rpmsave"):
            with self.subTest(place=place):
                self.first("settings-file-unread", "warning", place, inside=two_hosts(
                    f"mkdir -p upper work\nmount -t tmpfs none {self.folder}\n"
                    f"mkdir {self.folder}/upper {self.folder}/work\n"
                    f"mount -t overlay -o lowerdir=/etc,upperdir={self.folder}/upper,"
                    f"workdir={self.folder}/work none /etc\n"
                    f"rm -rf /etc/deft\nmkdir /etc/deft\necho DEFT_MODE=off >{place}"))


@needs_network
class Scripts(DoctorTest):
    def test_python(self):
        for line, name, mention in (
                ("os.environ.update(NCCL_SOCKET_IFNAME='lo')", "links-loopback", "lo"),
                ('os.environ |= {"DEFT_MODE": "off"}', "switched-off", "DEFT_MODE=off"),
                ("env = dict(os.environ); env.pop('LD_PRELOAD')", "preload-reset", "job.py:2"),
                ("os.execve('/bin/train', ['train'], {'A': '1'})", "preload-reset", "job.py:2")):
            with self.subTest(line=line):
                self.write("job.py", f"import os\n{line}\n")
                self.first(name, "error", mention, arguments=("--", "python3", "job.py"),
                           inside=two_hosts())

    def test_names_that_are_computed(self):
        for file, line, name, severity in (
                ("job.sh", "for v in LD_PRELOAD A; do unset $v; done", "preload-reset", "error"),
                ("job.sh", "unset $(env | cut -d= -f1)", "preload-doubtful", "warning"),
                ("job.py", "for k in list(os.environ): os.environ.pop(k)", "preload-doubtful",
                 "warning")):
            with self.subTest(line=line):
                self.write(file, f"import os\n{line}\n")
                self.first(name, severity, f"{file}:2", inside=two_hosts(),
                           arguments=("--", "python3" if file.endswith("py") else "sh", file))

    def test_a_job_without_nccl(self):
        self.write("job.py", "from torch.distributed import init_process_group\n"
                   "init_process_group(backend='gloo')\n")
        self.first("backend-other", "error", "job.py:2",
                   arguments=("--", "python3", "job.py"), inside=two_hosts())

    def test_limits(self):
        for line, name in (("ulimit -v 500000", "limit-address-space"),
                           ("ulimit -f 100", "limit-file-size"),
                           ("ulimit -u 100", "limit-threads")):
            self.write("job.sh", f"{line}\n/bin/true\n")
            self.first(name, "warning", "job.sh:1", arguments=("--", "sh", "job.sh"),
                       inside=two_hosts())
        self.first("limit-address-space", "warning", "ulimit -v is 900000",
                   inside=two_hosts("ulimit -v 900000"))

    @needs_cc
    def test_a_sanitized_program(self):
        try:
            program = self.compile("train", "int main(void) { return 0; }", "-fsanitize=address")
        except subprocess.CalledProcessError:
            self.skipTest("no AddressSanitizer")
        ends = subprocess.run([program], env={"LD_PRELOAD": LIBRARY}, capture_output=True)
        self.assertNotEqual(ends.returncode, 0)  # what doctor foretells
        self.first("program-sanitized", "error", "libasan.so", arguments=("--", program),
                   inside=two_hosts())
        self.assertTrue(self.doctor("--", program, env={"ASAN_OPTIONS": "verify_asan_link_order=0"},
                                    inside=two_hosts()).stdout.startswith("well: "))

    def test_a_wrapper(self):
        self.first("preload-lost", "error", "setpriv --reset-env hands on no LD_PRELOAD",
                   arguments=("--", "setpriv", "--reset-env", "true"), inside=two_hosts())
