# SPDX-License-Identifier: Apache-2.0
"""The faults. Each is a function of a few lines over a Scene; `case` says what runs meanwhile
and what must hold."""

import dataclasses
import os
import signal
import typing

from . import scene as scenes

ONE, BOTH, ONLY = "one", "both", "only"


@dataclasses.dataclass
class Case:
    """One fault. Seconds and bytes; bounds are those the documentation states."""
    name: str
    group: str
    fault: typing.Callable
    where: tuple                # on which links: one of two, both of two, the only one
    lasts: float                # seconds from the fault's begin to its end
    before: typing.Callable = None   # done before the job starts
    flows: bool = True          # the fault comes once messages flow
    still: bool = False         # nothing moves while it lasts, if all links suffer,
    moves: float = 0.0          # but for so many seconds
    pace: float = 25.0          # messages a second on each of the connections
    size: int = scenes.SIZE
    connections: int = 2
    settings: dict = dataclasses.field(default_factory=dict)   # deft's
    patience: float = 0.0       # seconds without a message that count as hung
    grace: float = 5.0          # seconds for the second process's word after the first one's
    # seconds to the error, on every side that is alive; None: the job must end well
    bound: float = None
    alive: tuple = (0, 1)       # sides that must say so
    injected: tuple = ()        # counters of the relay that must have moved
    strangers: bool = False     # some knock at the doors
    checked: bool = True        # wrong bytes count against deft
    quick: bool = False

    def __post_init__(self):
        # The kernel's TCP tries again after twice the time it has waited.
        self.patience = self.patience or 2 * self.lasts + 30


CASES = {}


def case(name, group, where=(ONE, BOTH), lasts=8.0, **more):
    """Registers the decorated function."""
    def register(function):
        CASES[name] = Case(name, group, function, where, lasts, **more)
        return function
    return register


def impaired(name, group, commands, injected, lasts=8.0, **more):
    """A case in which links are impaired for a while and healthy again."""
    @case(name, group, lasts=lasts, injected=injected, **more)
    def fault(scene):
        scene.mark()
        for command in commands:
            scene.tell(command)
        scene.wait(lasts)
        scene.tell("both none")
    return fault


# Packets that are lost, doubled, late or wrong.
impaired("loss-1", "packets", ["both loss 0.01"], ("lost",))
impaired("loss-5", "packets", ["both loss 0.05"], ("lost",), quick=True)
impaired("duplicate", "packets", ["both duplicate 0.05"], ("duplicated",))
impaired("reorder", "packets", ["both reorder 0.02 3"], ("held_back",))
impaired("jitter", "packets", ["both delay 3", "both jitter 10"], ())
impaired("bit-errors", "packets", ["both biterrors 0.01"], ("bit_errors",))
impaired("acks-lost", "packets", ["ba ackloss 0.5"], ("acknowledgements_lost",))
impaired("everything", "packets",
         ["both loss 0.01", "both duplicate 0.02", "both reorder 0.02 3", "both jitter 5",
          "both biterrors 0.005"], ("lost", "duplicated", "held_back", "bit_errors"))
# What TCP's checksum does not see: found where the operator asks for a checksum of deft's.
impaired("silent-bit-errors", "packets", ["both silenterrors 0.002"], ("silent_bit_errors",),
         settings={"DEFT_CHECKSUM": "crc32c"}, quick=True)
impaired("silent-bit-errors-unchecked", "packets", ["both silenterrors 0.002"],
         ("silent_bit_errors",), checked=False)

# Links that carry small packets only.
SHORT = {"DEFT_LINK_TIMEOUT": "15s"}
HOLE = "both hole 1000"


@case("hole-from-start", "mtu", where=(ONE,), lasts=10.0, before=lambda scene: scene.tell(HOLE),
      injected=("in_hole",))
def hole_from_start(scene):
    scene.mark()
    scene.wait(10.0)


@case("hole-midrun", "mtu", where=(ONE,), lasts=10.0, injected=("in_hole",), quick=True)
def hole_midrun(scene):
    scene.mark()
    scene.tell(HOLE)
    scene.wait(13.0)


impaired("hole-heals", "mtu", [HOLE], ("in_hole",), lasts=10.0, still=True)


@case("hole-everywhere-from-start", "mtu", where=(BOTH,), lasts=40.0,
      before=lambda scene: scene.tell(HOLE), flows=False, still=True, settings=SHORT, patience=45.0,
      bound=20.0, injected=("in_hole",))
def hole_everywhere_from_start(scene):
    scene.mark()


@case("hole-everywhere-midrun", "mtu", where=(BOTH,), lasts=40.0, still=True, settings=SHORT,
      patience=45.0, bound=20.0, injected=("in_hole",), quick=True)
def hole_everywhere_midrun(scene):
    scene.mark()
    scene.tell(HOLE)


