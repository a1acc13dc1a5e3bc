# SPDX-License-Identifier: Apache-2.0
"""Links, limits, mounts and other hosts that deft doctor looks at: each in a namespace of its
own."""
import concurrent.futures
import os
import shlex
import sys
import unittest

from doctor_support import DEFT, LIBRARY, DoctorTest, can, needs_mounts, needs_network

# Two hosts with two links, 10.1.0.x and 10.1.1.x: this one and the process $far.
HOSTS = """wait_until() {
    for i in $(seq 1000); do if eval "$1"; then return; fi; sleep 0.02; done
    echo "in vain: $1" >&2
    exit 99
}
apart() { [ "$(readlink /proc/$1/ns/net)" != "$(readlink /proc/self/ns/net)" ]; }
ip link set lo up
unshare -n sleep 100 >&- 2>&- & far=$!
trap 'kill $far $there' EXIT
wait_until "apart $far"
for i in 0 1; do
    ip link add eth$i type veth peer name far$i
    ip link set far$i netns $far name eth$i
    ip addr add 10.1.$i.1/24 dev eth$i
    ip link set eth$i up
    nsenter -t $far -n ip addr add 10.1.$i.2/24 dev eth$i
    nsenter -t $far -n ip link set eth$i up
done
nsenter -t $far -n ip link set lo up
"""
FAR = "nsenter -t $far -n"


def two_hosts(more="", last='"$@"'):
    """Words that run a command on the first of them."""
    return ("unshare", "-rmn", "sh", "-ec", f"{HOSTS}\n{more}\nset +e\n{last}\n", "sh")


# A switch between the second links whose ports pass less than the hosts think.
SMALL_SWITCH = f"""ip link del eth1
unshare -n sleep 100 >&- 2>&- & switch=$!
trap 'kill $far $there $switch' EXIT
wait_until "apart $switch"
ip link add eth1 type veth peer name port0
ip link set port0 netns $switch
ip link add far1 type veth peer name port1
ip link set port1 netns $switch
ip link set far1 netns $far name eth1
nsenter -t $switch -n sh -ec 'ip link add br0 type bridge
for port in port0 port1; do ip link set $port master br0 up; done
ip link set port0 mtu 9000; ip link set port1 mtu 1500; ip link set br0 up'
ip link set eth1 mtu 9000 gso_max_segs 1
ip addr add 10.1.1.1/24 dev eth1
ip link set eth1 up
{FAR} sh -ec 'ip link set eth1 mtu 9000; ip addr add 10.1.1.2/24 dev eth1; ip link set eth1 up'
"""


def listening(environment="env", file="listening"):
    """Lines that start `deft doctor --listen` on the other host."""
    return (f"{FAR} {environment} {shlex.quote(DEFT)} doctor --listen >{file} & there=$!\n"
            f"wait_until 'grep -qs listening {file}'")


