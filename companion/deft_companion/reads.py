# SPDX-License-Identifier: Apache-2.0
"""Finds out whether anything looks at gradients or parameters between backward and step.

An attribute of nn.Parameter sees every `.grad` in Python. In the few iterations that are looked at
closely a dispatch mode sees every operator of the job's thread too.
"""

import inspect
import sys

from .library import guarded, where

# Operators that hand a tensor on and look at nothing in it.
_HANDS_ON = ("detach", "view", "alias", "_reshape_alias", "as_strided", "t", "transpose", "permute",
             "unsqueeze", "squeeze", "slice", "select", "_unsafe_view", "record_stream")
# What a job that sums gradients by itself may do to one: divide it.
_SCALES = ("div_", "mul_", "_foreach_div_", "_foreach_mul_")


class _Allowed:
    """Who enters it is known to look, and that is told in another way."""

    depth = 0

    def __enter__(self):
        _Allowed.depth += 1

    def __exit__(self, *_):
        _Allowed.depth -= 1


allowed = _Allowed()


def address(tensor):
    """Of the memory that a tensor lies in; None: it has none."""
    try:
        if hasattr(tensor, "untyped_storage"):
            return tensor.untyped_storage().data_ptr() or None
        return tensor.storage().data_ptr() or None
    except Exception:
        return None


class Reads:
    """From the end of a backward to the beginning of a step nobody looks; from there to the next
    forward nobody changes a parameter."""

    def __init__(self):
        self._mode = None        # that is entered; null: none is
        self._class = None       # of it, made when torch is there
        self._watched = ()       # modules whose `.grad` is watched now
        self._property = None
        self._modules = ()       # modules that are looked at; empty: none is
        self._after = False      # and that behind their step
        self._gradients, self._parameters = {}, {}   # address: module

    def watch(self, modules):
        """Python's `.grad`, in each iteration: an attribute that comes and goes costs little."""
        if modules:
            self._property = self._property or self._make_property()
            self._watched = modules
            sys.modules["torch"].nn.Parameter.grad = self._property

    def look(self, modules):
        """The operators between backward and step."""
        if not modules or not self._push():
            return
        self._find(modules, True)
        for module in modules:
            module.looked = True

    def look_after(self, module):
        """The operators behind its step, until it runs forward. Not where a compiler is at work: it
        leaves code that it meets under a mode as it is, for good."""
        if module.runs_forward and not _compiles() and self._push():
            self._find((module,), False)
            self._after = True
            module.runs_forward(self.leave)

    def _find(self, modules, gradients):
        self._modules, self._gradients, self._parameters = modules, {}, {}
        for module in modules:
            for parameter in module.live():
                self._parameters[address(parameter)] = module
                if gradients and parameter.grad is not None:
                    self._gradients[address(parameter.grad)] = module
        for table in (self._gradients, self._parameters):
            table.pop(None, None)

    def leave(self):
        if self._watched:
            self._watched = ()
            del sys.modules["torch"].nn.Parameter.grad
        if self._mode is not None:
            self._modules, self._after = (), False
            self._pop()

    # The dispatch mode. The job's own modes come and go in their order, so this one goes only
    # where it is the innermost; else it stays, and looks at nothing.

    def _make(self):
        from torch.utils._python_dispatch import TorchDispatchMode
        reads = self

        class Look(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                if reads._modules and not _Allowed.depth:
                    reads._look(function, arguments, named)
                return function(*arguments, **(named or {}))
        return Look

    @staticmethod
    def _innermost():
        from torch.utils import _python_dispatch as dispatch
        if hasattr(dispatch, "_get_current_dispatch_mode"):
            return dispatch._get_current_dispatch_mode()
        return sys.modules["torch"]._C._get_torch_dispatch_mode()

    def _push(self):
        if self._mode is not None or self._innermost() is not None:
            return self._mode is not None and self._innermost() is self._mode
        self._class = self._class or self._make()
        self._mode = self._class()
        self._mode.__enter__()
        return True

    def _pop(self):
        if self._mode is not None and self._innermost() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    @guarded
    def _look(self, function, arguments, named):
        name = str(getattr(function, "_schema", function)).split("(")[0].split(".")[0]
        short = name.rsplit("::", 1)[-1]
        if self._after:
            self._look_for_changes(name, short, arguments, named or {})
        elif short not in _HANDS_ON:
            self._look_for_readers(name, short, arguments, named or {})

    def _look_for_readers(self, name, short, arguments, named):
        for at in _addresses((arguments, named)):
            module = self._gradients.get(at)
            if module is not None and not (module.by_hand and _sums(name, short)):
                module.refuse(f"a gradient is used between backward and step by {name}{where()}")
            module = self._parameters.get(at)
            if module is not None:
                module.refuse(f"a parameter is used between backward and step by {name}{where()}")

    def _look_for_changes(self, name, short, arguments, named):
        """What an operator changes comes first, or as out=."""
        changed = arguments[:1] if short.endswith("_") else ()
        for at in _addresses((changed, named.get("out"))):
            module = self._parameters.get(at)
            if module is not None:
                module.refuse(f"a parameter is changed outside of a step by {name}{where()}")

    # Python's view.

    def _make_property(self):
        torch = sys.modules["torch"]
        descriptor = inspect.getattr_static(torch.Tensor, "grad")

        def get(parameter):
            self._note(parameter)
            return descriptor.__get__(parameter, type(parameter))

        def change(parameter, value):
            self._note(parameter)
            descriptor.__set__(parameter, value)

        def remove(parameter):
            self._note(parameter)
            descriptor.__delete__(parameter)
        return property(get, change, remove)

    @guarded
    def _note(self, parameter):
        if _Allowed.depth:
            return
        for module in self._watched:
            if id(parameter) in module.ids:
                module.refuse(f"a gradient is read between backward and step{where()}")


def _compiles():
    """The job has compiled something, or is about to."""
    dynamo = (sys.modules.get("torch._dynamo.eval_frame"),
              sys.modules.get("torch._dynamo.convert_frame"))
    # What is merely kept from being compiled has no backend there.
    backends = getattr(dynamo[0], "cached_backends", {}).values()
    return (any(backend is not None for backend in backends) or
            getattr(dynamo[1], "FRAME_COUNTER", 0) > 0)


def _addresses(values):
    from torch.utils._pytree import tree_flatten
    tensor = sys.modules["torch"].Tensor
    return [address(value) for value in tree_flatten(values)[0] if isinstance(value, tensor)]


def _sums(name, short):
    return short in _SCALES or name.startswith("c10d")


reads = Reads()
