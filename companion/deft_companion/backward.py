# SPDX-License-Identifier: Apache-2.0
"""Sees backward begin and end, in the thread that asks for it."""

import functools

from .layers import layers
from .library import guarded, library
from .proofs import proofs


def watch(module):
    if not library().proof:
        return
    run = module.backward

    @guarded
    def begins():
        proofs.backward_begins()

    @guarded
    def ends():
        proofs.backward_ends()

    @functools.wraps(run)
    def backward(*arguments, **named):
        outermost, failed = not proofs.in_backward, True
        if outermost:
            layers.backward_begins()
        begins()
        try:
            result = run(*arguments, **named)
            failed = False
            return result
        finally:
            ends()
            if outermost:
                layers.backward_ends(failed)
    module.backward = backward
