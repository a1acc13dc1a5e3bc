#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the companion costs a job in an iteration: per bucket, and for backward and step.

usage: DEFT_MAX_DELAY=1 deft run --mode deft -- python3 perf/companion/run.py [--json FILE]

The companion's own code runs, with the preloaded library's functions behind it, without a network:
a bucket stands for DDP's. Measured are

- `mark_us`: the mark of a bucket,
- `hook_us`: the whole hook of a 4 KiB bucket, of a sum that is enqueued at once, as NCCL's are,
- `course_us`: the wrapped backward and step of an iteration without a look,
- `loss_us`: what an iteration takes longer while its loss is told, and `norm_us` the norm of a
  module of 160 parameters (10 million elements), as it is told in some iterations,
- `steps_us`: what one of a job's first 50 iterations takes longer in the mean because the steps of
  a module of 160 parameters (10 million elements, in 6 buckets) are measured in them; `looked_us`:
  those of them that are measured, and `measured_us` an iteration behind them,
- `grad_us`: one `.grad` of the job's where nothing is watched,
- `divide_4k_us`, `divide_25m_us`: the division that DDP would have done while it copies.
"""

import argparse
import gc
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


class Part:
    """Some parameters in a bucket. Their gradients are in its memory."""

    def __init__(self, parameters):
        self._parameters = parameters
        self.buffer = torch.empty(sum(map(torch.numel, parameters)))
        self.views, at = [], 0
        for parameter in parameters:
            self.views.append(self.buffer[at:at + parameter.numel()].view_as(parameter))
            at += parameter.numel()

    def parameters(self):
        return self._parameters

    def comes(self):
        """As after a backward."""
        self.buffer.normal_()
        for parameter, view in zip(self._parameters, self.views):
            parameter.grad = view.clone()


def shapes_of_many():
    """Of 160 parameters."""
    width = 256
    shapes = [shape for _ in range(13) for shape in (
        (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,),
        (4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,))]
    return shapes + 4 * [(width,)]


def losses_microseconds():
    """Of an iteration with one backward pass, but for its norm; and of the norm."""
    from deft_companion import library, losses, proofs
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes_of_many()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    module, loss = proofs.Module(parameters), torch.tensor(1.0, requires_grad=True)
    optimizer, told = torch.optim.SGD(parameters, 0.1), losses.Losses()
    if not library.library().watch_training(module.number) & losses.LOSS:
        sys.exit("run.py: no loss is asked for: start it with DEFT_MAX_DELAY=1")

    def tell():
        told.backward_begins([module], loss)
        told.iteration_ends(module, optimizer.param_groups)

    def norm():
        told._open[module.number] = losses._Iteration(losses.LOSS | losses.NORM)
        told.gradients_are_there([module])
    return {"loss_us": microseconds(tell), "norm_us": microseconds(norm, 20)}


def steps_microseconds():
    """Of the first iterations, of those that are measured, and of iterations behind them. Between
    them the caches hold something else, as in a job. One that another process has interrupted does
    not count: of each iteration the median of the rounds."""
    from deft_companion import proofs, steps
    rounds, measuring = [], set()
    gc.disable()   # it has the garbage of all iterations
    for _ in range(5):
        rounds.append([])
        parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes_of_many()]
        module = proofs.Module(parameters)
        optimizer = torch.optim.AdamW(parameters, 1e-3)
        measured, parts = steps.Steps(module, 2), [Part(parameters[at:at + 27])
                                                   for at in range(0, len(parameters), 27)]
        for iteration in range(60):
            for part in parts:
                part.comes()
            module.sets, start = 1, time.perf_counter()
            for place, part in enumerate(parts):
                if measured.takes_shares:
                    measured.shares_come(place, part, part.buffer)
            measured.step_begins(optimizer)
            rounds[-1].append((time.perf_counter() - start) * 1e6)
            if measured.under_way:
                measuring.add(iteration)
            optimizer.step()
            module.iterations += 1
    took = [statistics.median(some) for some in zip(*rounds)]
    samples = {"steps_us": [statistics.mean(took[2:50])], "measured_us": took[53:],
               "looked_us": [took[iteration] for iteration in sorted(measuring)]}
    return {name: {"median": round(statistics.median(some), 3), "samples": some}
            for name, some in samples.items()}


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
                                  group=Enqueued(), layers=None)
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
        proofs.proofs.enter_backward()
        proofs.proofs.backward_begins()
        proofs.proofs.backward_ends()
        module.sets, module.looked, module.iterations = 1, False, UNSEEN
        proofs.proofs.step_begins(optimizer, (), {})
        proofs.proofs.step_ends(optimizer)
    figures = {"mark_us": microseconds(mark), "hook_us": microseconds(hook),
               "course_us": microseconds(course), **losses_microseconds(), **steps_microseconds(),
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