@needs_network
class Links(DoctorTest):
    def test_well(self):
        result = self.doctor(inside=two_hosts())
        self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)
        self.assertIn("links: eth0 (MTU 1500), eth1 (MTU 1500)", result.stdout)

    def test_links(self):
        for name, severity, mention, more, env in (
                ("link-down", "warning", "eth1", f"{FAR} ip link set eth1 down", {}),
                ("link-mtu", "warning", "eth1 has an MTU of 600", "ip link set eth1 mtu 600", {}),
                ("link-excluded", "warning", "NCCL_SOCKET_IFNAME=eth0 leaves out eth1", "",
                 {"NCCL_SOCKET_IFNAME": "eth0"}),
                ("link-internal", "warning", "br0",
                 "ip link add br0 type bridge; ip addr add 10.2.0.1/24 dev br0; ip link set br0 up",
                 {"DEFT_INTERFACES": "eth,br0"}),
                ("links-loopback", "error", "loopback", "", {"NCCL_SOCKET_IFNAME": "lo"}),
                ("links-none", "error", "NCCL_SOCKET_IFNAME", "", {"NCCL_SOCKET_IFNAME": "ib"}),
                ("settings-contradict", "warning", "DEFT_INTERFACES", "",
                 {"DEFT_INTERFACES": "eth0,eth1", "NCCL_SOCKET_IFNAME": "eth"}),
                ("link-same-network", "warning", "eth0 and eth1",
                 "ip addr flush dev eth1; ip addr add 10.1.0.9/24 dev eth1; "
                 "echo 1 >/proc/sys/net/ipv4/conf/eth1/rp_filter", {}),
                ("links-one", "note", "eth0 is the only", "ip link del eth1", {}),
                ("link-skipped", "note", "br0",
                 "ip link add br0 type bridge; ip addr add 10.2.0.1/24 dev br0; ip link set br0 up",
                 {}),
                ("link-no-address", "warning", "eth1", "ip addr flush dev eth1", {}),
                ("tcp-features", "warning", "tcp_window_scaling",
                 "echo 0 >/proc/sys/net/ipv4/tcp_window_scaling", {}),
                ("tcp-retries", "warning", "tcp_retries2 is 3",
                 "echo 3 >/proc/sys/net/ipv4/tcp_retries2", {}),
                ("port-range", "warning", "100 ports",
                 "echo 40000 40099 >/proc/sys/net/ipv4/ip_local_port_range", {}),
                ("tcp-buffers", "warning", "tcp_wmem",
                 "echo 4096 16384 65536 >/proc/sys/net/ipv4/tcp_wmem", {})):
            with self.subTest(name=name):
                self.first(name, severity, mention, env=env, inside=two_hosts(more))

    def test_no_interface_at_all(self):
        self.first("links-none", "error", inside=("unshare", "-rn"))


@needs_network
class Peers(DoctorTest):
    def test_well(self):
        result = self.doctor("--peer", "10.1.0.2", inside=two_hosts(listening()))
        self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)

    def test_peers(self):
        cases = (("peer-settings", "error", "DEFT_MODE is 'observe'", "", "env DEFT_MODE=observe"),
                 ("peer-links", "warning", "1 links, this host 2", "",
                  "env NCCL_SOCKET_IFNAME=eth0"),
                 ("peer-full-size", "error", "eth1", SMALL_SWITCH, "env"),
                 ("peer-link-blocked", "error", "eth1",
                  f"{FAR} ip route add blackhole 10.1.1.1/32", "env"))

        def provoke(case):
            name, severity, mention, more, environment = case
            self.first(name, severity, mention, arguments=("--peer", "10.1.0.2"),
                       inside=two_hosts(f"{more}\n{listening(environment, name)}"))

        # At once: two of them wait for answers that do not come.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outcomes = [pool.submit(provoke, case) for case in cases]
        for case, outcome in zip(cases, outcomes, strict=True):
            with self.subTest(name=case[0]):
                outcome.result()

    def test_nobody_there(self):
        self.first("peer-unreachable", "error", "10.1.0.2:9",
                   arguments=("--peer", "10.1.0.2:9"), inside=two_hosts())

    def test_a_name_that_nobody_knows(self):
        said = self.first("peer-unreachable", "error", "no-such-host.invalid",
                          arguments=("--peer", "no-such-host.invalid"), inside=two_hosts())
        self.assertIn("remedy: name a host that getent hosts knows", said)

    def test_strangers_get_nothing(self):
        script = ("import socket\nfor text in (b'', b'X' * 100000, b'I', b'E' + b'x' * 63):\n"
                  "    s = socket.create_connection(('10.1.0.2', 29430), 10)\n"
                  "    try: s.sendall(text)\n    except OSError: pass\n"
                  "    s.close()\n")
        path = self.write("stranger.py", script)
        result = self.doctor("--peer", "10.1.0.2", inside=two_hosts(
            f"{listening()}\n{sys.executable} {path}"))
        self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)


