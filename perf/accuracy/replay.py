# SPDX-License-Identifier: Apache-2.0
"""One training of two ranks in one process: sweep.py's."""

import math
import os
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from ..jobs import ddp
from . import decisions, delivery, one_process, workloads
from .price import WARM_UP, Bucket, Module, Told

POINTS = 12          # measurements of the test loss in as many iterations as plain makes
COMPLETE = 8         # iterations from one complete measurement of the guard's to the next
BACK = 6             # updates: executor/correlation.h
SWITCH = 4           # iterations that an agreed switch takes
RUINED = 20.0        # of a loss that is not worth going on with


class Ranks:
    """Both ranks' gradients of one model. Running statistics are those of rank 0, as with
    DistributedDataParallel's broadcast."""

    def __init__(self, workload, batch, seed):
        torch.manual_seed(seed)
        self.model, self.batch, self.seed = workload.make(), batch, seed
        self.inputs, self.labels, *self.tests = workload.data()
        self.parameters = list(self.model.parameters())
        self.loss = 0.0

    def gradients(self, iteration):
        """Each rank's, over the number of ranks."""
        parts = workloads.sample_batches(len(self.inputs), self.batch, self.seed, iteration,
                                         decisions.RANKS)
        shares, losses = [], []
        for rank, part in enumerate(parts):
            before = [one.clone() for one in self.model.buffers()] if rank else []
            loss = cross_entropy(self.model(self.inputs[part]), self.labels[part])
            shares.append(torch.autograd.grad(loss / decisions.RANKS, self.parameters))
            losses.append(loss.item())
            for one, old in zip(self.model.buffers(), before):
                one.copy_(old)
        self.loss = sum(losses) / len(losses)
        return shares


class Watched:
    """A guard, and what it is told of each iteration."""

    def __init__(self, build, settings):
        self.guard, self.sums, self.lost = decisions.Guard(build, settings), [], []

    def plan(self, iteration, plan):
        self.sums = []
        self.guard.tell(iteration=iteration, plan=plan)

    def look(self, iteration, shares, update, merged):
        """What the lanes carry, as far as whole gradients tell it: an update's sum."""
        told = {"iteration": iteration}
        if merged:
            bad = int((~torch.isfinite(update)).sum())
            told.update(reduced=float(update.square().sum()) if not bad else None,
                        bytes=4 * update.numel(), merged=merged, not_finite=bad)
            if iteration % COMPLETE == 0:
                told["local"] = [float(share.square().sum()) * merged for share in shares]
            if len(self.sums) == BACK:
                for name, old in (("cosine_before", self.sums[-1]),
                                  ("cosine_earlier", self.sums[0])):
                    both = float(update.norm() * old.norm())
                    if both > 0:
                        told[name] = max(-1.0, min(1.0, float(update @ old) / both))
            self.sums = [*self.sums[1 - BACK:], update]
        return self.guard.tell(**told)


class Training:
    def __init__(self, work, build=None):
        """`work`: model, optimizer, batch, rate, seed, iterations, limit; of one that is not plain
        also answer (what is delivered from the end of the warm-up on) and settings (of the guard,
        null: none)."""
        self.work, self.build = work, build
        self.workload = workloads.WORKLOADS[work["model"]]
        self.ranks = Ranks(self.workload, work["batch"], work["seed"])
        self.groups, _ = decisions.buckets_of(self.ranks.model, self.ranks.inputs[:4])
        self.order = [number for group in self.groups for number in group]
        self.optimizer = ddp.make_optimizer(work["optimizer"], self.ranks.parameters, work["rate"])
        self.points, self.in_force, self.ended, self.losses = [], [], [], []
        self.watched = None
        self.carried = None   # the delivery in force
        self.leaves_at = None

    def flat(self, tensors):
        return torch.cat([tensors[number].reshape(-1) for number in self.order])

    def begin(self, iteration):
        if self.work.get("answer") is None:
            return
        sizes = [sum(self.ranks.parameters[number].numel() for number in group)
                 for group in self.groups]
        self.carried = delivery.Delivery(self.work["answer"], sizes)
        self.in_force.append([iteration, None])
        if self.watched is None and self.work.get("settings") is not None:
            self.watched = Watched(self.build, self.work["settings"])
        if self.watched:
            self.watched.plan(iteration, self.work["answer"]["plan"])

    def end(self, iteration):
        self.carried, self.leaves_at = None, None
        self.in_force[-1][1] = iteration
        self.watched.plan(iteration, None)

    def update(self, iteration, shares):
        """What the optimizer gets, flat."""
        flat = [self.flat(share) for share in shares]
        if iteration == WARM_UP:
            self.begin(iteration)
        if self.carried is not None and iteration == self.leaves_at:
            self.end(iteration)
        total = sum(flat)
        got, merged = (total, 1) if self.carried is None else self.carried.next(total)
        if self.watched:
            if self.carried is None:
                decision = self.watched.guard.tell(iteration=iteration)
            else:
                decision = self.watched.look(iteration, flat, got, merged)
            self.obey(decision, iteration)
        return got

    def obey(self, decision, iteration):
        if not decision["act"]:
            return
        if decision["action"] == "resume" and self.carried is None:
            self.begin(iteration + 1)
        elif decision["action"] in ("fall back", "tighten") and self.carried is not None \
                and self.leaves_at is None:   # nothing tighter is planned here
            self.leaves_at = iteration + SWITCH
            self.ended.append({"iteration": iteration, "reason": decision["reason"]})

    def run(self):
        """Its record."""
        sys.path.insert(0, os.path.join(one_process.ROOT, "companion"))
        from deft_companion import library
        from deft_companion.steps import Steps
        told, began = Told(), time.process_time()
        library._found[:] = [told]
        module = Module(self.ranks.parameters)
        steps, bucket = Steps(module, decisions.RANKS), Bucket(self.ranks.parameters)
        every = max(1, self.workload.iterations // POINTS)
        for iteration in range(self.work["limit"]):
            shares = self.ranks.gradients(iteration)
            if steps.takes_shares:
                bucket.has(shares[0])
                steps.shares_come(0, bucket, bucket.buffer)
            update, at = self.update(iteration, shares), 0
            for number in self.order:
                parameter = self.ranks.parameters[number]
                parameter.grad = update[at:at + parameter.numel()].view_as(parameter).clone()
                at += parameter.numel()
            if iteration < WARM_UP:
                bucket.has([parameter.grad for parameter in self.ranks.parameters])
                steps.step_begins(self.optimizer)
            self.optimizer.step()
            module.iterations += 1
            self.losses.append(self.ranks.loss)
            if (iteration + 1) % every == 0 or iteration + 1 == self.work["limit"]:
                self.measure(iteration + 1)
            if not math.isfinite(self.ranks.loss) or self.ranks.loss > RUINED:
                break
        if self.watched:
            self.watched.guard.close()
        return {"points": self.points, "in_force": self.in_force, "ended": self.ended,
                "rate_curvature": told.rate_curvature, "unmeasured": told.why,
                "ruined_at": (len(self.losses) if len(self.losses) < self.work["limit"] else None),
                "cpu_s": round(time.process_time() - began, 1)}

    def measure(self, iterations):
        loss, right = workloads.test_loss(self.ranks.model, *self.ranks.tests)
        recent = self.losses[-max(1, self.workload.iterations // POINTS):]
        self.points.append([iterations, round(sum(recent) / len(recent), 5), round(loss, 5),
                            round(right, 4)])
