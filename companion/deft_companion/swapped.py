# SPDX-License-Identifier: Apache-2.0
"""Parameters that are swapped for others (torch.utils.swap_tensors(), which converting and loading
modules may be set to). PyTorch refuses that of a tensor to which anybody has a weak reference, so
none is kept here."""

import functools

from .collectives import parameters
from .layers import layers
from .library import guarded, library, where
from .proofs import proofs


@guarded
def _let_go(tensors):
    proofs.let_go({id(tensor) for tensor in tensors})
    parameters.forget()


def watch(module):
    swap = getattr(module, "swap_tensors", None)   # since PyTorch 2.3
    if swap is None or not library().proof:
        return

    @functools.wraps(swap)
    def swap_tensors(*tensors, **named):
        layers.settle(where)
        _let_go((*tensors, *named.values()))
        return swap(*tensors, **named)
    module.swap_tensors = swap_tensors
