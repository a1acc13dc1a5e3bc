# SPDX-License-Identifier: Apache-2.0
"""The sums that the job asks for itself: which are gradients of single parameters, and what the
others are."""

import functools
import sys
import weakref

from . import library as kinds
from .held import Held, parameters_of
from .library import compiling, guarded, library
from .proofs import proofs
from .reads import allowed


class _Parameters:
    """Where the optimizers' parameters lie. Asked about each sum, so the table is made once for all
    of an iteration, and what it says is looked at again."""

    def __init__(self):
        self.forget()

    def forget(self):
        self._optimizers, self._found, self._by_size = 0, {}, {}

    def _update(self):
        if self._optimizers == len(proofs.optimizers):
            return
        self._optimizers, self._found, self._by_size = len(proofs.optimizers), {}, {}
        for _, parameter in parameters_of(proofs.optimizers):
            reference = weakref.ref(parameter)
            self._found[parameter.data_ptr()] = reference
            self._by_size.setdefault(parameter.numel(), []).append(reference)

    def at(self, address):
        self._update()
        parameter = self._found[address]() if address in self._found else None
        return parameter is not None and parameter.data_ptr() == address

    def have_gradient(self, tensor):
        """Whether it is the gradient of one, whoever has put it there."""
        self._update()
        with allowed:
            return any(parameter is not None and parameter.grad is not None and
                       parameter.grad.data_ptr() == tensor.data_ptr() for parameter in
                       (reference() for reference in self._by_size.get(tensor.numel(), ())))


parameters = _Parameters()


def _sums_apart(module):
    """No DistributedDataParallel has summed these gradients already."""
    if module.apart is None:
        module.apart = not any(other.all_sets and not other.by_hand and other.ids & module.ids
                               for other in proofs.modules)
    return module.apart


def _by_hand(tensor, size, group):
    """Marks a sum of one parameter's gradient. False: it is none, or not as backward left it."""
    optimizer, parameter, changes = proofs.gradients.find(tensor, proofs.optimizers)
    if optimizer is None:
        return False
    module = proofs.by_hand(optimizer)
    if not _sums_apart(module) or not module.is_known_change(parameter, changes):
        return False
    at = tensor.data_ptr()
    if at in module.summed:
        module.refuse("a gradient is summed twice before a step")
    place = len(module.summed)
    with allowed:
        module.summed[at] = Held(parameter, parameter.grad)
    module.ranks = sys.modules["torch.distributed"].get_world_size(group)
    module.expected = place + 1
    library().mark_sum(at, size, kinds.BUCKET, module.number, place, place + 1 == module.count)
    if place + 1 == module.count:
        proofs.set_comes(module)
    return True


def _other_kind(tensor):
    """Of a sum that is no gradient as a backward has left it. One rank alone may put something in
    the place of a gradient (a batch without a finite loss): that is held back there too, so that
    all ranks end a plan together."""
    if parameters.at(tensor.data_ptr()):
        return kinds.PARAMETERS
    if proofs.held or parameters.have_gradient(tensor):
        return kinds.HELD_BACK
    return kinds.FORWARD


@guarded
def _note(tensor, group):
    if compiling() or not isinstance(tensor, sys.modules["torch"].Tensor):
        return
    size = tensor.numel() * tensor.element_size()
    if proofs.in_own_hook:
        kind = kinds.COMPRESSED
    elif proofs.in_backward:
        kind = kinds.BACKWARD
    elif proofs.held and _by_hand(tensor, size, group):
        return
    else:
        kind = _other_kind(tensor)
    library().mark_sum(tensor.data_ptr(), size, kind, 0, 0, 0)


def _group_of(arguments, named):
    """As all_reduce(tensor, op, group) has it."""
    return named.get("group", arguments[1] if len(arguments) > 1 else None)


def watch(module):
    if not library().proof or library().layers:   # no plan asks what is summed
        return
    sums = module.all_reduce

    @functools.wraps(sums)
    def all_reduce(tensor, *arguments, **named):
        if library().proof:
            _note(tensor, _group_of(arguments, named))
        return sums(tensor, *arguments, **named)
    module.all_reduce = all_reduce
