# SPDX-License-Identifier: Apache-2.0
"""What has to hold before a gradient may come late, and where it stopped to hold.

A module here is whatever has its gradients summed: a DistributedDataParallel, or the parameters of
one optimizer whose gradients the job sums by itself. Its iteration is one whole set of sums, and
behind it one step of the optimizer that owns exactly its parameters. What is found once to be
otherwise is refused for good.
"""

import enum
import sys
import threading
import weakref

from .held import HeldGradients, parameters_of
from .library import guarded, library
from .losses import losses
from .reads import allowed, reads
from .surroundings import capturing

# The job is looked at closely in a module's first iterations, but for the very first: what is done
# every few iterations (Lookahead's slow weights) is found there. Then in a stretch of consecutive
# ones in each so many, at a place that no period of a job's meets again and again.
_FIRST = 32
_STRETCH, _EVERY = 16, 1024
_LOOKS_NEEDED = 12
# Whether a parameter has changed since the step is asked in every iteration, of some in turns.
_SAMPLED = 4
# In an iteration that is looked at closely so many elements of each are compared too: what changes
# them through `.data` leaves no other trace.
_ELEMENTS = 1024


def looked_at(number):
    """Whether the iteration of that number, from 0, is looked at closely."""
    if number <= _FIRST:
        return number > 0
    block, place = divmod(number, _EVERY)
    return 0 <= place - (block * 389 + 512) % (_EVERY - _STRETCH) < _STRETCH


class State(enum.Enum):
    """What is asked of a module; REFUSED is for good."""

    WATCHED = enum.auto()
    RESTS = enum.auto()     # it is proven, and is not looked at any more: nothing late comes of it
    REFUSED = enum.auto()


class Module:
    """One whose gradients are summed."""

    numbers = 0
    by_hand = False

    def __init__(self, parameters):
        Module.numbers += 1
        self.number = Module.numbers
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        self.ids = frozenset(id(parameter) for parameter in parameters)
        self.standing = State.WATCHED
        self.owner = None      # its optimizer, weakly
        self.groups = None     # of that, as they were when it became the owner
        self.expected = 0      # the place of the next sum
        self.sets = 0          # whole sets of sums since the last step
        self.all_sets = 0
        self.iterations = 0
        self.looks = 0         # iterations that were looked at closely, and were plain
        self.looked = False    # this one is
        self.cut = ""          # what has ended a look too early
        self.steps = None      # measures them; null: nothing does
        self.state = []        # of parameters behind the latest step: [(parameter, state)]
        self.values = None     # and their first elements; null: not known
        self.clear = True      # its gradients were cleared at some backward since the latest step,
                               # or that is not asked
        self.scales = []       # what the job scales its gradients by, in this iteration
        self.last_scales = None    # and in the last that was looked at

    def refuse(self, why):
        if self.standing is not State.REFUSED:
            self.standing = State.REFUSED
            self.forget_state()
            library().refuse_proof(self.number, why.encode())

    def rest(self):
        self.standing = State.RESTS
        self.forget_state()

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
        if self.watched and not self.clear:
            self.refuse("its gradients are not cleared between two steps")

    def live(self):
        """Its parameters that still exist."""
        return [parameter for parameter in (ref() for ref in self.parameters)
                if parameter is not None]

    @property
    def summing(self):
        """Its gradients have been summed, wholly or in part."""
        return self.sets > 0 or self.expected > 0

    def note_state(self, wholly):
        """Remembers all parameters, or some of them in turns."""
        refs = self.parameters
        if not wholly:
            first = self.iterations * _SAMPLED % len(refs)
            refs = refs[first:first + _SAMPLED]
        self.state = [(ref, _state(ref())) for ref in refs]
        self.values = _first_elements(self.live()) if wholly else None

    def exists(self):
        """It may have more sums."""
        return bool(self.live())

    def let_go(self):
        """Of its parameters, for good."""
        self.refuse("a parameter is swapped for another tensor (torch.utils.swap_tensors)")
        self.parameters = []

    def forget_state(self):
        """Nothing more is asked of it, and nothing of it is kept."""
        self.state, self.values, self.steps = [], None, None

    def check_state(self):
        """Nobody has changed a parameter since the step: asked at each backward and at the next
        step, because what is put back in between (SAM, local steps) is not there at both."""
        if (any(ref() is not None and _state(ref()) != before for ref, before in self.state) or
            self.values is not None and not _same(self.values, _first_elements(self.live()))):
            self.refuse("a parameter is changed outside of a step")

    def check_scales(self):
        """What is late was summed in another iteration, so it must not matter in which."""
        if self.last_scales not in (None, self.scales):
            self.refuse("its gradients are scaled by a number that changes")
        self.last_scales, self.scales = self.scales, []

    def check_looks(self):
        """A job that cannot be looked at is told so, and does not wait for a proof for ever."""
        if self.iterations == _FIRST + 1 and self.looks < _LOOKS_NEEDED:
            self.refuse("too little is seen of it between backward and step" +
                        (f", because of {self.cut}" if self.cut else ""))

    @property
    def watched(self):
        return self.standing is State.WATCHED

    @property
    def look_due(self):
        return self.watched and looked_at(self.iterations)


