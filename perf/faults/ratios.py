# SPDX-License-Identifier: Apache-2.0
"""A bad link beside a healthy one: deft over both must not be slower than over the healthy one alone."""

import cases
import hosts
import scene as scenes

MESSAGES = 1500      # of 128 KiB: 16 s on one link of 100 Mbit/s
BAR = 0.97


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


def transfer(build, name, seed, links):
    """Seconds that the job takes on these links, link 0 suffering from `name`."""
    early, fault = BESIDE[name]
    case = cases.Case(name, "ratios", fault, ("one",), 0.0, pace=1e6, patience=60.0)
    scene = scenes.Scene(build, case, "one", scenes.DEFT, seed)
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
    alone, _ = transfer(build, "nothing", seed, [1])
    beside, relays = transfer(build, name, seed, [0, 1])
    return {"name": name, "seed": seed, "alone_s": round(alone, 3), "beside_s": round(beside, 3), "ratio": round(alone / beside, 4),
            "relays": relays}


def capacity(build):
    """Gbit/s that plain TCP gets through one relay without a rate or a fault, and what the relay itself says it could carry."""
    import relay   # pylint: disable=import-outside-toplevel
    import tools   # pylint: disable=import-outside-toplevel
    with hosts.create(2, ["unshaped"], "namespaces", relays={0: relay.laid_by(build)}) as network, tools.Bench(build, network) as bench:
        raw = bench.raw_stream([0], seconds=1.0)["gbit_per_s"]
        return raw, network.relays[0].counters()["capacity_gbit_per_s"]
