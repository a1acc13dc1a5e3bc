# SPDX-License-Identifier: Apache-2.0
"""Several "hosts" on one machine, joined by links of chosen rates.

A host is a network namespace held by one process of ours, so nothing is left behind, however this
program ends: the holder waits on a pipe and goes when the pipe closes, and with the last process in
it the kernel removes the namespace, its interfaces and its queues. No namespace has a name, so any
number of networks may exist at once.

Without the right to make namespaces the hosts are loopback addresses (`LoopbackNetwork`): nothing
is shaped there, the program under test has to pace itself (DEFT_INTERFACES=address@rate).

    with hosts.create(count=2, rates=["2gbit", "1gbit"]) as network:
        network.hosts[0].run(["ping", "-c1", network.hosts[1].address(0)])
        network.cut(1)                       # the second link loses its carrier
        network.restore(1)

Standard library only; needs iproute2 (ip, tc) and util-linux (unshare, nsenter).
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

USERNS_MARK = "DEFT_HOSTS_IN_USERNS"
SUBNET = "10.77"
# A quarter of a megabyte passes unshaped in one burst, unless asked for less, and the queue holds
# 20 ms: what real NICs and switches do.
BURST = "256kb"
# bytes: a packet of TCP's before it is cut (64 KiB), which the kernel would cut in software
# otherwise
LEAST_BURST = 80_000
QUEUE = ["latency", "20ms"]
# Before it, in a host, the kernel's own default for a network device: three bands by socket
# priority. A switch has none.
HOST_QUEUE = "pfifo_fast"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
# What `ip link` says of an interface that can send. A TAP device never says more of its state than
# that its cable is plugged in.
RUNNING = r"(.*state UP|<[^>]*LOWER_UP[^>]*>.*state UNKNOWN)"


class SetupError(RuntimeError):
    """The network could not be made; the message is one line that names the remedy."""


def rate_bits(rate):
    """Bits per second of a tc rate such as 2gbit, 500mbit, 2.5gbit; None for "" or "unshaped"."""
    if rate in ("", "unshaped", None):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m|g)bit", rate.strip().lower())
    if not match or float(match.group(1)) <= 0:
        raise SetupError(f"link rate '{rate}' is not understood: write 500mbit, 2gbit, "
                         "2.5gbit or unshaped")
    return int(float(match.group(1)) * {"k": 1e3, "m": 1e6, "g": 1e9}[match.group(2)])


def die_with_parent(kill_signal=signal.SIGKILL):
    """For preexec_fn: the child is killed when the thread that started it ends, even by SIGKILL."""
    parent = os.getpid()

    def prepare():
        _libc.prctl(_PR_SET_PDEATHSIG, int(kill_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    return prepare


def missing_tools():
    """Names the programs that are not installed, with their packages."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [(tool, package) for tool, package in TOOLS.items() if not shutil.which(tool, path=path)]


