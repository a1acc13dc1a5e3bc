# SPDX-License-Identifier: Apache-2.0
"""Says that the job clips its gradients, when it first does. Clipping reads gradients between
backward and step; that is known of it, so it is no refusal."""

import functools

from .library import compiling, guarded, library
from .reads import allowed

_NAMES = ("clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
          "get_total_norm")
_told = []


@guarded
def _tell():
    if not _told and not compiling():
        _told.append(True)
        library().set_gradient_clipping(1)


def _known(function):
    @functools.wraps(function)
    def noted(*arguments, **named):
        _tell()
        with allowed:
            return function(*arguments, **named)
    return noted


def watch(module):
    owner = getattr(module, "FullyShardedDataParallel", module)
    if library().wants:
        for name in _NAMES:
            if hasattr(owner, name):
                setattr(owner, name, _known(getattr(owner, name)))
