# SPDX-License-Identifier: Apache-2.0
"""Layers that wait for their own gradients: backward does not wait for the sums of buckets, and the
optimizer's step of a bucket is made when its sum is there, at the latest before its parameters are
used. docs/companion.md says how.

Only what a module's proof allows (proofs.py) is put off, and whatever was not foreseen waits for
everything. An error of a sum, or of the optimizer, is the job's own and reaches it, but later.
"""

import contextlib
import os
import sys
import threading
import weakref

from . import pending
from .exports import exports
from .first_use import FirstUse
from .late_steps import TO_NONE, TO_ZERO, LateStep, clear, lists_of, why_not
from .layouts import layout_of, why_not_layers
from .library import guarded, library, where
from .pending import classes, gradient_of
from .proofs import State, looked_at, proofs
from .surroundings import plain, stream_of, why_not_plain

# So often in a row is everything waited for too early, until that is taken for the job's habit.
_MOST_EARLY = 8


class Layers:
    """One DistributedDataParallel whose buckets may be waited for late."""

    def __init__(self, ddp, module):
        self.ddp = weakref.ref(ddp)
        self.module = module
        self.layouts = {}      # by the bucket's place
        self.iterations = 0
        self.early = 0         # iterations in a row that waited for everything too early
        self.early_at = ""     # the line that made the latest do so
        self.exports = 0       # exports.count, when its memory was not among them
        self._told = False

    def tell(self):
        """deft, which sends the sums in another order then: when the iterations that are looked at
        are over. They take longer, and others are compared with the last ones before."""
        if not self._told and not looked_at(self.iterations):
            library().layers_wait(self.module.number)
            self._told = True

    def rests(self):
        """All is proven of it, and still holds."""
        return self.module.standing is State.RESTS


class Sum:
    """One bucket whose sum is under way."""

    def __init__(self, layers, layout, work, left):
        self.layers, self.layout, self.work, self.left = layers, layout, work, left
        self.gradients = None  # of its parameters; null: not asked for yet
        self.states = ()       # of the optimizer, for them
        self.failed = False    # backward has, so it has left no gradients
        self.step = None       # LateStep; null: none was asked for yet
        self.cleared = {}      # {id of a parameter: how}: zero_grad() came behind the step
        self.stream = None

    def hold(self):
        """From here on each use of a parameter, a gradient or the optimizer's state is heard.
        False: not of all."""
        self.stream = stream_of(self.layout.device)
        self.find_gradients()
        if any(gradient is None or gradient.requires_grad for gradient in self.gradients):
            return False
        self._find_states()
        return all([classes().hold(tensor) for tensor in self.memory()])

    def memory(self):
        """What its step changes."""
        return (*self.layout.parameters, *(self.gradients or ()), *self.states)

    def _find_states(self):
        """The job may have kept them, or the dictionary that they are in."""
        optimizer, tensor = self.layers.module.owner(), sys.modules["torch"].Tensor
        state = vars(optimizer)["state"] if optimizer is not None else {}
        self.states = [value for parameter in self.layout.parameters
                       for value in state.get(parameter, {}).values() if type(value) is tensor]

    def find_gradients(self):
        get = gradient_of().__get__
        self.gradients = [get(parameter, type(parameter)) for parameter in self.layout.parameters]

    def release(self):
        for tensor in self.memory():
            classes().release(tensor)

    def wait(self):
        self.work.wait()
        if self.left is not None:
            self.left.wait(broken_off=self.failed)

    def let_go(self):
        """It is waited for, so that nobody writes there any more, and nothing is made of it."""
        with plain(self.layout.device, self.stream):
            self.wait()

    def finish(self):
        """The sum is waited for, and the step is made if it was asked for. What fails is the job's:
        the sum, or the optimizer."""
        with plain(self.layout.device, self.stream):
            self.wait()
            if self.gradients is None and not self.failed:
                self.find_gradients()
            for gradient, view in zip(self.gradients or (), self.layout.views):
                if gradient is not None and gradient.data_ptr() != view.data_ptr():
                    gradient.copy_(view)   # again: backward has copied what was there then
            if self.step is not None:
                self.step.make(self.layout.lists)
            for parameter in self.layout.parameters:
                if id(parameter) in self.cleared:
                    clear(parameter, self.cleared[id(parameter)])


