# SPDX-License-Identifier: Apache-2.0
"""Sees backward begin and end, in the thread that asks for it."""

import functools

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
        begins()
        try:
            return run(*arguments, **named)
        finally:
            ends()
    module.backward = backward
