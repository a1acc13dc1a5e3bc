# SPDX-License-Identifier: Apache-2.0
"""What else of PyTorch's uses parameters, gradients or an optimizer's state, or clears gradients:
where layers may wait for their own gradients, it is heard first."""

import atexit
import functools
import inspect

from . import say
from .layers import layers
from .library import library, where
from .pending import pending_among, use

# They hand tensors to C++ that nobody asks.
_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all",
                "all_to_all_single", "broadcast", "gather", "irecv", "isend", "recv", "reduce",
                "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "_all_gather_base",
                "_reduce_scatter_base")
_OF_OPTIMIZERS = ("add_param_group", "load_state_dict", "state_dict", "__getstate__",
                  "__setstate__", "register_step_pre_hook", "register_step_post_hook")
_OF_ALL_OPTIMIZERS = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")


def _wrap(owner, name, act):
    """act(function, arguments, named) in the place of a function."""
    function = getattr(owner, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def heard(*arguments, **named):
        if not layers.under_way or layers.finishing:
            return function(*arguments, **named)
        return act(function, arguments, named)
    setattr(owner, name, heard)


def _settle(function, arguments, named):
    layers.settle(where)
    return function(*arguments, **named)


def _settle_at_end(function, arguments, named):
    """Of a process group, which ends whatever has become of its sums."""
    try:
        layers.settle(where)
    except Exception as error:
        say(f"the latest step was not made as a whole before destroy_process_group(): {error}")
    return function(*arguments, **named)


def _settle_if_used(function, arguments, named):
    if pending_among((list(arguments), named)):
        layers.settle(where)
    layers.await_others()
    return function(*arguments, **named)


def _use_if_pending(values):
    if pending_among(values):
        use(values)


def _uses(function, arguments, named):
    _use_if_pending((list(arguments), named))
    return function(*arguments, **named)


def _hear_functions(owner):
    """autograd.Function, whose forward may be an extension's."""
    apply = inspect.getattr_static(owner, "apply")

    @functools.wraps(owner.apply)
    def heard(cls, *arguments, **named):
        if layers.under_way and not layers.finishing:
            _use_if_pending((list(arguments), named))
        return apply.__get__(None, cls)(*arguments, **named)
    owner.apply = classmethod(heard)


def _hear_copies(owner):
    """nn.Parameter(...), which asks the class of what it is given itself."""
    make = owner.__new__

    @functools.wraps(make)
    def heard(cls, *arguments, **named):
        if layers.under_way and not layers.finishing:
            _use_if_pending((list(arguments), named))
        return make(cls, *arguments, **named)
    owner.__new__ = staticmethod(heard)


def _clears(function):
    takes = inspect.signature(function)

    def act(function, arguments, named):
        bound = takes.bind(*arguments, **named)
        bound.apply_defaults()
        return layers.clear(bound.arguments["set_to_none"], function, arguments, named)
    return act


def _stops(owner, name, why):
    """What is compiled or captured asks nobody when it runs."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def heard(*arguments, **named):
        layers.stop(why)
        return function(*arguments, **named)
    setattr(owner, name, heard)


def _settle_for(optimizer):
    if layers.under_way and layers.concern(optimizer):
        layers.settle(where)


def _state_of(optimizer):
    _settle_for(optimizer)
    try:
        return vars(optimizer)["state"]
    except KeyError:
        raise AttributeError("state") from None


def _set_state(optimizer, state):
    _settle_for(optimizer)   # its steps are made with the one before
    vars(optimizer)["state"] = state


def _delete_state(optimizer):
    _settle_for(optimizer)
    del vars(optimizer)["state"]


def watch(module):
    if not library().layers:
        return
    if module.__name__ == "torch.optim.optimizer":
        owner = module.Optimizer
        _wrap(owner, "zero_grad", _clears(owner.zero_grad))
        for name in _OF_OPTIMIZERS:
            _wrap(owner, name, _settle)
        for name in _OF_ALL_OPTIMIZERS:
            _wrap(module, name, _settle)
        owner.state = property(_state_of, _set_state, _delete_state)
    elif module.__name__ == "torch.nn.modules.module":
        _wrap(module.Module, "zero_grad", _clears(module.Module.zero_grad))
    elif module.__name__ == "torch.nn.parameter":
        _hear_copies(module.Parameter)
    elif module.__name__ == "torch.autograd.function":
        _hear_functions(module.Function)
    elif module.__name__ == "torch._functorch.eager_transforms":
        _wrap(module, "_wrap_all_tensors", _uses)
    elif module.__name__ == "torch.cuda.graphs":
        _stops(module.CUDAGraph, "capture_begin", "the job captures a CUDA graph")
    elif module.__name__ == "torch._dynamo.eval_frame":
        for name in ("optimize", "optimize_assert"):
            _stops(module, name, "the job compiles (torch.compile)")
    else:
        for name in _COLLECTIVES:
            _wrap(module, name, _settle_if_used)
        _wrap(module, "destroy_process_group", _settle_at_end)


@atexit.register
def _at_exit():
    try:
        layers.settle()
    except Exception:
        pass   # the job is over, and its sum has failed
