# SPDX-License-Identifier: Apache-2.0
"""What has to hold before a gradient may come late, and where it stopped to hold.

A module here is whatever has its gradients summed: a DistributedDataParallel, or the parameters of
one optimizer whose gradients the job sums by itself. Its iteration is one whole set of sums, and
behind it one step of the optimizer that owns exactly its parameters. What is found once to be
otherwise is refused for good.
"""

import sys
import weakref

from .library import guarded, library
from .reads import reads

# The job is looked at closely in these iterations of a module, and then in every thousandth.
_CLOSELY = frozenset((1, 2, 3, 4, 16, 64, 256))
_EVERY = 1000
_LOOKS_NEEDED = 3


class Module:
    """One whose gradients are summed."""

    numbers = 0
    by_hand = False

    def __init__(self, parameters):
        Module.numbers += 1
        self.number = Module.numbers
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        self.ids = frozenset(id(parameter) for parameter in parameters)
        self.refused = None
        self.owner = None      # its optimizer, weakly
        self.groups = None     # of that, as they were when it became the owner
        self.expected = 0      # the place of the next sum
        self.sets = 0          # whole sets of sums since the last step
        self.all_sets = 0
        self.iterations = 0
        self.looks = 0         # iterations that were looked at closely, and were plain
        self.looked = False    # this one is
        self.state = None      # of its parameters behind a step that was looked at
        self.runs_forward = None   # calls once what it is given, when the module runs forward
        self.clear = True      # its gradients have been cleared since the last step, or that is
                               # not asked

    def refuse(self, why):
        if self.refused is None:
            self.refused = why
            library().refuse_proof(self.number, why.encode())

    def sum_comes(self, place, last):
        """The next of its sums, before it is made."""
        if place != self.expected:
            self.refuse("its buckets come in another order, or not all of them")
        self.expected = 0 if last else place + 1
        if last:
            self.whole_set()

    def whole_set(self):
        self.sets += 1
        self.all_sets += 1
        if self.sets > 1:
            self.refuse("its gradients are summed several times before a step (accumulation "
                        "without no_sync(), several losses, SAM)")

    def live(self):
        """Its parameters that still exist."""
        return [parameter for parameter in (ref() for ref in self.parameters)
                if parameter is not None]

    def state_now(self):
        """Equal as long as nobody changes a parameter; but for what is done through `.data`."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self.live()]

    @property
    def look_due(self):
        number = self.iterations
        return self.refused is None and (number in _CLOSELY or number % _EVERY == _EVERY - 1)


class ByHand(Module):
    """The parameters of one optimizer, each of whose gradients the job sums by itself."""

    by_hand = True

    def __init__(self, optimizer):
        super().__init__([parameter for group in optimizer.param_groups
                          for parameter in group["params"]])
        self.optimizer = weakref.ref(optimizer)
        self.summed = set()    # the addresses of this iteration's gradients
        self.count = None      # sums in the iteration before


class Proofs:
    """All modules of the process, and where the job is in its iteration."""

    def __init__(self):
        self.modules = []
        self.optimizers = weakref.WeakSet()
        self.in_own_hook = 0     # a communication hook of the job's is running
        self.held = False        # between backward and a step
        self._backward = 0
        self._stepping = set()
        self._latest = None      # the module that had the latest set

    # Modules.

    def add(self, module):
        self.modules = [known for known in self.modules if known.live()]
        self.modules.append(module)

    def add_optimizer(self, optimizer):
        self.optimizers.add(optimizer)

    def by_hand(self, optimizer):
        """The module of the sums that the job makes of this optimizer's gradients."""
        for module in self.modules:
            if module.by_hand and module.optimizer() is optimizer:
                return module
        module = ByHand(optimizer)
        self.add(module)
        return module

    def set_comes(self, module):
        """A whole set of a module's sums: where two take turns, each would be late by the other's
        step too."""
        if self._stepping:
            module.refuse("its optimizer steps with a closure")
        latest = self._latest() if self._latest is not None else None
        if latest is not None and latest is not module and module.all_sets > 1:
            for one in (module, latest):
                one.refuse("several modules are trained in turns (a GAN, actor and critic)")
        self._latest = weakref.ref(module)

    @guarded
    def cleared(self):
        for module in self.modules:
            module.clear = True

    # The course of an iteration.

    @property
    def in_backward(self):
        return self._backward > 0

    def backward_begins(self):
        self._backward += 1
        reads.leave()
        if self._backward > 1 or not library().proof:
            return
        self.held = False
        for module in self.modules:
            if not module.clear and module.refused is None:
                self._check_cleared(module)
            if module.state is not None and module.refused is None:
                self._check_unchanged(module)

    def backward_ends(self):
        self._backward -= 1
        if self._backward > 0 or not library().proof:
            return
        self.held = True
        held = [module for module in self.modules
                if module.refused is None and not module.by_hand and module.sets == 1]
        reads.look([module for module in held if module.look_due])
        reads.watch(held)

    @staticmethod
    def _check_cleared(module):
        """Nobody has called zero_grad() since the last step."""
        module.clear = True
        left = [parameter.grad for parameter in module.live() if parameter.grad is not None]
        if left and bool(left[0].any()):
            module.refuse("its gradients are not cleared between two steps")

    @staticmethod
    def _check_unchanged(module):
        state, module.state = module.state, None
        if state != module.state_now():
            module.refuse("a parameter is changed outside of a step")

    @guarded
    def _begins(self, optimizer, arguments, named):
        reads.leave()
        if not library().proof or optimizer in self._stepping:
            return False
        self._stepping.add(optimizer)
        self.held = False
        closure = arguments[0] if arguments else named.get("closure")
        for module in list(self.modules):
            if self._owns(optimizer, module):
                self._check_step(optimizer, module, closure)
        return True

    def step_begins(self, optimizer, arguments, named):
        """True for the outermost step of that optimizer."""
        return bool(self._begins(optimizer, arguments, named))

    @guarded
    def step_ends(self, optimizer):
        self._stepping.discard(optimizer)
        for module in self.modules:
            if module.owner is not None and module.owner() is optimizer:
                self._end_iteration(module)

    @staticmethod
    def _end_iteration(module):
        if module.looked and module.refused is None:
            module.looks += 1
            module.clear = False
            module.state = module.state_now()
            reads.look_after(module)
        module.looked = False
        if module.sets == 1 and module.refused is None and module.looks >= _LOOKS_NEEDED:
            library().prove_iteration(module.number)
        module.iterations += 1 if module.sets else 0
        module.sets = 0
        if module.by_hand:
            module.count, module.expected = len(module.summed), 0
            module.summed.clear()

    def _owns(self, optimizer, module):
        if module.owner is not None and module.owner() is not None:
            return module.owner() is optimizer
        if not module.all_sets and not module.expected:
            return False
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ids = frozenset(id(parameter) for parameter in own if parameter.requires_grad)
        if not ids & module.ids:
            return False
        module.owner = weakref.ref(optimizer)
        module.groups = _groups(optimizer)
        self._check_owner(optimizer, module, ids)
        return True

    @staticmethod
    def _check_owner(optimizer, module, ids):
        from .optimizers import ELEMENTWISE, Told, from_torch
        name = type(optimizer).__name__
        if not from_torch(optimizer):
            module.refuse(f"its optimizer ({type(optimizer).__module__}.{name}) is not PyTorch's "
                          "own, so what it does is not known")
        elif name not in ELEMENTWISE:
            module.refuse(f"its optimizer ({name}) does not treat each element by itself")
        elif ids != module.ids:
            module.refuse(f"its optimizer ({name}) steps only a part of its parameters" if ids <
                          module.ids else f"its optimizer ({name}) steps other parameters too")
        else:
            Told().add(optimizer)

    @staticmethod
    def _check_step(optimizer, module, closure):
        if closure is not None:
            module.refuse("its optimizer steps with a closure")
        if _groups(optimizer) != module.groups:
            module.refuse("the groups of its optimizer have changed")
        if module.by_hand:
            _check_sums(optimizer, module)
        elif module.sets == 0 or module.expected:
            module.refuse("its optimizer steps without a sum of its gradients")
        if not module.looked:
            return
        if any(group.get("differentiable") for group in optimizer.param_groups):
            module.refuse("its optimizer's steps are differentiated")
        hooks = sys.modules["torch.optim.optimizer"]
        for table in (getattr(optimizer, "_optimizer_step_pre_hooks", None),
                      getattr(optimizer, "_optimizer_step_post_hooks", None),
                      getattr(hooks, "_global_optimizer_pre_hooks", None),
                      getattr(hooks, "_global_optimizer_post_hooks", None)):
            if table:
                module.refuse("the job has a hook on its optimizer's steps")


def _check_sums(optimizer, module):
    """Each gradient has been summed once."""
    wanted = {parameter.grad.data_ptr() for group in optimizer.param_groups
              for parameter in group["params"] if parameter.grad is not None}
    if wanted != module.summed:
        module.refuse("not each of its gradients is summed once before a step")
    module.whole_set()


def _groups(optimizer):
    return tuple((id(group["params"]), len(group["params"])) for group in optimizer.param_groups)


proofs = Proofs()
