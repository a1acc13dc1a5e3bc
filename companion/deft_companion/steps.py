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
import random
import sys

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


def _momentum_of(optimizer, parameters, beta):
    """v of each; null: there is none yet."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    moments = [state.get("momentum_buffer", state.get("exp_avg")) for state in states]
    if any(moment is None for moment in moments):
        return None
    gathered = _gather(moments, parameters)
    return gathered / (1 - beta) if "exp_avg" in states[0] else gathered


def _part(tensor, like):
    """The sampled elements, in the order of memory."""
    if tensor.stride() != like.stride():
        raise _Unlike
    size, offset = tensor.numel(), tensor.storage_offset()
    if size <= _ELEMENTS:
        return tensor.as_strided((size,), (1,), offset)
    runs = _ELEMENTS // _RUN
    return tensor.as_strided((runs, _RUN), (size // runs, 1), offset).reshape(-1)


def _gather(tensors, like):
    return sys.modules["torch"].cat([_part(tensor.detach(), one)
                                     for tensor, one in zip(tensors, like)])


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

    def __init__(self, parameters, weights, gradients, noise, rates):
        self.parameters, self.weights, self.gradients = parameters, weights, gradients
        self.noise, self.rates = noise, rates


class _Unlike(Exception):
    """A gradient lies in memory otherwise than its parameter."""


class Steps:
    """Those of one module."""

    def __init__(self, module, ranks):
        self._module, self._ranks = module, ranks
        self._terms = None       # beta, Nesterov's; null: not measured
        self._asked = False      # what the optimizer is
        self._shares = {}        # place of a bucket: (its sampled parameters, this rank's share)
        self._chosen = None      # {id of a parameter that is sampled: how many it stands for}
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
        return (self._terms is not None and self._module.watched and self._ended < _WINDOWS and
                _FIRST <= self._module.iterations < _GIVEN_UP)

    @guarded
    def share_comes(self, place, bucket):
        """This rank's gradient over the number of ranks, before it is summed."""
        if not self._due or capturing():
            return
        with allowed, self._given_up_where_unlike():
            pairs = [(parameter, gradient) for parameter, gradient in
                     zip(bucket.parameters(), bucket.gradients()) if id(parameter) in self._chosen]
            parameters, gradients = zip(*pairs) if pairs else ((), ())
            self._shares[place] = (parameters, _gather(gradients, parameters) if pairs else None)

    @guarded
    def step_begins(self, optimizer):
        """Of the module's optimizer, all gradients summed."""
        rates = [group["lr"] for group in optimizer.param_groups]
        if not self._asked:
            self._ask(optimizer)
        if self._terms is None:
            return
        if self._coming is not None:
            self._read(rates)
        elif self._told_at is not None and any(
                abs(rate - told) > _CHANGED * told for rate, told in zip(rates, self._told_at)):
            self._tell(rates)
        if self._told_at is None and self._module.iterations == _GIVEN_UP:
            self._give_up()
        shares, self._shares = self._shares, {}
        if not self._due:
            self._before = self._window = self._weights = None
        elif self._module.sets == 1 and not capturing():
            with allowed, sys.modules["torch"].no_grad(), self._given_up_where_unlike():
                self._step(optimizer, [shares[place] for place in sorted(shares)], rates)

    def _ask(self, optimizer):
        self._asked, parameters = True, self._module.live()
        torch = sys.modules["torch"]
        kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
        if (all(map(_dense, parameters)) and len(kinds) == 1 and
            parameters[0].dtype is torch.float32):
            self._terms = _terms_of(optimizer)
        if self._terms is not None:
            self._chosen = _choose(parameters)
            library().note_steps(self._module.number, -1, -1)

    def _give_up(self):
        self._terms = self._before = self._window = None
        library().note_steps(self._module.number, float("nan"), -1)

    @contextlib.contextmanager
    def _given_up_where_unlike(self):
        try:
            yield
        except _Unlike:
            self._give_up()

    def _step(self, optimizer, shares, rates):
        parameters = [parameter for some, _ in shares for parameter in some]
        if not parameters or any(parameter.grad is None for parameter in parameters):
            self._before = None
            return
        torch, before = sys.modules["torch"], self._before
        weights = _gather(parameters, parameters)
        gradients = _gather([parameter.grad for parameter in parameters], parameters)
        noise = torch.cat([share for _, share in shares if share is not None])
        noise.mul_(self._ranks).sub_(gradients)
        if before is not None and [*map(id, before.parameters)] == [*map(id, parameters)]:
            self._add(optimizer, before, weights - before.weights, gradients - before.gradients)
        self._before = _Before(parameters, weights, gradients, noise, rates)

    def _add(self, optimizer, before, step, change):
        beta, nesterov = self._terms
        summed = before.gradients
        if beta:
            momentum = _momentum_of(optimizer, before.parameters, beta)
            if momentum is None:
                return
            summed = summed + beta * momentum if nesterov else momentum
        if self._window is None:
            self._window = _Window(step)
            self._weights = _weights_of(before.parameters, self._chosen, step)
        self._window.add(step, summed, before, change, self._weights)
        if self._window.steps == _WINDOW:
            self._window_ends(1 + beta if nesterov else 1)

    def _window_ends(self, own):
        torch, window = sys.modules["torch"], self._window
        result = window.result(self._weights, own, self._ranks)
        self._window, event, host = None, None, result
        self._ended += 1
        if result.is_cuda:
            host = torch.empty(result.shape, pin_memory=True)
            host.copy_(result, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._coming = host, event, window.mean_rates()

    def _read(self, rates):
        host, event, then = self._coming
        if event is not None and not event.query():
            return
        self._coming = None
        change, of_noise, along, noise, gradients = host.tolist()
        if not along < 0:   # nothing has moved, or no number
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
    """{id: how many parameters it stands for}, the same on all ranks."""
    by_size = sorted(range(len(parameters)), key=lambda place: -parameters[place].numel())
    largest, others = by_size[:_LARGEST], by_size[_LARGEST:]
    drawn = random.Random(1).sample(others, min(_OTHERS, len(others)))
    return {**{id(parameters[place]): 1 for place in largest},
            **{id(parameters[place]): len(others) / len(drawn) for place in drawn}}


def _weights_of(parameters, chosen, like):
    """How many elements each of the sample stands for."""
    parts = [(parameter, _part(parameter.detach(), parameter).numel()) for parameter in parameters]
    return sys.modules["torch"].cat(
        [like.new_full((taken,), parameter.numel() / taken * chosen[id(parameter)])
         for parameter, taken in parts])


def _dense(parameter):
    formats = sys.modules["torch"]
    return parameter.numel() > 0 and (parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=formats.channels_last)))
