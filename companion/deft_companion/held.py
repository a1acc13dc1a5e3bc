# SPDX-License-Identifier: Apache-2.0
"""The gradients that a backward has left, until a step. What takes the place of one afterwards, or
what becomes of one before it is summed, is not known."""

import sys
import weakref

from .reads import allowed


class HeldGradients:
    def __init__(self):
        self._noted = None   # {address: [optimizer, parameter, version of its gradient]}

    def forget(self):
        self._noted = None

    def note(self, optimizers):
        self._noted = {}
        with allowed:
            for optimizer, parameter in parameters_of(optimizers):
                gradient = parameter.grad
                if gradient is not None and gradient.layout is sys.modules["torch"].strided:
                    self._noted[gradient.data_ptr()] = [
                        weakref.ref(optimizer), weakref.ref(parameter), gradient._version]

    def note_again(self):
        """The job has clipped the gradients, which is known of it."""
        with allowed:
            for entry in (self._noted or {}).values():
                parameter = entry[1]()
                if parameter is not None and parameter.grad is not None:
                    entry[2] = parameter.grad._version

    def find(self, tensor, optimizers):
        """The optimizer and the parameter whose gradient this is, and how often it has changed in
        place since it was noted. (None, None, 0): it is none."""
        if self._noted is None:
            self.note(optimizers)
        optimizer, parameter, version = self._noted.get(tensor.data_ptr(), (_gone, _gone, 0))
        optimizer, parameter = optimizer(), parameter()
        with allowed:
            gradient = parameter.grad if parameter is not None else None
            if (gradient is None or gradient.data_ptr() != tensor.data_ptr() or
                gradient.numel() != tensor.numel()):
                return None, None, 0
            return optimizer, parameter, gradient._version - version


def _gone():
    return None


def parameters_of(optimizers):
    for optimizer in list(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield optimizer, parameter
