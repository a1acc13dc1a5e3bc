# SPDX-License-Identifier: Apache-2.0
"""Trainings that change or copy what a step that is still to be made uses, or ask for the step in
another way. As layer_turns.py, which runs them."""

import collections

import layer_kinds as kinds
import torch
from torch import nn
from torch.optim import optimizer as optimizers

TURN = 40


def turns(act):
    def iterate(job, iteration):
        job.plain(iteration)
        if iteration == TURN:
            act(job)
    return iterate


def reset(job):
    """As restarts do (ReLoRA)."""
    job.optimizer.state = collections.defaultdict(dict)


def forget(job):
    del job.optimizer.state
    job.optimizer.state = collections.defaultdict(dict)


def copy_one(job):
    job.seen.append(nn.Parameter(job.kept[1]).detach().clone())
    job.seen.append(nn.Parameter(data=job.kept[0]).detach().clone())


# Steps.

def without_closure(job, iteration):
    job.optimizer.zero_grad()
    job.backward()
    if iteration % 2:
        job.optimizer.step(None)
    else:
        job.optimizer.step(closure=None)


def hook_step(job):
    """One that is of the next step on."""
    def look(optimizer, *_):
        job.seen.append(optimizer.param_groups[0]["params"][0].detach().clone())
    job.optimizer.register_step_post_hook(look)


def hook_all_steps(job, iteration):
    def look(optimizer, *_):
        job.seen.append(torch.tensor(len(optimizer.param_groups[0]["params"])))
    job.plain(iteration)
    if iteration == TURN:
        job.hook = optimizers.register_optimizer_step_pre_hook(look)
    elif iteration == kinds.ITERATIONS - 1:
        job.hook.remove()


class Shy(nn.Module):
    """A loss that does not tell its parameters."""

    def forward(self, points):
        return points.square().mean()

    def parameters(self, recurse=True):
        raise RuntimeError("a test's")


def use_shy(job):
    job.seen.append(Shy()(next(job.batches)[0]))


# What is compiled.

def step_compiled(job, iteration):
    if iteration == 0:
        job.compiled = torch.compile(job.optimizer.step, backend="eager")
    job.optimizer.zero_grad()
    job.backward()
    job.compiled()


def clip(parameters):
    total = torch.stack([parameter.grad.square().sum() for parameter in parameters]).sum().sqrt()
    for parameter in parameters:
        parameter.grad.mul_(torch.clamp(0.3 / (total + 1e-6), max=1.0))


def clip_compiled(job, iteration):
    job.optimizer.zero_grad()
    job.backward()
    if iteration == 0:
        job.clip = torch.compile(clip, backend="eager")
    job.clip(job.kept)
    job.optimizer.step()


KINDS = {
    "resets": kinds.job(iterate=kinds.and_then(reset, 6)),
    "forgets": kinds.job(iterate=kinds.and_then(forget, 6)),
    "new_param": kinds.job(iterate=kinds.and_then(copy_one, 4)),
    "step_none": kinds.job(iterate=without_closure),
    "step_hook": kinds.job(iterate=turns(hook_step)),
    "step_hook_of_all": kinds.job(iterate=hook_all_steps),
    "shy": kinds.job(iterate=turns(use_shy)),
    "step_compiled": kinds.job(iterate=step_compiled, bucket_cap_mb=2),
    "clip_compiled": kinds.job(iterate=clip_compiled, bucket_cap_mb=2),
}
if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
    del KINDS["step_hook"], KINDS["step_hook_of_all"]
if kinds.RELEASE < (2, 6):
    del KINDS["step_compiled"], KINDS["clip_compiled"]