def _probe(prefix):
    """Can namespaces, a veth pair and a shaped queue be made behind `prefix`? Returns the reason
    if not, else ''."""
    script = ("ip link add dt_p0 type veth peer name dt_p1 && "
              "tc qdisc add dev dt_p0 root tbf rate 1gbit burst 256kb latency 20ms "
              "&& unshare -n true")
    try:
        done = subprocess.run([*prefix, "sh", "-c", script], capture_output=True, text=True,
                              timeout=30, env=_environment(), check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _nsenter():
    return shutil.which("nsenter", path=_environment()["PATH"])


def _environment(extra=None):
    environment = dict(os.environ)
    environment["PATH"] = environment.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    environment.update(extra or {})
    return environment


def choose(kind="auto"):
    """Decides how hosts are made: ("root" | "userns" | "loopback", reason). Raises SetupError if
    `kind` cannot be had.

    "userns" means that the program must run itself again: see enter_user_namespace().
    """
    if kind == "loopback":
        return "loopback", "asked for"
    missing = missing_tools()
    if missing:
        reason = "; ".join(f"'{tool}' is not installed (apt install {package})"
                           for tool, package in missing)
    else:
        reason = _probe(["unshare", "-n"])
        if not reason:
            return ("userns" if USERNS_MARK in os.environ else "root"), "network namespaces"
        if USERNS_MARK not in os.environ:
            user_reason = _probe(["unshare", "-Urn"])
            if not user_reason:
                return "userns", "unprivileged user namespace"
            reason = f"{reason}; in a user namespace: {user_reason}"
    if kind == "namespaces":
        raise SetupError(f"network namespaces cannot be made here: {reason}")
    return "loopback", reason


def enter_user_namespace():
    """Runs this program again as root of an own user namespace. Does not return where that is
    still to be done."""
    if USERNS_MARK in os.environ:
        return
    os.environ[USERNS_MARK] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe("unshare", ["unshare", "-Urn", sys.executable, *sys.argv], _environment())


class Host:
    """One host: a place to run commands in, with an address on each link."""

    def __init__(self, index, prefix, addresses, devices):
        self.index = index
        self.name = f"host{index}"
        self._prefix = prefix
        self._addresses = addresses
        self.devices = devices

    def address(self, link):
        """The IPv4 address of this host on link number `link`."""
        return self._addresses[link]

    def popen(self, command, env=None, replace_env=False, **options):
        """subprocess.Popen inside the host. `env` is added to the environment, or replaces it.
        Dies with this process."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([*self._prefix, *command],
                                env=env if replace_env else _environment(env),
                                preexec_fn=die_with_parent(), **options)

    @property
    def namespace(self):
        """The network namespace as a path."""
        return f"/proc/{self._prefix[2]}/ns/net"

    def run(self, command, env=None, timeout=60, check=True):
        """Runs a command inside the host and returns its output; SetupError with its last line
        if it fails."""
        try:
            done = subprocess.run([*self._prefix, *command], env=_environment(env),
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                  timeout=timeout, check=False)
        except FileNotFoundError as error:
            raise SetupError(f"'{error.filename}' is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"{self.name}: {' '.join(command)}: not done after {timeout} s; "
                             "is the machine busy?") from error
        if check and done.returncode:
            lines = ((done.stderr or done.stdout).strip().splitlines()
                     or [f"exit code {done.returncode}"])
            raise SetupError(f"{self.name}: {' '.join(command)}: {lines[-1]}")
        return done.stdout

    def counters(self):
        """{device: (bytes received, bytes sent)} as the kernel counts them (whole frames)."""
        table = {}
        for line in self.run(["cat", "/proc/self/net/dev"]).splitlines()[2:]:
            device, _, numbers = line.partition(":")
            fields = numbers.split()
            table[device.strip()] = (int(fields[0]), int(fields[8]))
        return table


class NamespaceNetwork:
    """Hosts as network namespaces; link l is interface eth<l> in each of them, shaped in both
    directions.

    `pipe`: a rate; all links of the two hosts then run through one pipe of this rate, as behind one
    uplink. `relays`: {link: a function (network, link) that lays this link instead and returns what
    holds it} (relay.py).
    """

    kind = "namespaces"
    shaped = True

    def __init__(self, count, rates, pipe=None, burst_ms=None, relays=None):
        if count < 2 or not rates:
            raise SetupError("a network needs at least two hosts and one link")
        if relays and (count > 2 or pipe):
            raise SetupError("a relayed link joins two hosts and needs no pipe")
        if pipe and count > 2:
            raise SetupError("a shared pipe joins two hosts")
        for rate in [*rates, pipe]:
            rate_bits(rate)
        self.rates = list(rates)
        self._pipe = pipe
        self._burst_ms = burst_ms
        self._holders = []
        self._switch = None
        self._relays = dict(relays or {})
        self.relays = {}   # link: what holds it
        self.hosts = []
        devices = [f"eth{link}" for link in range(len(rates))]
        try:
            for index in range(count):
                addresses = [f"{SUBNET}.{link}.{index + 1}" for link in range(len(rates))]
                self.hosts.append(Host(index, self._hold(), addresses, devices))
            if count > 2 or pipe:
                self._switch = Host(-1, self._hold(), [], [])
                self._switch.name = "switch"
            if pipe:
                self._lay_pipe()
            for link in range(len(rates)):
                self._lay(link)
            for host in self.hosts:
                host.run(["ip", "link", "set", "lo", "up"])
            self._wait_running()
        except BaseException:
            self.close()
            raise

    def _hold(self):
        """Starts the process that keeps a new namespace alive; returns the command prefix that
        enters it."""
        holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c",
             "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad 2>/dev/null; echo up; read end"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(),
            preexec_fn=die_with_parent(),
            start_new_session=True)
        self._holders.append(holder)
        if holder.stdout.readline() != b"up\n":
            raise SetupError("a network namespace could not be made: unshare -n failed")
        return [_nsenter(), "-t", str(holder.pid), "-n", "--"]

    def _pid(self, number):
        return str(self._holders[number].pid)

    def _bridge(self, link, host):
        """Which bridge of the switch a host's end of a link is plugged into: one a link, or one
        a side of the pipe."""
        return f"side{host.index}" if self._pipe else f"br{link}"

    def _lay_pipe(self):
        self._switch.run(["ip", "link", "add", "pipe0", "type", "veth", "peer", "name", "pipe1"])
        for side in (0, 1):
            self._switch.run(["ip", "link", "add", f"side{side}", "type", "bridge"])
            self._switch.run(["ip", "link", "set", f"side{side}", "up"])
            self._switch.run(["ip", "link", "set", f"pipe{side}", "master", f"side{side}", "up"])
            self._switch.run(["tc", "qdisc", "add", "dev", f"pipe{side}", "root", "tbf",
                              *self._queue(self._pipe)])
        # several interfaces in one Ethernet: each answers for its own address only
        for host in self.hosts:
            host.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; "
                                  "echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce"])

    def _lay(self, link):
        device = f"eth{link}"
        if link in self._relays:
            self.relays[link] = self._relays[link](self, link)
            for host in self.hosts:
                host.run(["ip", "addr", "add", host.address(link) + "/24", "dev", device])
                host.run(["ip", "link", "set", device, "up"])
            return
        if self._switch and not self._pipe:
            bridge = f"br{link}"
            self._switch.run(["ip", "link", "add", bridge, "type", "bridge"])
            self._switch.run(["ip", "link", "set", bridge, "up"])
        for host in self.hosts:
            if self._switch:
                port = f"p{link}x{host.index}"
                self._switch.run(["ip", "link", "add", port, "type", "veth", "peer", "name", device,
                                  "netns", self._pid(host.index)])
                self._switch.run(["ip", "link", "set", port, "master", self._bridge(link, host),
                                  "up"])
            elif host.index == 0:
                host.run(["ip", "link", "add", device, "type", "veth", "peer", "name", device,
                          "netns", self._pid(1)])
            host.run(["ip", "addr", "add", host.address(link) + "/24", "dev", device])
            host.run(["ip", "link", "set", device, "up"])
        self.set_rate(link, self.rates[link])

    def _wait_running(self):
        """The kernel reports a new link as running a moment after it is up, and NCCL skips what
        is not running."""
        deadline = time.monotonic() + 10
        for host in self.hosts:
            while True:
                table = host.run(["ip", "-o", "link", "show"])
                waiting = [device for device in host.devices
                           if not re.search(rf" {device}(@\S+)?: {RUNNING}", table)]
                if not waiting:
                    break
                if time.monotonic() > deadline:
                    raise SetupError(f"{host.name}: interface {waiting[0]} does not come up")
                time.sleep(0.02)

    def _ends(self, link):
        """The senders of a link: each host's device, and each switch port (the traffic towards a
        host)."""
        ends = [(host, f"eth{link}") for host in self.hosts]
        if self._switch:
            ends += [(self._switch, f"p{link}x{host.index}") for host in self.hosts]
        return ends

    def _shape(self, link):
        for place, device in self._ends(link):
            if rate_bits(self.rates[link]) is None:
                place.run(["tc", "qdisc", "del", "dev", device, "root"], check=False)
            else:
                place.run(["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf",
                           *self._queue(self.rates[link])])
                if place is not self._switch:
                    # Fails where it is there already, which is as well.
                    place.run(["tc", "qdisc", "replace", "dev", device, "parent", "1:1", "handle",
                               "10:", HOST_QUEUE], check=False)

    def _queue(self, rate):
        burst = (BURST if self._burst_ms is None
                 else f"{max(LEAST_BURST, int(rate_bits(rate) * self._burst_ms / 8e3))}b")
        return ["rate", rate, "burst", burst, *QUEUE]

    def set_rate(self, link, rate):
        """Changes the rate of a link, in both directions ("unshaped": no limit)."""
        rate_bits(rate)
        self.rates[link] = rate
        self._shape(link)

    def cut(self, link, how="carrier", host=None):
        """Breaks a link. "delete" (two hosts): the interface goes. "carrier": its end at `host`
        (default: the last one) is taken down; behind a switch it is the switch's port, so that
        the host sees a lost carrier; of two hosts the other one does. "blackhole": what `host`
        (default: every host) sends is dropped silently."""
        places = self.hosts if host is None else [self.hosts[host]]
        if how == "carrier":
            if self._switch:
                place, device = self._switch, f"p{link}x{places[-1].index}"
            else:
                place, device = places[-1], f"eth{link}"
            place.run(["ip", "link", "set", device, "down"])
        elif how == "delete" and not self._switch:
            places[-1].run(["ip", "link", "del", f"eth{link}"])
        elif how == "blackhole":
            for place in places:
                place.run(["tc", "qdisc", "replace", "dev", f"eth{link}", "root", "blackhole"])
        else:
            raise SetupError(f"a link is cut by 'carrier', 'delete' or 'blackhole', not by '{how}'")

    def restore(self, link):
        """Mends what cut() broke; the link's current rate holds."""
        if f"eth{link}:" not in self.hosts[-1].run(["cat", "/proc/self/net/dev"]):
            self._lay(link)
            return
        for place, device in self._ends(link):
            place.run(["ip", "link", "set", device, "up"])
        self._shape(link)

    def describe(self):
        rates = ", ".join(f"eth{link} {rate}" for link, rate in enumerate(self.rates))
        rates += f", all through one pipe of {self._pipe}" if self._pipe else ""
        return f"{len(self.hosts)} network namespaces joined by {len(self.rates)} links ({rates})"

    def close(self):
        """Removes everything. Processes still running inside are the caller's to end."""
        for held in self.relays.values():
            held.close()
        self.relays = {}
        for holder in self._holders:
            for stream in (holder.stdin, holder.stdout):
                if stream:
                    stream.close()
            if holder.poll() is None:
                holder.kill()
            holder.wait()
        self._holders = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class LoopbackNetwork:
    """Hosts as loopback addresses 127.77.<link>.<host>: no namespaces, nothing shaped, one set
    of counters."""

    kind = "loopback"
    shaped = False

    def __init__(self, count, rates):
        for rate in rates:
            rate_bits(rate)
        self.rates = list(rates)
        self.hosts = [Host(index, [], [f"127.77.{link}.{index + 1}" for link in range(len(rates))],
                           ["lo"])
                      for index in range(count)]

    def interfaces(self, host):
        """The value of DEFT_INTERFACES that makes deft use and pace this host's addresses."""
        entries = []
        for link, rate in enumerate(self.rates):
            bits = rate_bits(rate)
            entries.append(self.hosts[host].address(link) +
                           (f"@{bits // 1000000}mbit" if bits else ""))
        return ",".join(entries)

    def describe(self):
        return f"{len(self.hosts)} x {len(self.rates)} loopback addresses, paced by deft itself"

    def _refuse(self, what):
        raise SetupError(f"{what} needs network namespaces; these hosts are loopback addresses")

    def set_rate(self, link, rate):
        self._refuse("changing a rate")

    def cut(self, link, how="carrier", host=None):
        self._refuse("cutting a link")

    def restore(self, link):
        self._refuse("restoring a link")

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def create(count=2, rates=("2gbit", "1gbit"), kind="auto", pipe=None, burst_ms=None, relays=None):
    """Makes the network as choose() says; for "userns" the caller has entered the user namespace
    before. `burst_ms`: so much of its rate a link sends at once after a rest (a quarter of a
    megabyte)."""
    chosen, reason = choose(kind)
    if chosen == "userns" and USERNS_MARK not in os.environ:
        raise SetupError("call enter_user_namespace() first: " + reason)
    if chosen == "loopback":
        return LoopbackNetwork(count, rates)
    return NamespaceNetwork(count, rates, pipe, burst_ms, relays)


def main():
    """python3 hosts.py [--hosts N] [--links R,R] -- COMMAND: runs COMMAND in host 0 (HOST1..
    addresses in HOSTS)."""
    import argparse
    parser = argparse.ArgumentParser(description="Run a command on host 0 of a small "
                                                 "network of namespaces.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--links", default="2gbit,1gbit")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    try:
        if choose("namespaces")[0] == "userns":
            enter_user_namespace()
        with create(arguments.hosts, arguments.links.split(","), "namespaces") as network:
            pids = {host.name: host._prefix[2] for host in network.hosts}
            environment = {"HOSTS": json.dumps(pids)}
            sys.exit(network.hosts[0].popen(arguments.command, env=environment, stdin=None).wait())
    except SetupError as error:
        sys.exit(f"hosts: {error}")


if __name__ == "__main__":
    main()