class AllLayers:
    """What is under way in this process."""

    def __init__(self):
        self.sums = []
        self._coming = []          # of a backward that is running: nobody else may wait for them
        self._by_parameter = {}    # {id: Sum}
        self._lock = threading.RLock()
        self._finisher = None      # the thread that finishes a bucket, whose class is PyTorch's
        self._here = ()            # Layers of which nothing was waited for too early
        self._thread = threading.local()   # clearing: how this thread clears gradients now
        self._first_use = FirstUse(self)
        self._untold = None        # an error that nobody could be told of
        self.stopped = ""          # why nothing is put off any more
        self.forwards = 0          # iterations whose sums were waited for in the next forward pass

    # Backward.

    @guarded
    def take(self, state, bucket, buffer, work, left):
        """Whether the sum of a bucket, which is under way, is waited for here. `left`: by that
        (left_sums.py), and not by the work; null: by the work."""
        if not library().layers or not proofs.in_backward:
            return False
        if self.stopped and state.module.standing is State.RESTS:
            state.module.refuse(self.stopped)
        if state.layers is None and state.module.standing is State.RESTS:
            state.layers = Layers(state.ddp(), state.module)
            why = why_not_layers(state.ddp(), state.module)
            if why:
                state.module.refuse(why)
        if state.layers is None or not state.layers.rests():
            return False
        layout = layout_of(state.layers, bucket, buffer)
        if layout is None:
            return False
        with self._lock:
            self._coming.append(Sum(state.layers, layout, work, left))
        return True

    def backward_begins(self):
        error, self._untold = self._untold, None
        if error is not None:
            raise error
        self.settle()
        self._first_use.drop()   # what could not go from inside of an operator

    def backward_ends(self, failed):
        """Here DistributedDataParallel has gone on as if the sums were there."""
        with self._lock:
            # Where not all have come, as a layer was frozen, it has copied none.
            for one in self._coming:
                one.failed = failed or one.layers.module.expected > 0
            self.sums, self._coming = self.sums + self._coming, []
        if not self.sums:
            return
        held = False
        try:
            held = not (any(one.failed for one in self.sums) or self.stopped) and self._hold()
        finally:   # a signal's handler may raise
            if not held:
                self.settle()

    @guarded
    def _hold(self):
        with self._lock:
            given_away = exports.count
            if not all([one.hold() for one in self.sums]) or self._are_given_away():
                return False
            for one in self.sums:
                one.layers.exports = given_away
                self._by_parameter.update((id(parameter), one)
                                          for parameter in one.layout.parameters)
            all_layers = {one.layers for one in self.sums}
            for layers in all_layers:
                layers.iterations += 1
                layers.early += 1   # until it turns out otherwise
                if layers.early > _MOST_EARLY:
                    layers.module.refuse(
                        f"gradients or parameters are used outside of its forward pass"
                        f"{layers.early_at}, so its layers cannot wait for their own")
                    return False
                layers.tell()
            self._here = all_layers
            self._first_use.begin(all_layers)
        return True

    def _are_given_away(self):
        one, line = exports.find([one for one in self.sums if one.layers.exports != exports.count])
        if one is not None:
            one.layers.module.refuse("the memory of a parameter, of a gradient or of the optimizer "
                                     f"is given to NumPy or by DLPack{line}")
        return one is not None

    def given_away(self):
        """Some memory has been, whose it may be."""
        if self.sums:
            with self._lock:
                if self._are_given_away():
                    self.settle(where)

    # The optimizer.

    def put_off(self, optimizer, make, arguments, named):
        """Whether its step is made here."""
        self.await_others()
        if not self.sums:
            return False
        with self._lock:
            mine = [one for one in self.sums if one.layers.module.owner() is optimizer]
            asks = any(value is not None for value in (*arguments, *named.values()))
            step = self._note(optimizer, make, mine) if mine and not asks else None
            if step is None:
                if mine:
                    self.settle()
                return False
            for one in mine:
                one.step = step
            with self._finishing():
                step.make(lists_of(optimizer, lambda parameter: id(parameter) not in
                                   self._by_parameter))
            return True

    @guarded
    def _note(self, optimizer, make, mine):
        torch = sys.modules["torch"]
        if any(one.step is not None or one.gradients is None or not one.layers.rests() or
               one.layout.optimizer() is not optimizer for one in mine):
            return None
        why = why_not(optimizer, torch.Tensor) or why_not_plain(mine[0].layout.device,
                                                                mine[0].stream)
        if why:
            mine[0].layers.module.refuse(why)
            return None
        return LateStep(optimizer, make)

    # Who uses what is under way (pending.py).

    def are_used(self, tensors):
        """By the job, which may be in a forward pass: only there it was to be expected."""
        with self._lock:
            found = [self._by_parameter.get(id(tensor)) for tensor in tensors]
            if self._first_use.forward is None or not found or None in found:
                self.settle(where)
            for one in found:
                self.finish(one)

    @property
    def finishing(self):
        """This thread makes a step that was put off."""
        return getattr(self._thread, "finishing", False)

    @contextlib.contextmanager
    def _finishing(self):
        before, self._thread.finishing = self.finishing, True
        try:
            yield
        finally:
            self._thread.finishing = before

    def concern(self, optimizer):
        """Something of its is under way."""
        self.await_others()
        return not self.finishing and any(one.layers.module.owner() is optimizer
                                          for one in self.sums)

    def gradient_is_read(self, parameter):
        one = self._by_parameter.get(id(parameter))
        if one is not None and one.step is not None:
            how = getattr(self._thread, "clearing", None)
            if how is not None and one.cleared.get(id(parameter)) != TO_NONE:
                one.cleared[id(parameter)] = how
            if how is not None or one.cleared.get(id(parameter)) == TO_NONE:
                return None
        self.settle(where)
        classes().release(parameter)
        return parameter.grad

    def gradient_is_set(self, parameter, value):
        one = self._by_parameter.get(id(parameter))
        if value is None and one is not None and one.step is not None:
            one.cleared[id(parameter)] = TO_NONE
            return
        self.settle(where)
        classes().release(parameter)
        parameter.grad = value

    def clear(self, to_none, function, arguments, named):
        """zero_grad(): behind a step that was put off it is done behind that too."""
        self.await_others()
        if any(one.step is None for one in self.sums):
            self.settle(where)
        self._thread.clearing = TO_NONE if to_none else TO_ZERO
        try:
            return function(*arguments, **named)
        finally:
            self._thread.clearing = None

    # The end.

    def finish(self, one):
        """What fails is told once: there is no whole update any more, so the others are let go."""
        with self._lock:
            if one not in self.sums:
                return
            try:
                self._end_one(one, one.finish)
            except Exception:
                for other in list(self.sums):
                    with contextlib.suppress(Exception):
                        self._end_one(other, other.let_go)
                raise

    def _end_one(self, one, act):
        before, self._finisher = self._finisher, threading.get_ident()
        try:
            self.sums.remove(one)
            one.release()
            for parameter in one.layout.parameters:
                self._by_parameter.pop(id(parameter), None)
            with self._finishing():
                act()
        finally:
            self._finisher = before
            if not self.sums:
                self._end()

    @property
    def under_way(self):
        """Something is, in this thread or in another one."""
        return bool(self.sums) or self._finisher not in (None, threading.get_ident())

    def await_others(self):
        """What another thread finishes asks nobody any more, and is not there yet."""
        if self._finisher not in (None, threading.get_ident()):
            with self._lock:
                pass

    def _end(self):
        """Nothing is under way any more."""
        for layers in self._here if self._first_use.forward is not None else ():
            layers.early, self.forwards = 0, self.forwards + 1
        self._here = ()
        self._first_use.end()

    def settle(self, find_where=None):
        """Everything is waited for. `find_where` says where that was not foreseen."""
        if not self.under_way:
            return
        with self._lock:
            if find_where is not None:
                self._here, at = (), find_where()
                for one in self.sums:
                    one.layers.early_at = at
            while self.sums:
                self.finish(self.sums[0])

    def settle_for_fork(self):
        """Python drops what is raised here, so the next backward tells it."""
        try:
            self.settle()
        except Exception as error:
            self._untold = error

    def begin_in_child(self):
        """It has no communicator, and no thread that would let go of a lock."""
        self._lock, self._finisher = threading.RLock(), None
        for one in self.sums:
            one.release()
        self.sums, self._coming, self._by_parameter, self._here = [], [], {}, ()
        self._untold = None
        self._first_use.drop()

    def stop(self, why):
        """For good, in this process."""
        self.stopped = self.stopped or why
        self.settle()


layers = AllLayers()
pending.users = layers
exports.heard = layers.given_away
# A child has no communicator, so it cannot wait for a sum.
os.register_at_fork(before=layers.settle_for_fork, after_in_child=layers.begin_in_child)
