#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the companion costs a job in an iteration: per bucket, and for backward and step.

usage: deft run --mode deft -- python3 perf/companion/run.py [--json FILE]

The companion's own code runs, with the preloaded library's functions behind it, without a network:
a bucket stands for DDP's. Measured are

- `mark_us`: the mark of a bucket,
- `hook_us`: the whole hook of a 4 KiB bucket, of a sum that is enqueued at once, as NCCL's are,
- `course_us`: the wrapped backward and step of an iteration without a look,
- `grad_us`: one `.grad` of the job's where nothing is watched,
- `divide_4k_us`, `divide_25m_us`: the division that DDP would have done while it copies.
"""

import argparse
import json
import platform
import statistics
import sys
import time
import types

import torch
import torch.nn.parallel.distributed

REPEATS, TIMES = 9, 2000
UNSEEN = 40   # an iteration that is not looked at closely


class Enqueued:
    """A process group whose sum is its own future."""

    @staticmethod
    def allreduce(tensors):
        future = torch.futures.Future()
        future.set_result(tensors)
        return future


class Bucket:
    """As much of a GradBucket as the hook asks for."""

    def __init__(self, tensor):
        self._tensor = tensor

    def buffer(self):
        return self._tensor

    def index(self):
        return 0

    def is_last(self):
        return False


def microseconds(function, times=TIMES):
    function()
    samples = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            function()
        samples.append((time.perf_counter() - start) / times * 1e6)
    return {"median": round(statistics.median(samples), 3), "samples": samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures there")
    options = parser.parse_args()
    from deft_companion import buckets, library, proofs
    if not library.library().proof:
        sys.exit("run.py: no proof is asked for: start it by `deft run --mode deft`")
    parameter = torch.nn.Parameter(torch.zeros(1000))
    module = proofs.Module([parameter])
    small, large = torch.zeros(1000), torch.zeros(25 << 18)
    bucket = Bucket(small)
    buckets._get_future = lambda: lambda work: work
    state = types.SimpleNamespace(module=module, ddp=lambda: None, jobs=None, scale=0.5,
                                  group=Enqueued())
    optimizer = torch.optim.SGD([parameter], 0.1)

    def mark():
        module.expected = 0
        buckets._mark(state, small, bucket)

    def hook():
        module.expected = 0
        buckets._sum(state, bucket).wait()

    module.all_sets = module.sets = 1
    proofs.proofs.add(module)
    proofs.proofs.step_begins(optimizer, (), {})
    proofs.proofs.step_ends(optimizer)
    module.iterations = UNSEEN

    def course():
        proofs.proofs.backward_begins()
        proofs.proofs.backward_ends()
        module.sets, module.looked, module.iterations = 1, False, UNSEEN
        proofs.proofs.step_begins(optimizer, (), {})
        proofs.proofs.step_ends(optimizer)
    figures = {"mark_us": microseconds(mark), "hook_us": microseconds(hook),
               "course_us": microseconds(course),
               "grad_us": microseconds(lambda: parameter.grad),
               "divide_4k_us": microseconds(lambda: small.mul_(0.5)),
               "divide_25m_us": microseconds(lambda: large.mul_(0.5), 20)}
    result = {"torch": torch.__version__, "python": platform.python_version(),
              "machine": platform.machine(), **figures}
    for name, figure in figures.items():
        print(f"{name:14} {figure['median']:10.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
