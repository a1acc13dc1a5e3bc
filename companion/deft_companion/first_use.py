# SPDX-License-Identifier: Apache-2.0
"""The first use of each parameter in a forward pass, and who uses its memory by another tensor."""

import sys

from .library import guarded, where
from .modes import Mode, address, addresses_in
from .pending import classes
from .proofs import looked_at
from .reads import allowed
from .surroundings import stream_of


class FirstUse:
    """Looks while sums are under way, and only then."""

    def __init__(self, layers):
        self._layers = layers
        self.forward = None      # the DistributedDataParallel that runs forward; null: none does
        self._device = self._of_steps = None   # of these steps
        self._begun = None       # the stream that its forward pass began on; null: there are others
        self._modules = ()       # of these
        self._hooks = ()
        self._aliases = Aliases(layers)

    def begin(self, all_layers):
        from torch.nn.modules import module
        if not self._hooks:
            self._hooks = (module.register_module_forward_pre_hook(self._begins),
                           module.register_module_forward_hook(self._ends))
        self._modules = [layers.module for layers in all_layers]
        if any(looked_at(layers.iterations) for layers in all_layers):
            self._aliases.begin(self._layers.sums)

    def end(self):
        """Nothing is under way any more."""
        self._aliases.end()
        if self.forward is None or self._of_steps is None:
            self.drop()

    def drop(self):
        """Nor is anything looked at in what is left of the forward pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.forward = (), None
        self._aliases.end()

    def _begins(self, module, _inputs):
        """Any module, before it runs forward. What fails here is a sum's or the optimizer's."""
        if not self._may_go_on(module):
            self._layers.settle(where)
        used = _used_by(module)
        if used:
            self._layers.are_used(used)
        else:
            self._layers.await_others()
        if self.forward is not None and self._of_steps is not None:
            self._follow()

    @guarded
    def _may_go_on(self, module):
        """Nothing but its own parameters need be there. What a module of the job's says of itself
        may fail."""
        if self.forward is not None:
            # PyTorch chooses other operators there for tensors that are not of its own classes.
            return sys.modules["torch"].is_grad_enabled() or not _has_pending(module)
        if self._is_foreseen(module):
            self.forward = module
            self._note_streams()
            return True
        return self._contains(module) or not _has_pending(module)

    def _ends(self, module, _inputs, _outputs):
        if module is self.forward:
            self._layers.settle()
            self.drop()

    def _note_streams(self):
        first = self._layers.sums[0]
        self._device, self._of_steps = first.layout.device, first.stream
        self._begun = stream_of(self._device)

    def _follow(self):
        """A step is made on the stream of backward when the first module with its parameters runs.
        What runs on another stream may have waited for that one before."""
        now = stream_of(self._device)
        if now != self._begun:
            self._begun = None
            if now != self._of_steps:
                now.wait_stream(self._of_steps)
            self._refuse_streams()

    @guarded
    def _refuse_streams(self):
        for module in self._modules:
            module.refuse(f"its forward pass runs on several streams{where()}")

    def _is_foreseen(self, module):
        return (_trains(module) and
                any(module is one.layers.ddp() for one in self._layers.sums) and
                all(one.step is not None for one in self._layers.sums))

    def _contains(self, module):
        """It is around a DistributedDataParallel, which comes next."""
        return _trains(module) and any(one is each.layers.ddp() for one in module.modules()
                                       for each in self._layers.sums[:1])


def _trains(module):
    return module.training and sys.modules["torch"].is_grad_enabled()


@guarded
def _used_by(module):
    kind = classes().parameter
    return [one for one in module._parameters.values() if type(one) is kind]


def _has_pending(module):
    kind = classes().parameter
    return any(type(one) is kind for one in module.parameters())


class Aliases:
    """In some iterations, each operator of the thread: a tensor in the memory of a parameter, of a
    gradient or of the optimizer's state is not heard of otherwise."""

    def __init__(self, layers):
        self._layers = layers
        self._mode = Mode(self._sees)
        self._memory = {}      # {address: the sums that change it}

    def begin(self, sums):
        self._memory = {}
        for one in sums:
            optimizer = one.layers.module.owner()
            for parameter, gradient in zip(one.layout.parameters, one.gradients):
                state = vars(optimizer)["state"].get(parameter, {}) if optimizer else {}
                for tensor in (parameter, gradient, *state.values()):
                    self._add(tensor, one)
        self._memory.pop(None, None)
        self._mode.push()

    def _add(self, tensor, one):
        if isinstance(tensor, sys.modules["torch"].Tensor):
            with sys.modules["torch"]._C.DisableTorchFunction():
                self._memory.setdefault(address(tensor), []).append(one)

    def end(self):
        self._memory = {}
        self._mode.pop()

    def _sees(self, function, arguments, named):
        if (self._memory and not allowed.depth and
            self._are_used_by(function, arguments, named) is not False):
            self._layers.settle(where)

    @guarded
    def _are_used_by(self, function, arguments, named):
        """By an operator, and that is told. None: it is not known, as that has failed."""
        used = {one.layers for at in addresses_in((arguments, named))
                for one in self._memory.get(at, ()) if one in self._layers.sums}
        for layers in used:
            name = str(getattr(function, "_schema", function)).split("(")[0]
            layers.module.refuse("the memory of a parameter, of a gradient or of the optimizer is "
                                 f"used by {name} of another tensor{where()}")
        return bool(used)
