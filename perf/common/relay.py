# SPDX-License-Identifier: Apache-2.0
"""A link of hosts.py that damages what it carries, as it is told: the program perf/common/relay
between two TAP devices.

    lay = relay.laid_by(build, seed=1)
    with hosts.create(2, ["100mbit", "100mbit"], "namespaces", relays={0: lay}) as network:
        network.relays[0].tell("both loss 0.01")
        network.relays[0].counters()["ab"]["lost"]
"""

import json
import os
import subprocess
import threading

from . import hosts


class RelayGone(RuntimeError):
    """The relay ended, or refused a command."""


class Relay:
    """One relayed link. Commands: perf/common/relay/main.cpp. Several threads may use it."""

    def __init__(self, program, network, link, seed):
        self.device = f"eth{link}"
        self._lock = threading.Lock()
        rate = hosts.rate_bits(network.rates[link])
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise hosts.SetupError("/dev/net/tun cannot be opened: a relayed link needs it, "
                                   "and root (or its mode 0666)")
        self._process = subprocess.Popen(
            [program, self.device, network.hosts[0].namespace, network.hosts[1].namespace,
             str(seed), str((rate or 0) / 1e6)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=hosts.die_with_parent())
        if self._process.stdout.readline() != "ready\n":
            raise hosts.SetupError(self._process.stderr.read().strip() or "the relay did not start")

    def tell(self, command):
        """One command; returns the answer."""
        with self._lock:
            try:
                self._process.stdin.write(command + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline().strip()
            except (OSError, ValueError) as error:
                raise RelayGone(f"the relay of {self.device} ended: {error}") from error
        if not answer or answer.startswith("error"):
            raise RelayGone(f"the relay of {self.device}: {command}: {answer or 'it ended'}")
        return answer

    def counters(self):
        return json.loads(self.tell("counters"))

    def cpu_seconds(self):
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            user, system = file.read().rsplit(")", maxsplit=1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self):
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def laid_by(build, seed=1):
    """What hosts.create() takes for a link in `relays`."""
    program = os.path.join(build, "perf", "common", "relay", "packet_relay")
    if not os.path.exists(program):
        raise hosts.SetupError(f"{program} is missing; remedy: ./dev build")
    return lambda network, link: Relay(program, network, link, seed + link)
