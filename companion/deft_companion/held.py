# SPDX-License-Identifier: Apache-2.0
"""The gradients that a backward has left, until a step. What takes the place of one afterwards, or
what becomes of one before it is summed, is not known."""

import sys
import weakref

from .reads import allowed


class Held:
    """A gradient, and how often it had been changed in place when it was noted."""

    def __init__(self, parameter, gradient, optimizer=None):
        self.parameter = weakref.ref(parameter)
        self.optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self.version = gradient._version

    def changes(self):
        """In place, since then. None: the gradient is gone."""
        parameter = self.parameter()
        gradient = parameter.grad if parameter is not None else None
        return None if gradient is None else gradient._version - self.version


class HeldGradients:
    def __init__(self):
        self._noted = None   # {address: Held}

    def forget(self):
        self._noted = None

    def note(self, optimizers):
        self._noted = {}
        with allowed:
            for optimizer, parameter in parameters_of(optimizers):
                gradient = parameter.grad
                if gradient is not None and gradient.layout is sys.modules["torch"].strided:
                    self._noted[gradient.data_ptr()] = Held(parameter, gradient, optimizer)

    def all(self):
        return (self._noted or {}).values()

    def find(self, tensor, optimizers):
        """The optimizer and the parameter whose gradient this is, and how often it has changed in
        place since it was noted. (None, None, 0): it is none."""
        if self._noted is None:
            self.note(optimizers)
        held = self._noted.get(tensor.data_ptr())
        optimizer, parameter = (held.optimizer(), held.parameter()) if held else (None, None)
        with allowed:
            gradient = parameter.grad if parameter is not None else None
            if (gradient is None or gradient.data_ptr() != tensor.data_ptr() or
                gradient.numel() != tensor.numel()):
                return None, None, 0
            return optimizer, parameter, held.changes()


class Known:
    """A change of gradients that is known of the job (it clips): none that counts."""

    def __init__(self, held):
        with allowed:
            self._before = [(one, one.changes()) for one in held]

    def ends(self):
        with allowed:
            for one, before in self._before:
                changes = one.changes()
                if before is not None and changes is not None:
                    one.version += changes - before


def parameters_of(optimizers):
    for optimizer in list(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield optimizer, parameter
