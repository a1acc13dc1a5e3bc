# SPDX-License-Identifier: Apache-2.0
"""Parameters and gradients whose sum is under way: until it is there the object is of a class of
its own, so that whoever uses it in Python is heard first, in whichever thread.

PyTorch asks the class of each tensor that it is given, whether it wants to be asked first
(__torch_function__): at operators, lists of tensors, attributes, methods. The object itself stays
as it is, so nothing that has it notices.
"""

import functools
import inspect
import sys

users = None   # layers.py's: is told of each use


def gradient_of():
    """Tensor.grad, past whatever nn.Parameter has for it."""
    return inspect.getattr_static(sys.modules["torch"].Tensor, "grad")


class Classes:
    """They need torch."""

    def __init__(self, torch):
        kind = torch.nn.Parameter

        class PendingParameter(kind):
            def __new__(cls, *arguments, **named):
                return kind(*arguments, **named)   # type(parameter)(...), as copies are made

            @classmethod
            def __torch_function__(cls, function, types, arguments=(), named=None):
                return _go_on(function, arguments, named or {})

            grad = property(lambda self: users.gradient_is_read(self),
                            lambda self, value: users.gradient_is_set(self, value),
                            lambda self: users.gradient_is_set(self, None))

            def __deepcopy__(self, memo):
                use((self,))
                return self.__deepcopy__(memo)

            def __reduce_ex__(self, protocol):
                use((self,))
                return self.__reduce_ex__(protocol)

            def __repr__(self, **named):
                use((self,))
                return self.__repr__(**named)

        class PendingGradient(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, arguments=(), named=None):
                return _go_on(function, arguments, named or {})

            def __new__(cls, *arguments, **named):
                return torch.Tensor(*arguments, **named)

        self.plain = {PendingParameter: kind, PendingGradient: torch.Tensor}
        self.pending = {plain: pending for pending, plain in self.plain.items()}
        self.parameter = PendingParameter

    def hold(self, tensor):
        """False: it is of another class already."""
        if type(tensor) not in self.pending:
            return False
        tensor.__class__ = self.pending[type(tensor)]
        return True

    def release(self, tensor):
        if type(tensor) in self.plain:
            tensor.__class__ = self.plain[type(tensor)]


@functools.lru_cache(None)
def classes():
    return Classes(sys.modules["torch"])


def pending_among(values):
    from torch.utils._pytree import tree_flatten
    plain = classes().plain
    return [value for value in tree_flatten(values)[0] if type(value) in plain]


def use(values):
    """Afterwards none of them is pending, whatever has become of its sum."""
    found = pending_among(values)
    users.are_used(found)
    for tensor in found:
        classes().release(tensor)
    return bool(found)


def _go_on(function, arguments, named):
    if use((list(arguments), named)):
        return function(*arguments, **named)
    with sys.modules["torch"]._C.DisableTorchFunction():   # it is where nobody finds it
        return function(*arguments, **named)