@needs_network
class Rdma(DoctorTest):
    """Hosts with a port of InfiniBand, in a tree made like sysfs."""

    def tree(self):
        port = self.folder / "sys/class/infiniband/mlx5_0/ports/1"
        (port / "gids").mkdir(parents=True)
        for name, text in {"state": "4: ACTIVE", "link_layer": "InfiniBand",
                           "rate": "400 Gb/sec (4X NDR)",
                           "gids/0": "fe80:0000:0000:0000:506b:4b03:00aa:0001"}.items():
            (port / name).write_text(text + "\n")
        return {"DEFT_SYSFS": str(self.folder / "sys")}

    def test_ports(self):
        tree = self.tree()
        for name, severity, mention, more, env in (
                ("rdma-displaced", "warning", "deft's RDMA and TCP links", "",
                 {"DEFT_RDMA": "replace"}),
                ("rdma-displaced", "warning", "NCCL_NET=deft", "", {"NCCL_NET": "deft"}),
                ("rdma-undriven", "warning", "NCCL_IB_HCA=mlx4", "", {"NCCL_IB_HCA": "mlx4"}),
                ("limit-memlock", "warning", "64 KiB", "ulimit -l 64", {})):
            with self.subTest(name=name, env=env):
                text = self.first(name, severity, mention, env={**tree, **env},
                                  inside=two_hosts(more))
                if not env:  # of a namespace of its own the limit always counts
                    self.assertIn("note: rdma-aside: RDMA is active (mlx5_0:1)", text)


# A seccomp filter that refuses vmsplice, as profiles of containers do.
SANDBOX = """import ctypes, os, platform, struct, sys
number = {"x86_64": 278, "aarch64": 75}[platform.machine()]
def op(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
code = op(0x20, 0, 0, 0) + op(0x15, 0, 1, number) + op(6, 0, 0, 0x50001) + op(6, 0, 0, 0x7fff0000)
room = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(room)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Limits(DoctorTest):
    def test_open_files(self):
        for limit in (64, 512):
            self.first("limit-files", "warning", f"ulimit -n is {limit}",
                       inside=("sh", "-c", f"ulimit -n {limit}; exec \"$@\"", "sh"))

    def test_sandbox(self):
        script = self.write("sandbox.py", SANDBOX)
        self.first("zerocopy-refused", "warning", "vmsplice", inside=(sys.executable, script))

    def mounted(self, commands):
        return ("unshare", "-rm", "sh", "-ec", f"{commands}\nexec \"$@\"", "sh")

    @needs_network
    @needs_mounts
    def test_shared_memory(self):
        self.first("shm-small", "warning", "64 MiB",
                   inside=two_hosts("mount -t tmpfs -o size=64m none /dev/shm"))

    @needs_mounts
    def test_a_file_system_without_exec(self):
        (self.folder / "noexec").mkdir()
        path = self.folder / "noexec/libnccl-net-deft.so"
        self.first("preload-unusable", "error", str(path), "failed to map", "noexec",
                   inside=self.mounted(f"mount -t tmpfs -o noexec none {path.parent}\n"
                                       f"cp {shlex.quote(LIBRARY)} {path}\n"
                                       f"export LD_PRELOAD={path} NCCL_NET_PLUGIN=deft"))

    @unittest.skipUnless(os.geteuid() == 0 and can("setpriv", "--reuid", "65534", "true"),
                         "not root, or no setpriv")
    def test_ports_of_root(self):
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="utf-8") as start:
            first = int(start.read())
        self.folder.chmod(0o755)
        if first > 1:
            self.first("port-range", "warning", f"ports below {first}", "which are root's",
                       env={"DEFT_PORTS": f"{first - 1}-60000"},
                       inside=("setpriv", "--reuid", "65534", "--clear-groups"))

    @needs_mounts
    def test_the_operators_file(self):
        conf = self.write("deft.conf", "DEFT_MODE=fast\n")
        self.first("settings-file-wrong", "error", "DEFT_MODE", inside=self.mounted(
            "[ -d /etc/deft ] || { mkdir etc work; "
            f"mount -t overlay -o lowerdir=/etc,upperdir={self.folder}/etc,"
            f"workdir={self.folder}/work none /etc; mkdir /etc/deft; }}\n"
            f"mount -t tmpfs none /etc/deft\ncp {conf} /etc/deft/"))

    @needs_mounts
    @unittest.skipIf(not os.path.isdir("/proc/driver") or os.path.exists("/proc/driver/nvidia"),
                     "no folder /proc/driver, or a real driver in it")
    def test_the_driver(self):
        text = self.write("version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
                          "535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
        self.first("gpu-driver-mismatch", "error", "535.104.05", inside=self.mounted(
            "mount -t tmpfs none /proc/driver\nmkdir /proc/driver/nvidia\n"
            f"cp {text} /proc/driver/nvidia/"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
