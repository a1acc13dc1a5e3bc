# SPDX-License-Identifier: Apache-2.0
"""Measures a module's steps: how near they are to where late gradients would make them diverge.

With v_t = beta v_(t-1) + g_t and w_(t+1) = w_t - R v_t, where R is the learning rate (for Adam and
its family rate (1 - beta1) over the root of the second moment, element by element), rate x
curvature along the steps d_t = - R v_t is

    a = (g_(t+1) - g_t) . d_t / (d_t . (d_t / R))  =  - (g_(t+1) - g_t) . R v_t / (v_t . R v_t)

(a Rayleigh quotient of R times the Hessian by a secant, as in Barzilai and Borwein 1988).
Nesterov's d_t takes g_t + beta v_t in the place of v_t. v is read from the optimizer once, and goes
on with the gradients, which is all that has to be looked at in each step; weight decay is not in
it. Over several steps at once still less would do, but sharp directions, which late gradients make
diverge first, swing within few steps: over two at once an MLP's a of 0.39 came out as 0.15.

The noise n_t of g_t is in v_t too (Nesterov: 1 + beta times), which adds R n_t . n_t to the
numerator: without curvature, a would come out as 1 - beta^2 where noise prevails. It is taken off:
n . n is what this rank's gradient differs from the mean of all N, squared, over N - 1. The same
gives the gradient noise scale (arXiv 1812.06162).

Some elements are sampled (step_window.py), the same on all ranks. Nothing waits for the device:
sums stay on it, and are copied when a window of iterations is over. It is measured once, before
anything is late: late gradients are of older weights, and their noise is in none of the steps.
"""

import math
import sys

from .clipping import clips
from .library import guarded, library
from .step_window import Bucket, Unlike, Window, choose
from .surroundings import capturing

_FIRST = 26            # iteration: curvature grows in a training's first ones
_WINDOWS = 2           # in a row
_GIVEN_UP = 128        # iterations without an answer
_CHANGED = 0.02        # of the learning rate, until that is told


def _terms_of(optimizer):
    """(beta, whether it is Nesterov's, of Adam: (beta2, eps)); null: it is not measured."""
    name, kinds = type(optimizer).__name__, set()
    for group in optimizer.param_groups:
        if not isinstance(group.get("lr"), (int, float)) or group.get("maximize"):
            return None
        if name == "SGD" and not group.get("dampening"):
            kinds.add((float(group["momentum"]), bool(group["nesterov"]), None))
        elif name in ("Adam", "AdamW") and not group.get("amsgrad"):
            beta1, beta2 = map(float, group["betas"])
            kinds.add((beta1, False, (beta2, float(group["eps"]))))
        else:
            return None
    return kinds.pop() if len(kinds) == 1 else None


