# SPDX-License-Identifier: Apache-2.0
"""Finds out whether anything uses gradients or parameters between backward and step.

An attribute of nn.Parameter sees every `.grad` in Python. In the iterations that are looked at
closely a dispatch mode sees every operator of the job's thread too.
"""

import inspect
import os
import sys
import threading

from .library import guarded, library, where
from .modes import Mode, address, addresses_in

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


class Watch:
    """Python's `.grad`, in each iteration from backward to step. The attribute is installed once:
    a class that is changed again and again loses the interpreter's caches."""

    def __init__(self):
        self._modules = ()      # whose `.grad` is watched now
        self._property = None
        self._plain = self._watching = None   # the functions of the attribute
        self._disable = None    # hides a function from PyTorch's compiler; null: none is loaded
        self._hidden = None     # the functions that were

    def begin(self, modules):
        if modules:
            if self._property is None:
                self._install()
            self._modules = tuple(modules)
            self._property.__init__(*self._watching)

    def compilers_come(self, disable):
        """PyTorch's would take the functions of the attribute into what it compiles, where they
        fail. What is disabled it calls instead."""
        self._disable = disable
        if self._property is not None:
            self._hide()
            if self._modules:
                self._property.__init__(*self._watching)

    def _hide(self):
        self._hidden = self._watching
        self._watching = [self._disable(function) for function in self._watching]

    def end(self, modules=None):
        """Of these; null: of all."""
        if self._modules:
            self._modules = _without(self._modules, modules)
            if not self._modules:
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
        if self._disable is not None:
            self._hide()

    @guarded
    def _note(self, parameter):
        if allowed.depth:
            return
        for module in self._modules:
            if id(parameter) in module.ids:
                module.refuse(f"a gradient is read between backward and step{where()}")


def _without(modules, gone):
    return () if gone is None else tuple(one for one in modules if one not in gone)


class Reads:
    """From the end of a backward to the beginning of its module's step nobody looks."""

    def __init__(self):
        self._watch = Watch()
        self._mode = Mode(self._sees)
        self._modules = ()       # modules that are looked at; empty: none is
        self._forward = None     # the handle of what ends that
        self._left = 0           # operators until the look is given up
        self._gradients, self._parameters = {}, {}   # address: module

    def watch(self, modules):
        self._watch.begin(modules)

    def compilers_come(self, disable):
        self._watch.compilers_come(disable)

    def look(self, modules):
        """Begins to see the operators."""
        if not modules:
            return
        if not self._mode.push():
            for module in modules:
                module.cut = "the job runs under a dispatch mode of its own"
            return
        self._find(modules)
        for module in modules:
            module.looked = True
        if self._forward is None:
            from torch.nn.modules.module import register_module_forward_pre_hook
            self._forward = register_module_forward_pre_hook(self._runs_forward)

    def end(self, modules):
        """Their step begins: what was looked at of them was seen to its end."""
        self._watch.end(modules)
        self._modules = _without(self._modules, modules)
        self._go_where_done()

    def drop(self, why=""):
        """Nothing is looked at. What was not seen to its end counts for nothing."""
        self._watch.end()
        self._cut(why)
        self._go_where_done()

    @property
    def active(self):
        return bool(self._modules)

    def pause(self):
        """Another optimizer steps, of which it is known that it uses none of these modules. No
        mode is there meanwhile: it would cost that step, and a compiler its code."""
        if self._modules:
            self._mode.pop()

    def resume(self):
        if self._modules and not self._mode.push():
            self.drop("the job runs under a dispatch mode of its own")

    def _go_where_done(self):
        if self._modules:
            return
        if self._forward is not None:
            self._forward.remove()
            self._forward = None
        self._mode.pop()

    def _cut(self, why):
        for module in self._modules:
            module.looked, module.cut = False, why or module.cut
        self._modules = ()

    @guarded
    def _runs_forward(self, runs, _inputs):
        """Any module, while some are looked at. An evaluation ends the look: it may be of another
        module, or of the one inside of a DistributedDataParallel."""
        used = {id(parameter) for parameter in runs.parameters()}
        used = [module for module in self._modules if used & module.ids]
        if not used and runs.training and sys.modules["torch"].is_grad_enabled():
            return   # a metric, a loss
        for module in used:
            if module.summing:   # else the job accumulates
                module.refuse("a parameter is used between backward and step by a forward "
                              f"pass{where()}")
        self.drop(f"a forward pass{where()}")

    def _find(self, modules):
        self._modules, self._gradients, self._parameters = tuple(modules), {}, {}
        for module in modules:
            for parameter in module.live():
                self._parameters[address(parameter)] = module
                if parameter.grad is not None:
                    self._gradients[address(parameter.grad)] = module
        self._left = _MOST_OPERATORS + _MOST_OPERATORS_OF_A_PARAMETER * len(self._parameters)
        for table in (self._gradients, self._parameters):
            table.pop(None, None)

    @guarded
    def _sees(self, function, arguments, named):
        if not self._modules or allowed.depth:
            return
        self._left -= 1
        if self._left < 0:
            # The mode itself cannot go from inside of an operator.
            self._cut(f"many operators{where()}")
            return
        name = str(getattr(function, "_schema", function)).split("(")[0].split(".")[0]
        short = name.rsplit("::", 1)[-1]
        if short not in _HANDS_ON:
            self._look_for_readers(name, short, arguments, named)

    def _look_for_readers(self, name, short, arguments, named):
        first, others = arguments[:1], (arguments[1:], named)
        for at in addresses_in(first):
            module = self._gradients.get(at)
            if self._is_in(module) and not (module.by_hand and
                                            _sums(module, name, short, arguments, named)):
                module.refuse(f"a gradient is used between backward and step by {name}{where()}")
        for at in addresses_in(others):
            module = self._gradients.get(at)
            if self._is_in(module):
                module.refuse(f"a gradient is used between backward and step by {name}{where()}")
        for at in addresses_in((first, others)):
            module = self._parameters.get(at)
            if self._is_in(module):
                module.refuse(f"a parameter is used between backward and step by {name}{where()}")

    def _is_in(self, module):
        """It is still looked at: its step may be over, and another one's to come."""
        return module is not None and module in self._modules


def _sums(module, name, short, arguments, named):
    """The job sums a gradient, or scales it by a number, which the module judges."""
    if name == "c10d::allreduce_":
        return True
    if name.split("::")[0] != "aten" or short not in _SCALES or named or len(arguments) != 2:
        return False
    if not isinstance(arguments[1], (int, float)):
        return False
    module.scales.append((short, arguments[1]))
    return True


reads = Reads()


def watch(module):
    """torch._dynamo.decorators."""
    if library().proof:
        reads.compilers_come(module.disable)


# A worker that is forked meanwhile, to load data, is not of the job's course.
os.register_at_fork(after_in_child=reads.drop)
