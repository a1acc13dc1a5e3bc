# SPDX-License-Identifier: Apache-2.0
"""Measures a module's steps: how near they are to where late gradients would make them diverge.

With v_t = beta v_(t-1) + g_t and w_t = w_(t-1) - R v_t, where R is the learning rate (for Adam and
its family rate (1 - beta1) over the root of the second moment, element by element), rate x
curvature along the steps d_t = w_t - w_(t-1) is

    a = (g_(t+1) - g_t) . d_t / (d_t . (d_t / R))  =  - (g_(t+1) - g_t) . d_t / (v_t . d_t)

(a Rayleigh quotient of R times the Hessian by a secant, as in Barzilai and Borwein 1988; the second
form needs to know neither R nor the rate). Nesterov's d_t = - R (g_t + beta v_t) takes that sum in
the place of v_t.

The noise n_t of g_t is in the step d_t too, which adds R n_t . n_t to the numerator: without
curvature, a would come out as 1 - beta^2 where noise prevails. It is taken off: R, of each element,
is - sum d v / sum v v over the iterations; n . n is what this rank's gradient differs from the mean
of all N, squared, over N - 1. The same gives the gradient noise scale (arXiv 1812.06162).

Of each parameter so many elements are sampled, the same on all ranks. Nothing waits for the device:
sums stay on it, and are copied when a window of iterations is over. It is measured once, before
anything is late: late gradients are of older weights, and their noise is in none of the steps.
"""

import contextlib
import math
import random
import sys
import weakref

from .library import guarded, library
from .reads import allowed
from .surroundings import capturing

_ELEMENTS, _RUN = 1024, 16   # of a parameter, and how many of them lie side by side
_LARGEST, _OTHERS = 16, 16   # parameters of a module; the others are drawn
_FIRST = 2             # iteration; DistributedDataParallel orders its buckets anew before
_WINDOW = 16           # steps of one answer
_WINDOWS = 3           # in a row
_GIVEN_UP = 128        # iterations without an answer
_CHANGED = 0.02        # of the learning rate, until that is told


def _terms_of(optimizer):
    """(beta, whether it is Nesterov's); null: it is not measured."""
    name, kinds = type(optimizer).__name__, set()
    for group in optimizer.param_groups:
        if not isinstance(group.get("lr"), (int, float)) or group.get("maximize"):
            return None
        if name == "SGD" and not group.get("dampening"):
            kinds.add((float(group["momentum"]), bool(group["nesterov"])))
        elif name in ("Adam", "AdamW") and not group.get("amsgrad"):
            kinds.add((float(group["betas"][0]), False))
        else:
            return None
    return kinds.pop() if len(kinds) == 1 else None