def _state(parameter):
    return None if parameter is None else (parameter._version, parameter.data_ptr())


def _first_elements(parameters):
    """Of each parameter; as bytes, because no number is equal to NaN. [(device, bytes)]."""
    torch, parts = sys.modules["torch"], {}
    if capturing():
        return None
    with allowed, torch.no_grad():
        for parameter in parameters:
            parts.setdefault((parameter.device, parameter.dtype), []).append(
                parameter.detach().reshape(-1)[:_ELEMENTS])
        return [torch.cat(some).view(torch.uint8) for some in parts.values()]


def _same(before, now):
    if now is None:
        return True
    with allowed:
        return len(before) == len(now) and all(
            one.device == other.device and sys.modules["torch"].equal(one, other)
            for one, other in zip(before, now))


class ByHand(Module):
    """The parameters of one optimizer, each of whose gradients the job sums by itself."""

    by_hand = True

    def __init__(self, optimizer):
        super().__init__([parameter for group in optimizer.param_groups
                          for parameter in group["params"]])
        self.optimizer = weakref.ref(optimizer)
        self.summed = {}       # this iteration's gradients: {address: Held when it was summed}
        self.count = None      # sums in the iteration before
        self.apart = None      # no DDP has summed this iteration's gradients; null: not asked yet
        self.ranks = None      # that sum them; null: not known yet
        self.changes = {}      # {(id of a parameter, before or behind its sum): changes}

    def is_known_change(self, parameter, changes, behind=False):
        """The gradient changes in place, before and behind its sum, as often in each iteration: the
        looks see how. In the very first the gradients are noted at the first sum only."""
        return (self.iterations == 0 or
                self.changes.setdefault((id(parameter), behind), changes) == changes)

    def exists(self):
        return self.optimizer() is not None

    def let_go(self):
        super().let_go()
        self.summed.clear()

    def check_scales(self):
        """A gradient may be divided by the number of ranks alone. Any other number may be one that
        happens not to have changed yet (clipping by hand)."""
        for operator, number in self.scales:
            expected = self.ranks if "div" in operator else 1 / self.ranks
            if abs(number - expected) > 1e-6 * expected:
                self.refuse(f"its gradients are scaled by a number ({number:g}) that is not the "
                            "number of ranks")
        super().check_scales()


