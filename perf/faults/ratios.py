# SPDX-License-Identifier: Apache-2.0
"""A bad link beside a healthy one: deft over both must not be slower than over the healthy one
alone. Two bad links: not slower than Socket over the same two."""

from ..common import hosts, relay
from ..links import tools
from . import cases
from . import scene as scenes

MESSAGES = 1500      # of 128 KiB: 16 s on one link of 100 Mbit/s
BAR = 0.97
ON_BOTH = "-on-both"


def always(*commands):
    def fault(scene):
        for command in commands:
            scene.tell(command)
    return fault


def midrun(*commands):
    def fault(scene):
        scene.wait(1.0)
        always(*commands)(scene)
    return fault


def repeated(act, down, up):
    def fault(scene):
        while scene.job.poll() is None:
            act(scene, False)
            scene.wait(down)
            act(scene, True)
            scene.wait(up)
    return fault


def rates_flap(scene):
    while scene.job.poll() is None:
        scene.tell("both rate 5")
        scene.wait(0.5)
        scene.tell("both rate 100")
        scene.wait(0.5)


# name: (is it there before the job begins?, what happens to link 0)
BESIDE = {
    "nothing": (True, always()),
    "loss-1": (True, always("both loss 0.01")),
    "loss-5": (True, always("both loss 0.05")),
    "duplicate": (True, always("both duplicate 0.05")),
    "reorder": (True, always("both reorder 0.02 3")),
    "jitter": (True, always("both delay 3", "both jitter 10")),
    "bit-errors": (True, always("both biterrors 0.01")),
    "acks-lost": (True, always("ba ackloss 0.5")),
    "hole-from-start": (True, always("both hole 1000")),
    "hole-midrun": (False, midrun("both hole 1000")),
    "crawl": (True, always("both rate 0.5")),
    "rate-flaps": (False, rates_flap),
    "silent": (False, midrun("both blackhole on")),
    "one-way-forth": (False, midrun("ab blackhole on")),
    "one-way-back": (False, midrun("ba blackhole on")),
    "flap-interface": (False, repeated(cases.HOW["interface"], 0.2, 0.2)),
    "flap-silent": (False, repeated(cases.HOW["silent"], 1.0, 1.0)),
}
# The same for both links.
EVERYWHERE = {f"{name}{ON_BOTH}": BESIDE[name]
              for name in ("loss-1", "loss-5", "jitter", "acks-lost")}
BESIDE.update(EVERYWHERE)


def reference(name):
    return "Socket over both" if name in EVERYWHERE else "the healthy link alone"


def transfer(build, name, seed, links, transport=scenes.DEFT):
    """Seconds that the job takes on these links, link 0 suffering from `name`, or both links
    where that says so."""
    early, fault = BESIDE[name]
    where = "both" if name in EVERYWHERE else "one"
    case = cases.Case(name, "ratios", fault, (where,), 0.0, pace=1e6, patience=60.0)
    scene = scenes.Scene(build, case, where, transport, seed)
    try:
        if early:
            fault(scene)
        scene.start(messages=MESSAGES // 2, links=links)
        if not early:
            if not scene.flowing(lead=0.0):
                raise scenes.RunFailed("no messages flow")
            fault(scene)
        result = scene.finish()
        if not result["steady"]:
            raise scenes.RunFailed("; ".join(result["last_words"]) or "the job failed")
        if result["steady"]["wrong_bytes"]:
            raise scenes.RunFailed(f"{result['steady']['wrong_bytes']} bytes wrong")
        return result["steady"]["seconds"], result["relays"]
    finally:
        scene.close()


def measure(build, name, seed):
    """{"name", "alone_s", "beside_s", "ratio", relays}: one pair."""
    if name in EVERYWHERE:
        alone, _ = transfer(build, name, seed, [0, 1], scenes.SOCKET)
    else:
        alone, _ = transfer(build, "nothing", seed, [1])
    beside, relays = transfer(build, name, seed, [0, 1])
    return {"name": name, "seed": seed, "alone_s": round(alone, 3), "beside_s": round(beside, 3),
            "ratio": round(alone / beside, 4), "relays": relays}


def capacity(build):
    """Gbit/s that plain TCP gets through one relay without a rate or a fault, and what the relay
    itself says it could carry."""
    relays = {0: relay.laid_by(build)}
    with (hosts.create(2, ["unshaped"], "namespaces", relays=relays) as network,
          tools.Bench(build, network) as bench):
        raw = bench.raw_stream([0], seconds=1.0)["gbit_per_s"]
        return raw, network.relays[0].counters()["capacity_gbit_per_s"]
