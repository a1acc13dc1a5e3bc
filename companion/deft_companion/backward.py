# SPDX-License-Identifier: Apache-2.0
"""Sees backward begin and end, in the thread that asks for it."""

import functools

from .layers import layers
from .library import guarded, library
from .losses import losses
from .proofs import proofs


def watch(module):
    if not library().proof:
        return
    run = module.backward

    @guarded
    def begins(outermost, arguments, named):
        proofs.backward_begins()
        if outermost and library().proof:
            losses.backward_begins(proofs.modules,
                                   arguments[0] if arguments else named.get("tensors"))

    @guarded
    def ends(outermost, failed):
        if outermost and not failed and library().proof:
            losses.gradients_are_there([module for module in proofs.modules
                                        if module.sets == 1 and not module.by_hand])
        proofs.backward_ends()

    @functools.wraps(run)
    def backward(*arguments, **named):
        outermost, failed = not proofs.in_backward, True
        if outermost:
            layers.backward_begins()
        begins(outermost, arguments, named)
        try:
            result = run(*arguments, **named)
            failed = False
            return result
        finally:
            ends(outermost, failed)
            if outermost:
                layers.backward_ends(failed)
    module.backward = backward
