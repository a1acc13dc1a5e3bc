# SPDX-License-Identifier: Apache-2.0
"""Finds out whether anything looks at gradients or parameters between backward and step.

An attribute of nn.Parameter sees every `.grad` in Python. In the iterations that are looked at
closely a dispatch mode sees every operator of the job's thread too.
"""

import inspect
import sys
import threading

from .library import guarded, where

# Operators that hand a tensor on and look at nothing in it.
_HANDS_ON = ("detach", "view", "alias", "_reshape_alias", "as_strided", "t", "transpose", "permute",
             "unsqueeze", "squeeze", "slice", "select", "_unsafe_view", "record_stream")
# What a job that sums gradients by itself may do to one: divide it by a number.
_SCALES = ("div_", "mul_", "_foreach_div_", "_foreach_mul_")
# A look that goes on for longer than that is of something else (an evaluation without modules).
_MOST_OPERATORS = 2000
_MOST_OPERATORS_OF_A_PARAMETER = 20


class _Allowed(threading.local):
    """Who enters it is known to look, and that is told in another way. Of each thread by itself."""

    depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


allowed = _Allowed()


def address(tensor):
    """Of the memory that a tensor lies in; None: it has none."""
    try:
        if hasattr(tensor, "untyped_storage"):
            return tensor.untyped_storage().data_ptr() or None
        return tensor.storage().data_ptr() or None
    except Exception:
        return None


class Watch:
    """Python's `.grad`, in each iteration from backward to step. The attribute is installed once:
    a class that is changed again and again loses the interpreter's caches."""

    def __init__(self):
        self._modules = ()      # whose `.grad` is watched now
        self._property = None
        self._plain = self._watching = None   # the functions of the attribute

    def begin(self, modules):
        if modules:
            if self._property is None:
                self._install()
            self._modules = modules
            self._property.__init__(*self._watching)

    def end(self):
        if self._modules:
            self._modules = ()
            self._property.__init__(*self._plain)

    def _install(self):
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
        # No Python runs where nothing is watched. Both sets of functions stay alive: the
        # interpreter may have noted either at a place of the job's code.
        self._plain = descriptor.__get__, descriptor.__set__, descriptor.__delete__
        self._watching = get, change, remove
        self._property = property(*self._plain)
        torch.nn.Parameter.grad = self._property

    @guarded
    def _note(self, parameter):
        if allowed.depth:
            return
        for module in self._modules:
            if id(parameter) in module.ids:
                module.refuse(f"a gradient is read between backward and step{where()}")


class Reads:
    """From the end of a backward to the beginning of a step nobody looks; from there to the next
    forward nobody changes a parameter."""

    def __init__(self):
        self._watch = Watch()
        self._mode = None        # that is entered; null: none is
        self._class = None       # of it, made when torch is there
        self._modules = ()       # modules that are looked at; empty: none is
        self._after = False      # and that behind their step
        self._forward = None     # the handle of what ends that
        self._left = 0           # operators until the look is given up
        self._gradients, self._parameters = {}, {}   # address: module

    def watch(self, modules):
        self._watch.begin(modules)

    def look(self, modules):
        """The operators between backward and step."""
        if not modules or not self._push():
            return
        self._find((*self._modules, *modules), True)
        for module in modules:
            module.looked = True
        self._see_forward()

    def look_after(self, module):
        """The operators behind its step, until it runs forward. Not where a compiler is at work: it
        leaves code that it meets under a mode as it is, for good."""
        if not _compiles() and self._push():
            self._find((module,), False)
            self._after = True
            self._see_forward()

    def _see_forward(self):
        from torch.nn.modules.module import register_module_forward_pre_hook
        if self._forward is None:
            self._forward = register_module_forward_pre_hook(self._runs_forward)

    @guarded
    def _runs_forward(self, runs, _inputs):
        """Any module, while one is looked at. An evaluation ends the look: it may be of another
        module, or of the one inside of a DistributedDataParallel."""
        used = {id(parameter) for parameter in runs.parameters()}
        used = [module for module in self._modules if used & module.ids]
        if not used and runs.training and sys.modules["torch"].is_grad_enabled():
            return   # a metric, a loss
        if not self._after:
            for module in used:
                module.refuse("a parameter is used between backward and step by a forward "
                              f"pass{where()}")
            self._not_seen()
        self.leave()

    def _find(self, modules, gradients):
        self._modules, self._gradients, self._parameters = modules, {}, {}
        for module in modules:
            for parameter in module.live():
                self._parameters[address(parameter)] = module
                if gradients and parameter.grad is not None:
                    self._gradients[address(parameter.grad)] = module
        self._left = _MOST_OPERATORS + _MOST_OPERATORS_OF_A_PARAMETER * len(self._parameters)
        for table in (self._gradients, self._parameters):
            table.pop(None, None)

    def leave(self):
        self._watch.end()
        if self._mode is not None:
            if self._forward is not None:
                self._forward.remove()
            self._modules, self._after, self._forward = (), False, None
            self._pop()

    # The dispatch mode. The job's own modes come and go in their order, so this one goes only
    # where it is the innermost; else it stays, and looks at nothing.

    def _make(self):
        from torch.utils._python_dispatch import TorchDispatchMode
        reads = self

        class Look(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                if reads._modules and not allowed.depth:
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
        self._left -= 1
        if self._left < 0:
            # The mode itself cannot go from inside of an operator.
            if not self._after:
                self._not_seen()
            self._modules = ()
            return
        name = str(getattr(function, "_schema", function)).split("(")[0].split(".")[0]
        short = name.rsplit("::", 1)[-1]
        if self._after:
            self._look_for_changes(name, short, arguments, named or {})
        elif short not in _HANDS_ON:
            self._look_for_readers(name, short, arguments, named or {})

    def _not_seen(self):
        """What a look has not seen to its end is none."""
        for module in self._modules:
            module.looked = False

    def _look_for_readers(self, name, short, arguments, named):
        first, others = arguments[:1], (arguments[1:], named)
        for at in _addresses(first):
            module = self._gradients.get(at)
            if module is not None and not (module.by_hand and _sums(module, name, short, arguments,
                                                                    named)):
                module.refuse(f"a gradient is used between backward and step by {name}{where()}")
        for at in _addresses(others):
            module = self._gradients.get(at)
            if module is not None:
                module.refuse(f"a gradient is used between backward and step by {name}{where()}")
        for at in _addresses((first, others)):
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


def _sums(module, name, short, arguments, named):
    """The job sums a gradient, or scales it by a number. That number has to be the same in each
    iteration, which the module sees to: what is late has been summed in another one."""
    if name == "c10d::allreduce_":
        return True
    if name.split("::")[0] != "aten" or short not in _SCALES or named or len(arguments) != 2:
        return False
    if not isinstance(arguments[1], (int, float)):
        return False
    module.scales.append((short, arguments[1]))
    return True


reads = Reads()
