# SPDX-License-Identifier: Apache-2.0
"""Says that the job clips its gradients, when it first does. Clipping reads gradients between
backward and step; that is known of it, so it is no refusal."""

import functools

from .held import Known
from .library import compiling, guarded, library
from .losses import losses
from .proofs import proofs
from .reads import allowed

# Not clip_grad_norm, which calls the next one: its warning has to name the job's line.
_NAMES = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
          "get_total_norm")
_told = []


@guarded
def _tell():
    if not _told and not compiling():
        _told.append(True)
        library().set_gradient_clipping(1)


def clips():
    """The job has clipped gradients."""
    return bool(_told)


@guarded
def _begins():
    losses.gradients_are_there([module for module in proofs.modules if module.by_hand])
    return Known(proofs.held_gradients())


@guarded
def _ends(known):
    if known is not None:
        known.ends()


def _known(function):
    @functools.wraps(function)
    def noted(*arguments, **named):
        if compiling():  # PyTorch's compiler takes the function itself, and nothing of ours
            return function(*arguments, **named)
        _tell()
        known = _begins()
        with allowed:
            result = function(*arguments, **named)
        _ends(known)
        return result
    return noted


def watch(module):
    owner = getattr(module, "FullyShardedDataParallel", module)
    if library().wants:
        for name in _NAMES:
            if hasattr(owner, name):
                setattr(owner, name, _known(getattr(owner, name)))