# Rates.
@case("rate-flaps", "rates", lasts=10.0)
def rate_flaps(scene):
    scene.mark()
    for _ in range(10):
        scene.tell("both rate 5")
        scene.wait(0.5)
        scene.tell("both rate 100")
        scene.wait(0.5)


@case("crawl", "rates", lasts=8.0)
def crawl(scene):
    scene.mark()
    scene.tell("both rate 0.5")
    scene.wait(8.0)
    scene.tell("both rate 100")


# Links on which packets vanish without a word.
def silent(name, command, back, lasts, injected, still=True, **more):
    @case(name, "silence", lasts=lasts, still=still, injected=injected, **more)
    def fault(scene):
        scene.mark()
        scene.tell(command)
        scene.wait(lasts)
        scene.tell(back)
    return fault


silent("silent", "both blackhole on", "both blackhole off", 3.0, ("in_black_hole",), quick=True)
silent("one-way-forth", "ab blackhole on", "ab blackhole off", 5.0, ("in_black_hole",))
silent("one-way-back", "ba blackhole on", "ba blackhole off", 5.0, ("in_black_hole",))
# Data that go the other way acknowledge too: deft's do.
silent("all-acks-lost", "ba ackloss 1", "ba none", 5.0, ("acknowledgements_lost",), still=False)

# Middleboxes that end connections, or forget them without a word. Socket cannot outlive either.
impaired("resets", "middleboxes", ["both resets 0.0005"], ("resets",), quick=True)


@case("forgotten", "middleboxes", lasts=8.0, injected=("forgotten",))
def forgotten(scene):
    scene.mark()
    scene.tell("both forget on")
    scene.wait(8.0)


# Flaps: (down, up) in seconds. The links carry so much that one is not enough for ease.
HOW = {"interface": lambda scene, up: scene.interface(up),
       "own-interface": lambda scene, up: scene.interface(up, host=0),
       "carrier": lambda scene, up: scene.carrier(up),
       "silent": lambda scene, up: scene.tell(f"both blackhole {'off' if up else 'on'}")}
PATTERNS = {"1-0.1-7": [(1.0, 0.1), (7.0, 0.0)], "10x0.2": [(0.2, 0.2)] * 10,
            "10x0.05": [(0.05, 0.5)] * 10, "3x3": [(3.0, 1.0)] * 3, "4x1-0.1": [(1.0, 0.1)] * 4}


def lasting(pattern):
    return sum(down + up for down, up in pattern)


def moving(pattern):
    """Seconds in which messages may flow."""
    return sum(up for _, up in pattern)


def flap(how, pattern, **more):
    @case(f"flap-{how}-{pattern}", "flaps", lasts=lasting(PATTERNS[pattern]),
          moves=moving(PATTERNS[pattern]), pace=40.0, still=True, **more)
    def fault(scene):
        scene.mark()
        for down, up in PATTERNS[pattern]:
            HOW[how](scene, False)
            scene.wait(down)
            HOW[how](scene, True)
            scene.wait(up)
    return fault


for each in ("interface", "own-interface", "carrier", "silent"):
    flap(each, "1-0.1-7", quick=each in ("interface", "carrier"))
for each in ("10x0.2", "10x0.05", "3x3", "4x1-0.1"):
    flap("interface", each)
flap("carrier", "10x0.2")


@case("flap-in-turn", "flaps", where=(BOTH,), lasts=12.0, pace=40.0)
def flap_in_turn(scene):
    """Link 0 goes just before link 1 is back, and the other way round."""
    scene.mark()
    scene.interface(False, links=[0])
    for turn in range(5):
        scene.wait(2.0)
        scene.interface(False, links=[1 - turn % 2])
        scene.wait(0.2)
        scene.interface(True, links=[turn % 2])
    scene.interface(True, links=[0, 1])


# Outages.
def outage(seconds, how, **more):
    @case(f"outage-{seconds}-{how}", "outages", lasts=float(seconds), still=True, **more)
    def fault(scene):
        scene.mark()
        HOW[how](scene, False)
        scene.wait(seconds)
        HOW[how](scene, True)
    return fault


for each in (5, 20, 45, 90):
    outage(each, "silent", quick=each == 45)
for each in (20, 90):
    outage(each, "carrier")
outage(45, "interface")


# Processes that stop, die, or vanish with their host.
def stopped(name, side, seconds, **more):
    @case(name, "processes", where=(BOTH,), lasts=float(seconds), still=True, **more)
    def fault(scene):
        pid = scene.process(side)
        scene.mark()
        scene.signal(side, signal.SIGSTOP)
        scene.wait(seconds)
        scenes.resume(pid)
    return fault


stopped("stop-receiver-5", 1, 5, quick=True)
stopped("stop-sender-5", 0, 5)
stopped("stop-receiver-45", 1, 45)
stopped("stop-sender-45", 0, 45)


