# SPDX-License-Identifier: Apache-2.0
"""Sees a module's gradients cleared."""

import functools

from .library import library
from .proofs import proofs


def watch(module):
    if not library().proof:
        return
    clear = module.Module.zero_grad

    @functools.wraps(clear)
    def noted(self, *arguments, **named):
        clear(self, *arguments, **named)
        proofs.cleared()
    module.Module.zero_grad = noted