class Steps:
    """Those of one module."""

    def __init__(self, module, ranks):
        self._module, self._ranks = module, ranks
        self.takes_shares = False   # of the next step's gradients
        self._terms = None       # _terms_of(); null: not measured
        self._asked = False      # what the optimizer is
        self._on_gpu = False
        self._samples = None     # null: nothing is to come
        self._buckets = {}       # by place: where the samples are
        self._apart = False      # what was summed is not what is stepped
        self._window = None      # under way
        self._coming = None      # an answer, from the device
        self._answers = []       # (rate x curvature over each group's rate, noise scale)
        self._ended = 0          # windows
        self._answered = 0       # of them, that were read
        self._told_at = None     # the rates that were told last
        self._settled = False    # nothing is to come but other rates

    @property
    def under_way(self):
        """Steps are looked at."""
        return self._window is not None and self._ended < _WINDOWS

    @guarded
    def shares_come(self, place, bucket, buffer):
        """This rank's gradients over the number of ranks, in the bucket's memory, before they are
        summed there."""
        if not library().proof:
            self._end()
            return
        if self._on_gpu and capturing():
            return
        known = self._buckets.get(place)
        if known is None or not known.is_in(buffer):
            if known is not None:   # others may be elsewhere too
                self._buckets = {}
            self._buckets[place] = Bucket(buffer, bucket.parameters(), self._samples)
            self._window = None
        elif self._window is not None:
            self._window.take_shares(place)

    @guarded
    def step_begins(self, optimizer):
        """Of the module's optimizer, all gradients summed."""
        if self._settled:   # of most iterations of a job: no more than has to be
            for group, told in zip(optimizer.param_groups, self._told_at):
                if group["lr"] is not told:
                    break
            else:
                return
        if self._asked and (self._terms is None or self._module.iterations < _FIRST - 1):
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        if not self._asked:
            self._ask(optimizer)
        elif not all(isinstance(rate, (int, float)) for rate in rates):
            self._give_up()   # a tensor would have to be waited for
        elif self._coming is not None:
            self._read(rates)
        elif self._told_at is not None and any(
                abs(rate - told) > _CHANGED * told for rate, told in zip(rates, self._told_at)):
            self._tell(rates)
        if self._samples is None:
            return
        if self._module.iterations >= _GIVEN_UP:
            self._give_up()
        elif self._module.iterations == _FIRST - 1:
            self.takes_shares = True   # the next ones', to see where they are
        elif self._module.iterations >= _FIRST:
            try:
                self._step(optimizer, rates)
            except Unlike:
                self._give_up()

    def _ask(self, optimizer):
        self._asked, parameters = True, self._module.live()
        torch = sys.modules["torch"]
        kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
        if (all(map(_dense, parameters)) and len(kinds) == 1 and
            parameters[0].dtype is torch.float32):
            self._terms = _terms_of(optimizer)
        if self._terms is not None and not library().note_steps(self._module.number, -1, -1):
            self._terms = None   # nobody asks
        if self._terms is not None:
            self._samples, self._on_gpu = choose(parameters), parameters[0].is_cuda

    def _give_up(self):
        self._terms = self._coming = None
        self._settled = False
        self._end()
        library().note_steps(self._module.number, float("nan"), -1)

    def _end(self):
        """Nothing more is looked at, and nothing kept."""
        self._samples = self._window = None
        self._buckets = {}
        self.takes_shares = False

    def _step(self, optimizer, rates):
        if self._ended == _WINDOWS:
            return   # the last one's answer is to come
        self.takes_shares, window = True, self._window
        if self._module.sets != 1 or not self._module.watched or self._on_gpu and capturing():
            if window is not None:
                window.begin()
            return
        window = window or self._make_window()
        if window is None:
            return
        apart = self._apart or clips()
        if window.apart != apart:
            window.apart = apart
            window.begin()
        if window.look(optimizer, self._ranks, rates):
            self._window_ends(optimizer)
        self.takes_shares = window.wants_noise

    def _make_window(self):
        """None: not all buckets have been seen."""
        if sum(len(bucket.samples) for bucket in self._buckets.values()) == len(self._samples):
            self._window = Window(self._buckets, *self._terms)
        return self._window

    def _window_ends(self, optimizer):
        answer = self._window.answer(optimizer, self._ranks)
        if answer is None:
            self._window.begin()
            return
        self._window.go_on()
        self._ended += 1
        self._coming = answer

    def _read(self, rates):
        if not self._coming.there:
            return
        change, of_noise, along, noise, gradients, difference = self._coming.numbers()
        then, self._coming = self._coming.rates, None
        if along == 0:   # nothing has moved (a rate that begins at 0): this window says nothing
            self._ended -= 1
            return
        if not along > 0 or not math.isfinite(change - of_noise):
            self._give_up()
            return
        if difference > 0:   # so the windows are begun anew
            self._apart, self._ended, self._answers, self._answered = True, 0, [], 0
            return
        curvature = (change - (0 if clips() or self._apart else of_noise)) / along
        signal = 0 if self._apart else gradients - noise
        scale = noise / signal if signal > 0 else -1
        self._answers = [*self._answers[-1:], (curvature, then, scale)]
        self._answered += 1
        if self._answered == _WINDOWS:
            self._end()
            self._tell(rates)

    def _tell(self, rates):
        """The larger of the latest two, at these rates."""
        most = max(max(curvature, 0) * max((now / before for now, before in zip(rates, then)
                                            if before > 0), default=0)
                   for curvature, then, _ in self._answers)
        self._told_at, self._settled = rates, True
        library().note_steps(self._module.number, most, self._answers[-1][2])


def _dense(parameter):
    formats = sys.modules["torch"]
    return parameter.numel() > 0 and (parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=formats.channels_last)))
