# SPDX-License-Identifier: Apache-2.0
"""What the accuracy guard hears of a training: the loss of each iteration, the learning rate, and
now and then the norm of the gradients that an update gets. Nobody waits for a device: values of a
GPU are copied to pinned memory, and are told when an event says that they are there.
"""

import math
import sys

from .library import compiling, guarded, library
from .modes import innermost
from .reads import allowed
from .surroundings import capturing

LOSS, NORM, LATE = 1, 2, 4
_MOST_PARTS = 64      # backward passes of one iteration
_MOST_ON_WAY = 32     # iterations whose values are not there yet; others are left out
_UNKNOWN = math.nan


class _Here:
    """A value on the host."""

    def __init__(self, value):
        self._value = value

    def ready(self):
        return True

    def take(self):
        return self._value


class _Pinned:
    """Pinned memory of a device for so many values, and an event for each."""

    def __init__(self):
        torch = sys.modules["torch"]
        count = 2 * _MOST_ON_WAY + _MOST_PARTS
        memory = torch.empty(count, dtype=torch.float32, pin_memory=True)
        self.free = [(memory[place], torch.cuda.Event()) for place in range(count)]


class _OnWay:
    """A value that a device has yet to make. Where nobody wants it any more its place is given
    back; what is still copied to that comes before the next value, in the order of the stream."""

    def __init__(self, pinned, tensor):
        self._pinned, self._slot, self._value = pinned, pinned.free.pop(), None
        memory, event = self._slot
        memory.copy_(tensor.detach().reshape(()), non_blocking=True)
        event.record(sys.modules["torch"].cuda.current_stream(tensor.device))

    def __del__(self):
        self._pinned.free.append(self._slot)

    def ready(self):
        if self._value is None and self._slot[1].query():
            self._value = float(self._slot[0])
        return self._value is not None

    def take(self):
        """Once it is ready(); several modules may have the same."""
        return self._value


class _Iteration:
    """Of one module, between its first backward and its step."""

    def __init__(self, asked):
        self.asked = asked
        self.parts = []       # the losses of its backward passes; null: one had none
        self.norm = None
        self.passes = 0


class Losses:
    """Those of all modules."""

    def __init__(self):
        self._open = {}       # {number of a module: its iteration}
        self._passes = {}     # {the same: backward passes of the iteration before}
        self._on_way = []     # [(module, iteration, asked, parts, norm, rate)]
        self._pinned = {}     # by device

    @guarded
    def backward_begins(self, modules, tensors):
        """An outermost backward that begins at these. Of an iteration's losses the sum is told:
        whoever accumulates has divided them."""
        self._tell()
        if compiling() or capturing():
            return
        part = None
        for module in modules:
            if not module.watched:
                continue
            iteration = self._open.get(module.number)
            if iteration is None:
                asked = library().watch_training(module.number)
                if not asked & (LOSS | NORM):
                    continue
                iteration = self._open[module.number] = _Iteration(asked)
            iteration.passes += 1
            part = part or self._value(_scalar(tensors))
            if part is None or iteration.passes > _MOST_PARTS:
                iteration.parts = None
            elif iteration.parts is not None:
                iteration.parts.append(part)

    @guarded
    def gradients_are_there(self, modules):
        """What their next update gets is in the gradients, before any clipping."""
        for module in modules:
            iteration = self._open.get(module.number)
            if iteration is not None and iteration.asked & NORM and iteration.norm is None:
                iteration.norm = self._value(_norm(module))

    @guarded
    def iteration_ends(self, module, groups):
        """Its optimizer has made its step behind one whole set of sums."""
        iteration = self._open.pop(module.number, None)
        if iteration is None:
            return
        before, self._passes[module.number] = (self._passes.get(module.number, iteration.passes),
                                               iteration.passes)
        # A shorter window of accumulation has another sum, if its losses are not divided by it.
        parts = iteration.parts if iteration.passes == before else None
        if len(self._on_way) < _MOST_ON_WAY:
            self._on_way.append((module.number, module.all_sets - 1, iteration.asked, parts,
                                 iteration.norm, _rate(groups)))
        self._tell()

    def iteration_breaks_off(self, module):
        self._open.pop(module.number, None)

    def _tell(self):
        """What has come, in its order."""
        while self._on_way:
            number, iteration, asked, parts, norm, rate = self._on_way[0]
            if not all(value.ready() for value in [*(parts or ()), norm] if value is not None):
                return
            del self._on_way[0]
            loss = sum(part.take() for part in parts) if parts else _UNKNOWN
            library().note_training(number, iteration, asked,
                                    math.inf if parts and loss != loss else loss,
                                    norm.take() if norm is not None else _UNKNOWN, rate)

    def _value(self, tensor):
        if tensor is None:
            return None
        with allowed, sys.modules["torch"]._C.DisableTorchFunction():
            if tensor.device.type == "cpu":
                return _Here(tensor.item())
            if tensor.device.type != "cuda":
                return None
            pinned = self._pinned.get(tensor.device)
            if pinned is None:
                pinned = self._pinned[tensor.device] = _Pinned()
            return _OnWay(pinned, tensor) if pinned.free else None


def _scalar(tensors):
    """The loss that backward begins at; None: there is not the one."""
    torch = sys.modules["torch"]
    if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
        tensors = tensors[0]
    plain = type(tensors) is torch.Tensor and innermost() is None
    return tensors if plain and tensors.numel() == 1 and tensors.is_floating_point() else None


def _norm(module):
    """Euclidean, of all gradients; None: it cannot be had at once."""
    torch = sys.modules["torch"]
    if innermost() is not None or capturing():
        return None
    with allowed, torch.no_grad(), torch._C.DisableTorchFunction():
        gradients = [parameter.grad for parameter in module.live() if parameter.grad is not None]
        alike = {(gradient.device, gradient.dtype, gradient.layout) for gradient in gradients}
        if len(alike) != 1 or gradients[0].layout is not torch.strided:
            return None
        return torch.stack(torch._foreach_norm(gradients)).float().norm()


def _rate(groups):
    rates = [group.get("lr") for group in groups]
    return max((float(rate) for rate in rates if isinstance(rate, (int, float))),
               default=_UNKNOWN)


losses = Losses()