class Proofs:
    """All modules of the process, and where the job is in its iteration."""

    def __init__(self):
        self.modules = []
        self.optimizers = weakref.WeakSet()
        self.in_own_hook = 0     # a communication hook of the job's is running
        self.held = False        # between backward and a step
        self.gradients = HeldGradients()
        self._backward = 0
        self._lock = threading.Lock()
        self._stepping = weakref.WeakSet()  # a step that fails never ends
        self._latest = None      # the module that had the latest set

    # Modules.

    def add(self, module):
        self.modules = [known for known in self.modules if known.exists()]
        self.modules.append(module)

    def let_go(self, ids):
        """Of the parameters of these modules."""
        self.gradients.forget()
        for module in self.modules:
            if module.ids & ids:
                module.let_go()

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

    def held_gradients(self):
        return [*self.gradients.all(), *(held for module in self.modules if module.by_hand
                                         for held in module.summed.values())]

    # The course of an iteration.

    @property
    def in_backward(self):
        return self._backward > 0

    def _deeper(self, by):
        with self._lock:
            self._backward += by
            return self._backward

    def enter_backward(self):
        """How many were there before."""
        return self._deeper(1) - 1

    def backward_begins(self):
        """It has been entered."""
        reads.drop()
        if self._backward > 1 or not library().proof:
            return
        self._hold(False)
        for module in self.modules:
            if module.watched:
                module.clear = module.clear or self._is_clear(module)
                module.check_state()
                if module.by_hand and module.summing:
                    module.refuse("a backward comes between the sums of its gradients and a step")

    def backward_ends(self):
        if self._deeper(-1) > 0 or not library().proof:
            return
        self._hold(True)
        watched = [module for module in self.modules if module.watched]
        if any(module.by_hand for module in watched):
            self.gradients.note(self.optimizers)
        # The sums that a job makes by itself are still to come, so it may do something before.
        reads.look([module for module in watched
                    if module.look_due and (module.by_hand or module.sets == 1)])
        reads.watch([module for module in watched if not module.by_hand and module.sets == 1])

    def _hold(self, held):
        self.held = held
        self.gradients.forget()

    @staticmethod
    def _is_clear(module):
        """What zero_grad() is called of, and whether it is, says less than the gradients."""
        if capturing():
            return True
        left = [parameter.grad for parameter in module.live() if parameter.grad is not None]
        first = module.iterations * _SAMPLED % max(len(left), 1)
        return not any(bool(gradient.any()) for gradient in left[first:first + _SAMPLED])

    @guarded
    def _begins(self, optimizer, arguments, named):
        if optimizer in self._stepping:
            return False
        if not library().proof:
            reads.drop()
            return False
        self._stepping.add(optimizer)
        self._hold(False)
        closure = arguments[0] if arguments else named.get("closure")
        owned = [module for module in list(self.modules) if self._owns(optimizer, module)]
        # The looks at other modules go on behind this step.
        reads.end(owned)
        if reads.active and self._is_apart(optimizer):
            reads.pause()
        losses.gradients_are_there(owned)
        for module in owned:
            self._check_step(optimizer, module, closure)
            if module.steps is not None and module.watched:
                module.steps.step_begins(optimizer)
        return True

    def _is_apart(self, optimizer):
        """It steps parameters of no module that is looked at, and does nothing else."""
        from .optimizers import from_torch
        ids = {id(parameter) for _, parameter in parameters_of([optimizer])}
        return from_torch(optimizer) and not any(module.looked and ids & module.ids
                                                 for module in self.modules if module.watched)

    def step_begins(self, optimizer, arguments, named):
        """True for the outermost step of that optimizer."""
        return bool(self._begins(optimizer, arguments, named))

    @guarded
    def step_ends(self, optimizer):
        self._stepping.discard(optimizer)
        for module in self.modules:
            if module.owner is not None and module.owner() is optimizer:
                self._end_iteration(optimizer, module)
        reads.resume()

    @staticmethod
    def _end_iteration(optimizer, module):
        due = looked_at(module.iterations)
        if module.watched and module.looked:
            module.looks += 1
            module.clear = False
            module.check_scales()
        module.looked, module.scales = False, []
        if module.sets == 1 and module.watched:
            losses.iteration_ends(module, optimizer.param_groups)
        else:
            losses.iteration_breaks_off(module)
        if module.sets:
            module.iterations += 1
            module.check_looks()
        if module.watched:
            module.note_state(due)
        if (module.sets == 1 and module.watched and module.looks >= _LOOKS_NEEDED and
            (library().layers or not library().prove_iteration(module.number))):
            module.rest()
        module.sets = 0
        if module.by_hand:
            module.count, module.expected, module.apart = len(module.summed), 0, None
            module.summed.clear()

    def _owns(self, optimizer, module):
        if module.owner is not None and module.owner() is not None:
            return module.owner() is optimizer
        if not module.all_sets and not module.expected:
            return False
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # By their ids first: nothing is asked of another module's, whose sum may be under way.
        if module.ids.isdisjoint(map(id, own)):
            return False
        ids = frozenset(id(parameter) for parameter in own if parameter.requires_grad)
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
        module.check_state()
        if any(group.get("differentiable") for group in optimizer.param_groups):
            module.refuse("its optimizer's steps are differentiated")
        hooks = sys.modules["torch.optim.optimizer"]
        if any((getattr(optimizer, "_optimizer_step_pre_hooks", None),
                getattr(optimizer, "_optimizer_step_post_hooks", None),
                getattr(hooks, "_global_optimizer_pre_hooks", None),
                getattr(hooks, "_global_optimizer_post_hooks", None))):
            module.refuse("the job has a hook on its optimizer's steps")
        if module.looked and any(getattr(parameter, "_post_accumulate_grad_hooks", None)
                                 for parameter in module.live()):
            module.refuse("the job has hooks on gradients")


def _check_sums(optimizer, module):
    """Each gradient has been summed once, and is still the tensor that was."""
    gradients = {parameter.grad.data_ptr(): parameter for group in optimizer.param_groups
                 for parameter in group["params"] if parameter.grad is not None}
    if gradients.keys() != module.summed.keys():
        module.refuse("not each of its gradients is summed once before a step")
    elif not all(module.is_known_change(parameter, module.summed[at].changes(), behind=True)
                 for at, parameter in gradients.items()):
        module.refuse("a gradient is changed behind its sum in another way than before")
    module.whole_set()


def _groups(optimizer):
    return tuple((id(group["params"]), len(group["params"])) for group in optimizer.param_groups)


proofs = Proofs()
