# SPDX-License-Identifier: Apache-2.0
"""The sums that the job asks for itself: which are gradients of single parameters, and what the
others are."""

import functools
import sys

from . import library as kinds
from .library import compiling, guarded, library
from .proofs import proofs
from .reads import allowed, reads


def _gradients():
    """address: the optimizer whose gradient lies there."""
    found = {}
    for optimizer in list(proofs.optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found[parameter.grad.data_ptr()] = optimizer, parameter.grad.numel()
    return found


def _is_parameter(tensor):
    at = tensor.data_ptr()
    return any(parameter.data_ptr() == at for optimizer in list(proofs.optimizers)
               for group in optimizer.param_groups for parameter in group["params"])


def _by_hand(tensor, size):
    """Marks a sum of one parameter's gradient. False: it is none."""
    with allowed:
        found = _gradients().get(tensor.data_ptr())
    if found is None or found[1] != tensor.numel():
        return False
    module = proofs.by_hand(found[0])
    if any(other is not module and not other.by_hand and other.ids & module.ids and other.all_sets
           for other in proofs.modules):
        return False   # DDP has summed it already
    at = tensor.data_ptr()
    if at in module.summed:
        module.refuse("a gradient is summed twice before a step")
    place = len(module.summed)
    if place == 0 and module.look_due:
        reads.look([module])   # the job may have accumulated before
    module.summed.add(at)
    module.expected = place + 1
    library().mark_sum(at, size, kinds.BUCKET, module.number, place, place + 1 == module.count)
    if place + 1 == module.count:
        proofs.set_comes(module)
    return True


@guarded
def _note(tensor):
    if compiling() or not isinstance(tensor, sys.modules["torch"].Tensor):
        return
    size = tensor.numel() * tensor.element_size()
    if proofs.in_own_hook:
        kind = kinds.COMPRESSED
    elif proofs.in_backward:
        kind = kinds.BACKWARD
    elif proofs.held:
        if _by_hand(tensor, size):
            return
        kind = kinds.PARAMETERS if _is_parameter(tensor) else kinds.HELD_BACK
    else:
        kind = kinds.PARAMETERS if _is_parameter(tensor) else kinds.FORWARD
    library().mark_sum(tensor.data_ptr(), size, kind, 0, 0, 0)


def watch(module):
    if not library().proof:
        return
    sums = module.all_reduce

    @functools.wraps(sums)
    def all_reduce(tensor, *arguments, **named):
        if library().proof:
            _note(tensor)
        return sums(tensor, *arguments, **named)
    module.all_reduce = all_reduce
