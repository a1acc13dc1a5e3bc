# SPDX-License-Identifier: Apache-2.0
"""What the companion does to a job that it watches: each function looks at one thing, as the job
would see it. OUT: rank 0 writes {"<thing>": ...} there."""

import copy
import json
import os
import pickle
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training_kinds import network, samples

RANK = int(os.environ["RANK"])


class Job:
    """Plain DDP, whose first iterations are all looked at."""

    def __init__(self):
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = samples(RANK)

    def backward(self):
        points, labels = next(self.batches)
        self.optimizer.zero_grad()
        cross_entropy(self.model(points), labels).backward()

    def train(self, iterations=4):
        for _ in range(iterations):
            self.backward()
            self.optimizer.step()
        return self


def modes():
    """Dispatch modes that the job runs under."""
    if hasattr(torch._C, "_len_torch_dispatch_stack"):
        return torch._C._len_torch_dispatch_stack()
    return int(torch._C._get_torch_dispatch_mode() is not None)


def carry(ddp, name):
    """The ways in which a job takes its model somewhere else; those that fail."""
    failed = []
    for way in (lambda: copy.deepcopy(ddp), lambda: pickle.loads(pickle.dumps(ddp)),
                lambda: torch.save(ddp, name + f"{'' if RANK == 0 else RANK}.pt")):
        try:
            way()
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    return failed


def carried():
    job = Job()
    failed = carry(job.model, "before")
    return failed + carry(job.train().model, "after")


def modules_of(model):
    """What the companion has of a model."""
    from deft_companion.proofs import proofs
    ids = frozenset(id(parameter) for parameter in model.parameters())
    return [module for module in proofs.modules if module.ids == ids]


def copies_train():
    """A copy sums its own gradients, and is watched itself."""
    first = Job()
    second = copy.deepcopy(first.model)
    points, labels = next(first.batches)
    alone = copy.deepcopy(first.model.module)
    cross_entropy(alone(points), labels).backward()
    wanted = [parameter.grad / dist.get_world_size() for parameter in alone.parameters()]
    for gradient in wanted:
        dist.all_reduce(gradient)
    found = []
    for model in (first.model, second):
        cross_entropy(model(points), labels).backward()
        found.append([all(torch.equal(parameter.grad, gradient) for parameter, gradient in
                          zip(model.parameters(), wanted, strict=True)),
                      [module.all_sets for module in modules_of(model)]])
    return found


class Counts(nn.Module):
    """A layer that notes under how many modes it ran."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, points):
        self.seen.append(modes())
        return points


def modes_in_evaluation():
    """An evaluation of the module inside, and one of another module."""
    found = {}
    job = Job().train()
    seen = []
    job.model.module.add_module("counts", Counts(seen))
    with torch.no_grad():
        job.model.module(torch.zeros(4, 12))
    found["module"] = seen[-1]
    other = nn.Sequential(nn.Linear(12, 5), Counts(seen)).eval()
    job.train(1)
    other(torch.zeros(4, 12))
    found["other"] = seen[-1]
    return found


def inference_between():
    """PyTorch's inference mode, begun while the job is looked at. What comes behind it works."""
    job = Job().train()
    job.backward()
    with torch.inference_mode():
        job.model.module(torch.zeros(4, 12))
    with torch.autograd.profiler.record_function("behind"):
        job.optimizer.step()
    job.train(1)
    return modes()


def modes_in_a_worker():
    """A process that is forked while the job is looked at."""
    job = Job().train()
    job.backward()
    worker = os.fork()
    if worker == 0:
        try:
            os._exit(modes())
        finally:
            os._exit(99)
    found = {"worker": os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), "job": modes()}
    job.optimizer.step()
    return found


def count_calls(function):
    """Calls of any function, of Python's and of C's, while it runs."""
    count = [0]

    def profile(_frame, event, _argument):
        count[0] += event in ("call", "c_call")
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count[0]


def calls_for_sums():
    """Of as many parameters as that, summed by hand."""
    counts = []
    for many in (40, 160):
        parameters = [nn.Parameter(torch.ones(300)) for _ in range(many)]
        optimizer = torch.optim.SGD(parameters, 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            sum(parameter.sum() for parameter in parameters).backward()

            def sums(parameters=parameters):
                for parameter in parameters:
                    dist.all_reduce(parameter.grad)
            counted = count_calls(sums)
            optimizer.step()
        counts.append(counted)
    return counts


def attributes():
    """How often nn.Parameter itself has changed."""
    job = Job()
    found = []
    for _ in range(6):
        for act in (job.backward, job.optimizer.step):
            act()
            now = vars(nn.Parameter).get("grad")   # kept: another one is at another address
            if not any(now is one for one in found):
                found.append(now)
    return len(found)


def read_beside_a_clipping_thread():
    """Clipping in one thread does not hide what another reads."""
    job = Job().train(2)
    inside, over = threading.Event(), threading.Event()

    def slowly():
        inside.set()
        over.wait(60)
        yield nn.Parameter(torch.zeros(1))
    thread = threading.Thread(target=torch.nn.utils.clip_grad_norm_, args=(slowly(), 1.0))
    thread.start()
    inside.wait(60)
    job.backward()
    float(next(job.model.parameters()).grad.sum())
    over.set()
    thread.join()
    job.optimizer.step()
    return [module.standing.name for module in modules_of(job.model)]


def sums_alone():
    """Of collectives a gradient may be summed and no more. Gloo's can be seen as operators; the
    software device's process group is Python's own."""
    group = dist.new_group(backend="gloo")
    for more in ((), (dist.broadcast,)):
        parameter = nn.Parameter(torch.ones(300))
        optimizer = torch.optim.SGD([parameter], 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sum().backward()
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= 2
            for send in more:
                send(parameter.grad, 0, group=group)
            optimizer.step()


def complaints():
    """Where nobody hears them: what gets into the job's output, or is raised into it."""
    import contextlib
    import io

    from deft_companion import say
    closed, out = io.StringIO(), io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(out):
        for stream in (None, closed):
            with contextlib.redirect_stderr(stream):
                say("a complaint")
    return out.getvalue()


def wanted_when_it_ends():
    """The library hears of an end before the marks stop."""
    from deft_companion.library import library
    end, seen = library().companion_end, []

    def note(why):
        seen.append(library().wants)
        end(why)
    library().companion_end = note
    library().stand_down("a test")
    return seen


THINGS = (carried, copies_train, modes_in_evaluation, inference_between, modes_in_a_worker,
          calls_for_sums, attributes, read_beside_a_clipping_thread, sums_alone, complaints,
          wanted_when_it_ends)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    dist.init_process_group("nccl")
    seen = {thing.__name__: thing() for thing in THINGS}
    if RANK == 0:
        with open(os.environ["OUT"], "w", encoding="utf-8") as file:
            json.dump(seen, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
