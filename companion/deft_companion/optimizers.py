# SPDX-License-Identifier: Apache-2.0
"""Sees the optimizers that the job makes, and each of their steps."""

import functools

from .layers import layers
from .library import compiling, guarded, library
from .proofs import proofs

# Of torch.optim: what they do to an element of a parameter depends on that element's gradients
# alone.
ELEMENTWISE = frozenset(("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
                         "RMSprop", "Rprop", "SGD"))


def from_torch(optimizer):
    return (type(optimizer).__module__ + ".").startswith("torch.optim.")


def kind_of(optimizer, group):
    """One group of parameters as DEFT_OPTIMIZER has it, without its learning rate; "unknown" for
    anything but PyTorch's own classes."""
    if not from_torch(optimizer):
        return "unknown"
    name = type(optimizer).__name__.lower()
    if group.get("amsgrad"):
        return "unknown"  # another second moment: not measured
    parts = []
    if name in ("sgd", "rmsprop"):
        parts.append("momentum=%g" % float(group.get("momentum", 0)))
        if group.get("nesterov"):
            parts.append("nesterov=1")
    elif isinstance(group.get("betas"), (tuple, list)):
        parts.append("momentum=%g" % float(group["betas"][0]))
    return name + (":" + ",".join(parts) if parts else "")


class Told:
    """What deft is told of some optimizers: two different ones, or groups that differ, cannot be
    told apart by a gradient."""

    def __init__(self):
        self._kinds, self._rates = set(), set()

    def add(self, optimizer):
        for group in optimizer.param_groups:
            self._kinds.add(kind_of(optimizer, group))
            rate = group.get("lr")
            self._rates.add(float(rate) if isinstance(rate, (int, float)) else None)
        text = next(iter(self._kinds)) if len(self._kinds) == 1 else "unknown"
        rate = next(iter(self._rates)) if len(self._rates) == 1 else None
        if rate is not None and text != "unknown":
            text += (",lr=%g" if ":" in text else ":lr=%g") % rate
        if library().observe_optimizer(text.encode()) != 0:
            library().observe_optimizer(b"unknown")


def _step_of(kind):
    """The class that has the step of this class."""
    return next((base for base in kind.__mro__ if "step" in vars(base)), None)


@guarded
def _watch_steps(kind):
    owner = _step_of(kind)
    if owner is None or getattr(owner.step, "_deft_watches", False):
        return
    step = owner.step

    @functools.wraps(step)
    def noted(self, *arguments, **named):
        if compiling():
            return step(self, *arguments, **named)
        outermost = proofs.step_begins(self, arguments, named)
        try:
            if outermost and layers.put_off(self, step, arguments, named):
                return None
            return step(self, *arguments, **named)
        finally:
            if outermost:
                proofs.step_ends(self)
    noted._deft_watches = True
    owner.step = noted


def watch(module):
    if not library().wants:
        return
    make = module.Optimizer.__init__
    told = Told()

    @guarded
    def note(optimizer):
        told.add(optimizer)
        if library().proof:
            proofs.add_optimizer(optimizer)
            _watch_steps(type(optimizer))

    @functools.wraps(make)
    def noted(self, *arguments, **named):
        make(self, *arguments, **named)
        note(self)
    module.Optimizer.__init__ = noted