class _Sample:
    """Which elements of a parameter are sampled, and of what lies in memory as it does. The
    parameter is the job's, which may let it go."""

    def __init__(self, parameter, parameters):
        """It stands for so many."""
        self.parameter = weakref.ref(parameter)
        self._shape, self._strides = parameter.shape, parameter.stride()
        size, runs = parameter.numel(), _ELEMENTS // _RUN
        self.in_runs = size > _ELEMENTS
        self._place = ((runs, _RUN), (size // runs, 1)) if self.in_runs else ((size,), (1,))
        self.taken = min(size, _ELEMENTS)
        self.each = size / self.taken * parameters   # elements that one of these stands for

    def of(self, tensor):
        """A view."""
        strides = tensor.stride()
        if strides != self._strides and any(
                one != other and size > 1 for one, other, size in
                zip(strides, self._strides, self._shape)):
            raise _Unlike
        return tensor.as_strided(*self._place)


def _parts(samples, tensors):
    """Those in runs, and the others; empty where there are none."""
    parts = [], []
    for sample, tensor in zip(samples, tensors):
        parts[not sample.in_runs].append(sample.of(tensor))
    return [[sys.modules["torch"].cat(some).view(-1)] if some else [] for some in parts]


def _join(parts):
    """All that are in runs, then all others; each in its order."""
    return sys.modules["torch"].cat([one for which in (0, 1) for part in parts
                                     for one in part[which]])


def _gather(samples, tensors):
    return _join([_parts(samples, tensors)])


def _weights_of(samples, like):
    """How many elements each of the sample stands for, in the order of _join()."""
    parts = sorted(samples, key=lambda sample: not sample.in_runs)
    return sys.modules["torch"].cat([like.new_full((part.taken,), part.each) for part in parts])


def _momentum_of(optimizer, samples, parameters, beta):
    """v of each; null: there is none yet."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    moments = [state.get("momentum_buffer", state.get("exp_avg")) for state in states]
    if any(moment is None for moment in moments):
        return None
    gathered = _gather(samples, moments)
    return gathered / (1 - beta) if "exp_avg" in states[0] else gathered


class _Window:
    """Sums over some steps, on the device."""

    def __init__(self, like):
        self.steps = 0
        self.rates = []
        self.dots = like.new_zeros(3)
        self.of_steps, self.of_sums, self.of_noise = (like.new_zeros(like.shape) for _ in range(3))

    def add(self, step, summed, before, change, weights):
        """`summed`: what the step is - R times."""
        torch, weighted = sys.modules["torch"], step * weights
        self.dots += torch.stack((change.dot(weighted), summed.dot(weighted),
                                  (before.gradients * weights).dot(before.gradients)))
        self.of_steps.addcmul_(step, summed)
        self.of_sums.addcmul_(summed, summed)
        self.of_noise.addcmul_(before.noise, before.noise)
        self.rates.append(before.rates)
        self.steps += 1

    def result(self, weights, own, ranks):
        """Change along steps, that of noise, sums along steps, noise and gradients squared. `own`:
        how much of its own gradient is in a step's sum."""
        torch = sys.modules["torch"]
        factor = (-self.of_steps / self.of_sums.clamp_min(1e-30)).clamp_min(0)
        noise = self.of_noise * weights
        own = own / (ranks - 1)
        return torch.stack((self.dots[0], factor.dot(noise) * own, self.dots[1],
                            noise.sum() / (ranks - 1), self.dots[2]))

    def mean_rates(self):
        return [sum(rates) / len(rates) for rates in zip(*self.rates)]


class _Before:
    """What was there when the step before began."""

    def __init__(self, samples, weights, gradients, noise, rates):
        self.samples, self.weights, self.gradients = samples, weights, gradients
        self.noise, self.rates = noise, rates


class _Unlike(Exception):
    """A gradient lies in memory otherwise than its parameter."""


class Steps:
    """Those of one module."""

    def __init__(self, module, ranks):
        self._module, self._ranks = module, ranks
        self.takes_shares = False   # a window is under way, or to come
        self._terms = None       # beta, Nesterov's; null: not measured
        self._asked = False      # what the optimizer is
        self._samples = None     # {id of a parameter: its sample}
        self._shares = {}        # place of a bucket: (its samples, this rank's share in parts)
        self._weights = None     # how many elements each of the sample stands for
        self._before = None
        self._window = None
        self._coming = None      # from the device: (host's tensor, event, rates)
        self._answers = []       # (rate x curvature over each group's rate, noise scale)
        self._ended = 0          # windows
        self._answered = 0       # of them, that were read
        self._told_at = None     # the rates that were told last

    @property
    def _due(self):
        return (self.takes_shares and self._module.watched and
                _FIRST <= self._module.iterations < _GIVEN_UP and library().proof)

    @guarded
    def share_comes(self, place, bucket):
        """This rank's gradient over the number of ranks, before it is summed."""
        if not self._due or capturing():
            return
        with allowed, sys.modules["torch"].no_grad(), self._given_up_where_unlike():
            known = self._samples
            pairs = [(known[id(parameter)], gradient) for parameter, gradient in
                     zip(bucket.parameters(), bucket.gradients()) if id(parameter) in known]
            samples = [sample for sample, _ in pairs]
            self._shares[place] = samples, _parts(samples, [gradient for _, gradient in pairs])

    @guarded
    def step_begins(self, optimizer):
        """Of the module's optimizer, all gradients summed."""
        if not self._asked:
            self._ask(optimizer)
        if self._terms is None:
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        if not all(isinstance(rate, (int, float)) for rate in rates):
            self._give_up()   # a tensor would have to be waited for
            return
        if self._coming is not None:
            self._read(rates)
        elif self._told_at is not None and any(
                abs(rate - told) > _CHANGED * told for rate, told in zip(rates, self._told_at)):
            self._tell(rates)
        if self._told_at is None and self._module.iterations >= _GIVEN_UP:
            self._give_up()
        if not self.takes_shares:
            self._before = self._weights = None
            return
        shares, self._shares = self._shares, {}
        if self._due and self._module.sets == 1 and not capturing():
            with allowed, sys.modules["torch"].no_grad(), self._given_up_where_unlike():
                self._step(optimizer, [shares[place] for place in sorted(shares)], rates)
        else:   # the next one is not behind it
            self._before = None

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
            self._samples, self.takes_shares = _choose(parameters), True

    def _give_up(self):
        self._terms = self._before = self._window = self._weights = self._coming = None
        self._shares, self.takes_shares = {}, False
        library().note_steps(self._module.number, float("nan"), -1)

    @contextlib.contextmanager
    def _given_up_where_unlike(self):
        try:
            yield
        except _Unlike:
            self._give_up()

    def _step(self, optimizer, shares, rates):
        samples = [sample for some, _ in shares for sample in some]
        parameters = [sample.parameter() for sample in samples]
        gradients = [None if one is None else one.grad for one in parameters]
        if not samples or any(gradient is None for gradient in gradients):
            self._before = None
            return
        before = self._before
        weights, gradients = _gather(samples, parameters), _gather(samples, gradients)
        noise = _join([parts for _, parts in shares]).mul_(self._ranks).sub_(gradients)
        if before is not None and before.samples == samples:
            self._add(optimizer, parameters, weights - before.weights, gradients - before.gradients)
        else:   # a window has them in one order
            self._window = None
        self._before = _Before(samples, weights, gradients, noise, rates)

    def _add(self, optimizer, parameters, step, change):
        (beta, nesterov), before = self._terms, self._before
        summed = before.gradients
        if beta:
            momentum = _momentum_of(optimizer, before.samples, parameters, beta)
            if momentum is None:
                return
            summed = summed + beta * momentum if nesterov else momentum
        if self._window is None:
            self._window = _Window(step)
            self._weights = _weights_of(before.samples, step)
        self._window.add(step, summed, before, change, self._weights)
        if self._window.steps == _WINDOW:
            self._window_ends(1 + beta if nesterov else 1)

    def _window_ends(self, own):
        torch, window = sys.modules["torch"], self._window
        result = window.result(self._weights, own, self._ranks)
        self._window, event, host = None, None, result
        self._ended += 1
        self.takes_shares = self._ended < _WINDOWS
        if result.is_cuda:   # which need be neither the job's current device nor its default one
            host = torch.empty_like(result, device="cpu", pin_memory=True)
            host.copy_(result, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(result.device))
        self._coming = host, event, window.mean_rates()

    def _read(self, rates):
        host, event, then = self._coming
        if event is not None and not event.query():
            return
        self._coming = None
        change, of_noise, along, noise, gradients = host.tolist()
        if along == 0:   # nothing has moved (a rate that begins at 0): this window says nothing
            self._ended -= 1
            self.takes_shares = True
            return
        if not along < 0 or not math.isfinite(change - of_noise):
            self._give_up()
            return
        from .clipping import clips
        curvature = (change - (0 if clips() else of_noise)) / -along
        signal = gradients - noise
        scale = noise / signal if signal > 0 else -1
        self._answers = [*self._answers[-1:], (curvature, then, scale)]
        self._answered += 1
        if self._answered == _WINDOWS:   # curvature grows in a training's first iterations
            self._tell(rates)

    def _tell(self, rates):
        """The larger of the latest two, at these rates."""
        most = max(max(curvature, 0) * max((now / before for now, before in zip(rates, then)
                                            if before > 0), default=0)
                   for curvature, then, _ in self._answers)
        self._told_at = rates
        library().note_steps(self._module.number, most, self._answers[-1][2])


def _choose(parameters):
    """{id: its sample}, the same on all ranks."""
    by_size = sorted(range(len(parameters)), key=lambda place: -parameters[place].numel())
    largest, others = by_size[:_LARGEST], by_size[_LARGEST:]
    drawn = random.Random(1).sample(others, min(_OTHERS, len(others)))
    return {id(parameters[place]): _Sample(parameters[place], parameters=many)
            for some, many in ((largest, 1), (drawn, len(others) / max(len(drawn), 1)))
            for place in some}


def _dense(parameter):
    formats = sys.modules["torch"]
    return parameter.numel() > 0 and (parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=formats.channels_last)))