def killed(name, side, **more):
    @case(name, "processes", where=(BOTH,), lasts=1.0, patience=20.0, bound=0.2, alive=(1 - side,),
          **more)
    def fault(scene):
        pid = scene.process(side)
        scene.mark()
        os.kill(pid, signal.SIGKILL)
    return fault


killed("kill-receiver", 1, quick=True)
killed("kill-sender", 0, quick=True)


def half_open(name, side, **more):
    """The host crashes and comes back without the process: nobody told the other one, but its
    questions are answered again."""
    @case(name, "processes", where=(BOTH,), lasts=3.0, patience=60.0, bound=5.0, alive=(1 - side,),
          injected=("in_black_hole",), **more)
    def fault(scene):
        pid = scene.process(side)
        scene.tell("both blackhole on")
        os.kill(pid, signal.SIGKILL)
        scene.wait(3.0)
        scene.mark()
        scene.tell("both blackhole off")
    return fault


half_open("half-open-receiver-gone", 1)
half_open("half-open-sender-gone", 0, quick=True)


@case("host-gone", "processes", where=(BOTH,), lasts=20.0, still=True,
      settings={"DEFT_LINK_TIMEOUT": "10s"}, patience=40.0, bound=13.0, grace=10.0,
      injected=("in_black_hole",))
def host_gone(scene):
    """For ever; with a time-out of 10 s, so that its error can be waited for."""
    scene.mark()
    scene.tell("both blackhole on")


@case("unreachable-at-setup", "processes", where=(BOTH,), lasts=20.0, still=True, flows=False,
      patience=40.0, bound=5.0, alive=(0,), before=lambda scene: scene.tell("both blackhole on"),
      injected=("in_black_hole",))
def unreachable_at_setup(scene):
    scene.marks["fault"] = scene.marks["start"]


# Sixty-four connections.
MANY = {"connections": 64, "pace": 6.0, "size": 16 * 1024}
impaired("many-loss-1", "many", ["both loss 0.01"], ("lost",), **MANY)


def many(name, how, pattern, **more):
    @case(name, "many", lasts=lasting(pattern), moves=moving(pattern), still=True, **MANY, **more)
    def fault(scene):
        scene.mark()
        for down, up in pattern:
            HOW[how](scene, False)
            scene.wait(down)
            HOW[how](scene, True)
            scene.wait(up)
    return fault


many("many-flap-1-0.1-7", "interface", PATTERNS["1-0.1-7"], quick=True)
many("many-silent", "silent", [(5.0, 0.0)])


# Strangers.
def strangers(scene):
    """At every listening port of either host, from the other one, for as long as the job runs."""
    for host in (0, 1):
        scene.strangers = scene.helper(1 - host, [
            "strangers.py", scene.network.hosts[host].namespace.replace("ns/net", "net/tcp"),
            str(scene.seed),
            *(scene.network.hosts[host].address(link) for link in range(scene.links))])


@case("strangers", "strangers", where=(BOTH,), lasts=8.0, before=strangers, strangers=True,
      quick=True)
def strangers_at_the_doors(scene):
    scene.mark()
    scene.wait(8.0)


@case("strangers-64", "strangers", where=(BOTH,), lasts=8.0, before=strangers, strangers=True,
      **MANY)
def strangers_at_many_doors(scene):
    scene.mark()
    scene.wait(8.0)


@case("strangers-flap", "strangers", where=(BOTH,), lasts=8.1, before=strangers, strangers=True,
      still=True)
def strangers_during_flaps(scene):
    scene.mark()
    for down, up in PATTERNS["1-0.1-7"]:
        scene.interface(False)
        scene.wait(down)
        scene.interface(True)
        scene.wait(up)


# Whole jobs, with the shim: its agreement has a door and clocks of its own. A message is an
# iteration here.
def whole_job(name, pattern, how="interface", **more):
    @case(name, "jobs", lasts=lasting(pattern), moves=moving(pattern), still=True, **more)
    def fault(scene):
        scene.mark()
        for down, up in pattern:
            HOW[how](scene, False)
            scene.wait(down)
            HOW[how](scene, True)
            scene.wait(up)
    return fault


whole_job("job-flap-1-0.1-7", PATTERNS["1-0.1-7"])
whole_job("job-outage-20", [(20.0, 0.0)], "silent")
whole_job("job-outage-60", [(60.0, 0.0)], "carrier", where=(BOTH,))


@case("job-loss-5", "jobs", lasts=8.0, injected=("lost",))
def job_loss(scene):
    scene.mark()
    scene.tell("both loss 0.05")
    scene.wait(8.0)
    scene.tell("both none")


@case("job-strangers", "jobs", where=(BOTH,), lasts=8.0, before=strangers, strangers=True,
      quick=True)
def job_strangers(scene):
    scene.mark()
    scene.wait(8.0)
