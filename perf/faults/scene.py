# SPDX-License-Identifier: Apache-2.0
"""One run: two hosts, their links, a paced job between them, and what a case does to both."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from ..common import hosts, relay

RATE = "100mbit"    # of each link: far below what the relay can carry
SIZE = 128 * 1024
DEPTH = 4
LEAD = 1.5          # seconds of healthy traffic before a fault, and after the last one
TAIL = 4.0
SETUP = 60.0        # seconds a job's set-up may take
DEFT, SOCKET = "deft", "socket"


class RunFailed(RuntimeError):
    """The run could not be carried out, or the fault was not injected: it says nothing about the
    transport."""


class Scene:
    """What a case's function gets. `bad`: the links that are to suffer."""

    def __init__(self, build, case, where, transport, seed):
        self.build, self.case, self.where, self.transport = build, case, where, transport
        self.links = 1 if where == "only" else 2
        self.bad = [0] if where in ("one", "only") else [0, 1]
        lay = relay.laid_by(build, seed)
        self.network = hosts.create(2, [RATE] * self.links, "namespaces",
                                    relays={link: lay for link in range(self.links)})
        self.seed = seed
        self.marks = {}
        self.job = None
        self._files = []
        self.helpers = []

    # What a case does.

    def wait(self, seconds):
        """Lets the job run. Returns early once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (self.job is None or self.job.poll() is None):
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))

    def tell(self, words, links=None):
        """A command to the relays of the bad links: "both loss 0.01"."""
        for link in self.bad if links is None else links:
            self.network.relays[link].tell(words)

    def interface(self, up, host=1, links=None):
        """An administrator's `ip link set down` on one host; the other one loses its carrier."""
        for link in self.bad if links is None else links:
            self.network.hosts[host].run(["ip", "link", "set", f"eth{link}",
                                          "up" if up else "down"])
            self.network.relays[link].tell(f"carrier {'ab'[1 - host]} {'on' if up else 'off'}")

    def carrier(self, up, links=None):
        """The switch's port: both hosts lose the carrier, none its configuration."""
        self.tell(f"carrier both {'on' if up else 'off'}", links)

    def mark(self, name="fault"):
        """This is the moment from which an error's delay counts."""
        self.marks[name] = time.monotonic()

    def process(self, side):
        """Process id of side 0 (sends) or 1 (receives)."""
        with open(f"/proc/{self.job.pid}/task/{self.job.pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        if len(children) < 2:
            raise RunFailed("the job's processes had ended before the fault")
        return sorted(children)[side]

    def signal(self, side, number):
        os.kill(self.process(side), number)

    def helper(self, host, arguments):
        """A script of this folder, run on a host until the end of the run."""
        here = os.path.dirname(os.path.realpath(__file__))
        process = self.network.hosts[host].popen([sys.executable, os.path.join(here, arguments[0]),
                                                  *arguments[1:]],
                                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                                 text=True)
        self.helpers.append(process)
        return process

    # What the harness does.

    def start(self, messages=None, links=None):
        """Starts the job; the case may have done something to the links before. `links`: those
        it may use (default: all)."""
        case = self.case
        moving = case.moves if len(self.bad) == self.links and case.still else case.lasts
        messages = messages or max(20, int(case.pace * (LEAD + moving + TAIL)))
        results = tempfile.NamedTemporaryFile(prefix="faults-", delete=False)  # noqa: SIM115
        errors = tempfile.NamedTemporaryFile(prefix="faults-", delete=False)  # noqa: SIM115
        self._files = [results.name, errors.name]
        program = os.path.join(self.build, "perf", "netperf", "netperf")
        library = os.path.join(self.build, "packaging", "libnccl-net-deft.so")
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("DEFT_", "NCCL_"))}
        if self.transport == DEFT:
            environment.update({"DEFT_LOG": "info", **case.settings})
        command = [program, "--plugin", library if self.transport == DEFT else "socket",
                   "--netns", ",".join(host.namespace for host in self.network.hosts),
                   "--ifname", "=" + ",".join(f"eth{link}" for link in links or range(self.links)),
                   "--mode", "steady", "--sizes", str(case.size), "--depth", str(DEPTH),
                   "--messages", str(messages), "--pace", str(case.pace), "--connections",
                   str(case.connections), "--verify", "--count-wrong", "--sleep", "300",
                   "--patience", str(int(case.patience)), "--grace", str(case.grace), "--seed",
                   str(self.seed), "--json", results.name]
        self.job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=errors, text=True,
                                    preexec_fn=hosts.die_with_parent())
        self.mark("start")
        self.planned = messages / case.pace

    def flowing(self, enough=500_000, lead=LEAD):
        """Waits until messages flow. False: the job ended before."""
        end = time.monotonic() + SETUP
        before = None   # bytes that the set-up took; its end is when netperf describes the networks
        while before is None or self._sent() - before < enough:
            if before is None and os.path.getsize(self._files[0]) > 0:
                before = self._sent()
            if self.job.poll() is not None or time.monotonic() > end:
                return False
            time.sleep(0.02)
        self.wait(lead)
        return self.job.poll() is None

    def _sent(self):
        return sum(held.counters()["ab"]["forwarded_bytes"]
                   for held in self.network.relays.values())

    def finish(self):
        """Waits for the job's end. Returns what it left: a dict, as judged by verdict.py."""
        limit = (SETUP + self.planned * 4 + self.case.lasts * 2 + self.case.patience
                 + self.case.grace)
        timed_out = False
        left = max(1.0, self.marks["start"] + limit - time.monotonic())
        try:
            output, _ = self.job.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.job.kill()
            output, _ = self.job.communicate()
            timed_out = True
        ended = time.monotonic()
        doors = self.count_doors()
        counters = [held.counters() for _, held in sorted(self.network.relays.items())]
        with open(self._files[0], encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
        with open(self._files[1], encoding="utf-8", errors="replace") as file:
            words = file.read().splitlines()
        origin = self.marks.get("fault", self.marks["start"])
        errors = [{"side": line["side"], "text": line["text"],
                   "after_s": round(line["at_s"] - origin, 3), "progress": line["progress"]}
                  for line in lines if line["kind"] == "error"]
        steady = next((line for line in lines if line["kind"] == "steady"), None)
        return {"case": self.case.name, "where": self.where, "transport": self.transport,
                "seed": self.seed, "code": self.job.returncode, "timed_out": timed_out,
                "steady": steady, "errors": errors,
                "last_words": [line for line in words if line.startswith("netperf")] or words[-1:]
                or output.splitlines()[-1:], "warnings": [line for line in words if "WARN" in line],
                "relays": counters, "doors": doors,
                "seconds": round(ended - self.marks["start"], 2)}

    def count_doors(self):
        """Ends the strangers; returns how many ports they found."""
        doors = 0
        for helper in self.helpers:
            helper.kill()
            doors += len(helper.communicate()[0].split())
        self.helpers = []
        return doors

    def close(self):
        for helper in self.helpers:
            helper.kill()
            helper.communicate()
        if self.job is not None and self.job.poll() is None:
            self.job.kill()
            self.job.communicate()
        for path in self._files:
            os.unlink(path)
        self.network.close()


def resume(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def run(build, case, where, transport, seed):
    """One run of one case; a dict."""
    scene = Scene(build, case, where, transport, seed)
    try:
        if case.before:
            case.before(scene)
        scene.start()
        flows = scene.flowing() if case.flows else True
        outlasted = False
        if flows:
            case.fault(scene)
            outlasted = scene.job.poll() is None
        result = scene.finish()
        result["began"] = flows
        result["outlasted"] = outlasted
        check_injected(case, transport, result)
        return result
    finally:
        scene.close()


def check_injected(case, transport, result):
    """RunFailed if the relays or the strangers did not do what the case is about."""
    if not result["began"]:
        return
    if case.bound is None and result["code"] == 0 and not result["outlasted"]:
        raise RunFailed("the job ended before the fault was over")
    # Socket's doors close once all connections are there, which may be before a stranger comes.
    if case.strangers and transport == DEFT and not result["doors"]:
        raise RunFailed("the strangers found no door")
    missing = [name for name in case.injected if not any(
        held[direction][name] for held in result["relays"] for direction in ("ab", "ba"))]
    if missing:
        raise RunFailed(f"no packet was {missing[0].replace('_', ' ')}: the fault was not injected")
