# SPDX-License-Identifier: Apache-2.0
"""Asks the library what it would do with a job (decisions.cpp): its plans, their price, its
guard."""

import json
import os
import subprocess

# As the job that is replayed would be, were it a large one: so much of gradients, computed in so
# many ms, of which a third is forward. Ratios count alone.
GRADIENT_BYTES, COMPUTE_MS, START_MS = 100 * 2 ** 20, 100.0, 0.2
FIRST_BUCKET, BUCKET = 2 ** 20, 25 * 2 ** 20   # DistributedDataParallel's own
RANKS = 2
PROGRAM = os.path.join("perf", "accuracy", "decisions")


def environment(settings):
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("DEFT_", "NCCL_"))}
    return {**inherited, "DEFT_LOG": "none", **settings}


def work_of_layers(model, inputs):
    """[(a layer's own parameters, its share of forward)], in forward order: by multiplications."""
    import torch
    found, handles = [], []

    def hook(layer, given, made):
        made = made[0] if isinstance(made, tuple) else made
        own = [one for one in layer.parameters(recurse=False)]
        places = made.numel() / max(1, made.shape[1 if made.dim() == 4 else -1])
        found.append((own, sum(one.numel() for one in own) * places))
    for layer in model.modules():
        if any(True for _ in layer.parameters(recurse=False)):
            handles.append(layer.register_forward_hook(hook))
    with torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    total = sum(work for _, work in found)
    return [(own, work / total) for own, work in found]


def buckets_of(model, inputs):
    """(DistributedDataParallel's buckets, as lists of places in model.parameters(); the profile
    without its transfers). Parameters that no layer of its own has belong to the layers before."""
    parameters = list(model.parameters())
    place = {id(one): number for number, one in enumerate(parameters)}
    share = [0.0] * len(parameters)
    for own, work in work_of_layers(model, inputs):
        for one in own:
            share[place[id(one)]] += work / len(own)
    scale = GRADIENT_BYTES / sum(4 * one.numel() for one in parameters)
    groups, filled, cap = [[]], 0.0, FIRST_BUCKET
    for number in reversed(range(len(parameters))):
        groups[-1].append(number)
        filled += 4 * scale * parameters[number].numel()
        if filled >= cap:
            groups, filled, cap = [*groups, []], 0.0, BUCKET
    groups, buckets, done = [group for group in groups if group], [], 0.0
    for group in groups:
        part = sum(share[number] for number in group)
        done += part
        size = scale * sum(4 * parameters[number].numel() for number in group)
        buckets.append({"bytes": int(size) // 512 * 512 + 512,
                        "ready_ms": min(done, 1) * COMPUTE_MS * 2 / 3,
                        "forward_ms": part * COMPUTE_MS / 3})
    return groups, {"ranks": RANKS, "forward_ms": COMPUTE_MS / 3,
                    "backward_ms": COMPUTE_MS * 2 / 3, "buckets": buckets}


def with_coverage(profile, coverage):
    """Its transfers take so many times as long as its compute."""
    total = sum(bucket["bytes"] for bucket in profile["buckets"])
    left = coverage * COMPUTE_MS - START_MS * len(profile["buckets"])
    buckets = [{**bucket, "transfer_ms": START_MS + left * bucket["bytes"] / total}
               for bucket in profile["buckets"]]
    return {**profile, "buckets": buckets}


class Decisions:
    """`build`: the folder of a build with perf/accuracy/decisions in it."""

    def __init__(self, build):
        self.program = os.path.join(build, PROGRAM)

    def plans(self, profile, settings, policy=None):
        """What the library would try one after another, each {"plan", "bound", "factors",
        "prediction", "note"}; of a policy, its plan alone."""
        done = subprocess.run([self.program, "plan", *([policy] if policy else [])],
                              input=json.dumps(profile) + "\n", env=environment(settings),
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.program}: {done.stderr.strip() or done.returncode}")
        return json.loads(done.stdout)


class Guard:
    """The library's, of one training."""

    def __init__(self, build, settings):
        self._process = subprocess.Popen([os.path.join(build, PROGRAM), "guard", str(RANKS)],
                                         env=environment(settings), stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def tell(self, **told):
        """What it decides."""
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("decisions guard has ended")
        return json.loads(answer)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
