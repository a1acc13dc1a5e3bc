# SPDX-License-Identifier: Apache-2.0
"""Trainings that change or copy what a step that is still to be made uses, or ask for the step in
another way. As layer_turns.py, which runs them."""

import collections

import layer_kinds as kinds
import torch
from torch import nn

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


KINDS = {
    "resets": kinds.job(iterate=kinds.and_then(reset, 6)),
    "forgets": kinds.job(iterate=kinds.and_then(forget, 6)),
    "new_param": kinds.job(iterate=kinds.and_then(copy_one, 4)),
}
