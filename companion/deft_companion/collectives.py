# SPDX-License-Identifier: Apache-2.0
"""The sums that the job asks for itself: which are gradients of single parameters, and what the
others are."""

import functools
import sys
import weakref

from . import library as kinds
from .library import compiling, guarded, library
from .proofs import proofs
from .reads import allowed, reads


class _Parameters:
    """Where the optimizers' parameters lie. Asked about each sum, so the table is made once for all
    of an iteration, and what it says is looked at again."""

    def __init__(self):
        self._optimizers, self._found = 0, {}

    def at(self, address):
        if self._optimizers != len(proofs.optimizers):
            self._optimizers, self._found = len(proofs.optimizers), {}
            for _, parameter in _all_parameters():
                self._found[parameter.data_ptr()] = weakref.ref(parameter)
        parameter = self._found[address]() if address in self._found else None
        return parameter is not None and parameter.data_ptr() == address


_parameters = _Parameters()


def _all_parameters():
    for optimizer in list(proofs.optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield optimizer, parameter


def _owner_of(tensor):
    """The optimizer whose gradient this is; None: it is none. The gradients are those that backward
    has left: whatever takes their place afterwards is not known."""
    if proofs.gradients is None:
        proofs.gradients = {parameter.grad.data_ptr(): (weakref.ref(optimizer),
                                                        weakref.ref(parameter))
                            for optimizer, parameter in _all_parameters()
                            if parameter.grad is not None}
    optimizer, parameter = (ref() for ref in
                            proofs.gradients.get(tensor.data_ptr(), (_gone, _gone)))
    gradient = parameter.grad if parameter is not None else None
    is_it = (gradient is not None and gradient.data_ptr() == tensor.data_ptr() and
             gradient.numel() == tensor.numel())
    return optimizer if is_it else None


def _gone():
    return None


def _sums_apart(module):
    """No DistributedDataParallel has summed these gradients already."""
    if module.apart is None:
        module.apart = not any(other.all_sets and not other.by_hand and other.ids & module.ids
                               for other in proofs.modules)
    return module.apart


def _by_hand(tensor, size):
    """Marks a sum of one parameter's gradient. False: it is none."""
    with allowed:
        optimizer = _owner_of(tensor)
    if optimizer is None:
        return False
    module = proofs.by_hand(optimizer)
    if not _sums_apart(module):
        return False
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
        kind = kinds.PARAMETERS if _parameters.at(tensor.data_ptr()) else kinds.HELD_BACK
    else:
        kind = kinds.PARAMETERS if _parameters.at(tensor.data_ptr()) else kinds.FORWARD
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
