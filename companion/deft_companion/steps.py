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

Of each parameter so many elements are sampled, the same on all ranks. Nothing waits for the device:
sums stay on it, and are copied when a window of iterations is over. It is measured once, before
anything is late: late gradients are of older weights, and their noise is in none of the steps.
"""

import math
import random
import sys
import weakref

from .library import guarded, library
from .reads import allowed
from .surroundings import capturing

_ELEMENTS, _RUN = 512, 64   # of a parameter, and how many of them lie side by side
_LARGEST, _OTHERS = 8, 8   # parameters of a module; the others are drawn
_FIRST = 26            # iteration: curvature grows in a training's first ones
_WINDOW = 10           # steps of one answer
_WINDOWS = 2           # in a row
_NOISE = 3             # every so many steps
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


class _Sample:
    """Which elements of a parameter are sampled, and of what lies in memory as it does. The
    parameter is the job's, which may let it go."""

    def __init__(self, parameter, parameters):
        """It stands for so many."""
        self.parameter = weakref.ref(parameter)
        self._shape, self._strides = parameter.shape, parameter.stride()
        size, runs = parameter.numel(), _ELEMENTS // _RUN
        self.in_runs = size > _ELEMENTS
        self.place = ((runs, _RUN), (size // runs, 1)) if self.in_runs else ((size,), (1,))
        self.taken = min(size, _ELEMENTS)
        self.each = size / self.taken * parameters   # elements that one of these stands for

    def of(self, tensor):
        """A view."""
        strides = tensor.stride()
        if strides != self._strides and any(
                one != other and size > 1 for one, other, size in
                zip(strides, self._strides, self._shape)):
            raise _Unlike
        return tensor.as_strided(*self.place)


class _Window:
    """The gradients of some steps in a row, and the sums over them, on the device."""

    def __init__(self, samples, like, beta, nesterov, second):
        # Those in runs first: they are gathered together.
        self.samples = samples = sorted(samples, key=lambda sample: not sample.in_runs)
        self._beta, self._nesterov, self._second = beta, nesterov, second
        self._in_runs = sum(sample.in_runs for sample in samples)
        self._cut = sum(sample.taken for sample in samples if sample.in_runs)
        self._weights = sys.modules["torch"].cat([
            like.new_full((sample.taken,), sample.each) for sample in samples])
        self._gradients = like.new_empty((_WINDOW + 1, self._weights.numel()))
        self._moments, self._share, self._of_noise, self._squares = like.new_zeros(
            (4, self._weights.numel()))
        self._slots, at = {}, 0   # of each parameter, by its id: where its share goes
        self._places = {}         # of each bucket that was seen: which of them it has
        for sample in samples:
            slot = self._share[at:at + sample.taken].view(sample.place[0])
            self._slots[id(sample.parameter())], at = (sample, slot), at + sample.taken
        self.begin()

    def begin(self):
        """Anew, because a step was not seen."""
        self._rates = []   # at each step that was
        self._taken = self._with_noise = 0
        self._of_noise.zero_()
        self._squares.zero_()

    @property
    def whole(self):
        return len(self._rates) > _WINDOW

    @property
    def wants_noise(self):
        """Of the next step's gradients."""
        return len(self._rates) % _NOISE == 1

    def take_shares(self, place, bucket):
        known = self._places.get(place)
        if known is None:   # which of its parameters are in the sample
            found = [(at, self._slots.get(id(parameter)))
                     for at, parameter in enumerate(bucket.parameters())]
            known = self._places[place] = [one for one in found if one[1] is not None]
        gradients = bucket.gradients() if known else ()
        for at, (sample, slot) in known:
            slot.copy_(sample.of(gradients[at]))
        self._taken += len(known)

    def look(self, optimizer, ranks, rates):
        """Right before a step."""
        parameters = [sample.parameter() for sample in self.samples]
        gradients = [None if one is None else one.grad for one in parameters]
        if any(gradient is None for gradient in gradients):
            self.begin()
            return
        row = self._gradients[len(self._rates)]
        self._fill(row, gradients)
        if not self._rates and self._beta and not self._read_moments(optimizer, parameters):
            return
        if self._taken == len(self.samples):
            noise = self._share.mul_(ranks).sub_(row)
            self._of_noise.addcmul_(noise, noise)
            self._squares.addcmul_(row, row)
            self._with_noise += 1
        self._taken = 0
        self._rates.append(rates)

    def _read_moments(self, optimizer, parameters):
        """v of each, from the step before; false: there is none yet."""
        states = [optimizer.state.get(parameter, {}) for parameter in parameters]
        which = "exp_avg" if self._second else "momentum_buffer"
        moments = [state.get(which) for state in states]
        if any(moment is None for moment in moments):
            return False
        self._fill(self._moments, moments)
        if self._second:
            self._moments.div_(1 - self._beta)
        return True

    def _rates_of_elements(self, optimizer):
        """R of each; None where a parameter has gone, or has no second moment yet."""
        parameters = [sample.parameter() for sample in self.samples]
        if any(parameter is None for parameter in parameters):
            return None
        of = {id(parameter): float(group["lr"]) for group in optimizer.param_groups
              for parameter in group["params"]}
        rates = sys.modules["torch"].cat([
            self._weights.new_full((sample.taken,), of[id(parameter)])
            for sample, parameter in zip(self.samples, parameters)])
        if self._second is None:
            return rates
        states = [optimizer.state.get(parameter, {}) for parameter in parameters]
        if any("exp_avg_sq" not in state for state in states):
            return None
        (beta2, eps), step = self._second, states[0]["step"]   # a tensor, maybe on the device
        roots = self._share   # which is not needed any more
        self._fill(roots, [state["exp_avg_sq"] for state in states])
        roots.div_(1 - beta2 ** step).sqrt_().add_(eps).mul_(1 - self._beta ** step)
        return rates.div_(roots).mul_(1 - self._beta)

    def _fill(self, row, tensors):
        torch, runs, cut = sys.modules["torch"], self._in_runs, self._cut
        views = [sample.of(tensor) for sample, tensor in zip(self.samples, tensors)]
        if runs:
            torch.cat(views[:runs], out=row[:cut].view(-1, _RUN))
        if runs < len(views):
            torch.cat(views[runs:], out=row[cut:])

    @property
    def rates(self):
        """Of the optimizer's groups, which result() is for."""
        return self._rates[-1]

    def result(self, optimizer, ranks):
        """Change along the steps, that of noise, the steps over R, noise and gradients squared.
        None: R is not known yet."""
        torch, weights, beta = sys.modules["torch"], self._weights, self._beta
        rates = self._rates_of_elements(optimizer)
        if rates is None:
            return None
        along, lengths = weights.new_zeros((2, weights.numel()))
        for now, after in zip(self._gradients[:-1], self._gradients[1:]):
            self._moments.mul_(beta).add_(now)
            step = now.add(self._moments, alpha=beta) if self._nesterov else self._moments
            along.addcmul_(now - after, step)
            lengths.addcmul_(step, step)
        rates, seen = rates * weights, max(self._with_noise, 1)
        noise = self._of_noise / (seen * (ranks - 1))
        own = (1 + beta if self._nesterov else 1) * _WINDOW   # of each noise, in the steps
        return torch.stack((along.dot(rates), noise.dot(rates) * own, lengths.dot(rates),
                            noise.dot(weights), self._squares.dot(weights) / seen))


class _Unlike(Exception):
    """A gradient lies in memory otherwise than its parameter."""


class Steps:
    """Those of one module."""

    def __init__(self, module, ranks):
        self._module, self._ranks = module, ranks
        self.takes_shares = False   # of the next step's gradients
        self._terms = None       # _terms_of(); null: not measured
        self._asked = False      # what the optimizer is
        self._samples = None     # null: nothing is to come
        self._window = None      # under way
        self._coming = None      # from the device: (host's tensor, event, rates)
        self._answers = []       # (rate x curvature over each group's rate, noise scale)
        self._ended = 0          # windows
        self._answered = 0       # of them, that were read
        self._told_at = None     # the rates that were told last
        self._settled = False    # nothing is to come but other rates

    @property
    def _due(self):
        return (self._samples is not None and self._module.watched and
                _FIRST <= self._module.iterations < _GIVEN_UP and library().proof)

    @property
    def under_way(self):
        """Steps are looked at."""
        return self._window is not None and self._ended < _WINDOWS

    @guarded
    def share_comes(self, place, bucket):
        """This rank's gradient over the number of ranks, before it is summed."""
        if not self.takes_shares or not self._due or capturing():
            return
        with allowed, sys.modules["torch"].no_grad():
            try:
                self._window.take_shares(place, bucket)
            except _Unlike:
                self._give_up()

    @guarded
    def step_begins(self, optimizer):
        """Of the module's optimizer, all gradients summed."""
        if self._settled:   # of most iterations of a job: no more than has to be
            for group, told in zip(optimizer.param_groups, self._told_at):
                if group["lr"] is not told:
                    break
            else:
                return
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
        if self._samples is None:
            return
        self.takes_shares = False
        if self._due and self._module.sets == 1 and not capturing():
            with allowed, sys.modules["torch"].no_grad():
                try:
                    self._step(optimizer, rates)
                except _Unlike:
                    self._give_up()
        elif self._window is not None:
            self._window.begin()

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
            self._samples = _choose(parameters)

    def _give_up(self):
        self._terms = self._coming = None
        self._settled = False
        self._end()
        library().note_steps(self._module.number, float("nan"), -1)

    def _end(self):
        """Nothing more is looked at, and nothing kept."""
        self._samples = self._window = None
        self.takes_shares = False

    def _step(self, optimizer, rates):
        if self._ended == _WINDOWS:
            return   # the last one's answer is to come
        if self._window is None:   # it begins here
            if any(one.parameter() is None for one in self._samples):
                return
            self._window = _Window(self._samples, self._samples[0].parameter().detach(),
                                   *self._terms)
        self._window.look(optimizer, self._ranks, rates)
        if self._window.whole:
            self._window_ends(optimizer)
        self.takes_shares = self._window.wants_noise

    def _window_ends(self, optimizer):
        torch, window = sys.modules["torch"], self._window
        result, rates = window.result(optimizer, self._ranks), window.rates
        window.begin()
        if result is None:
            return
        self._ended += 1
        event, host = None, result
        if result.is_cuda:   # which need be neither the job's current device nor its default one
            host = torch.empty_like(result, device="cpu", pin_memory=True)
            host.copy_(result, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(result.device))
        self._coming = host, event, rates

    def _read(self, rates):
        host, event, then = self._coming
        if event is not None and not event.query():
            return
        self._coming = None
        change, of_noise, along, noise, gradients = host.tolist()
        if along == 0:   # nothing has moved (a rate that begins at 0): this window says nothing
            self._ended -= 1
            return
        if not along > 0 or not math.isfinite(change - of_noise):
            self._give_up()
            return
        from .clipping import clips
        curvature = (change - (0 if clips() else of_noise)) / along
        signal = gradients - noise
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


def _choose(parameters):
    """The samples, the same on all ranks."""
    by_size = sorted(range(len(parameters)), key=lambda place: -parameters[place].numel())
    largest, others = by_size[:_LARGEST], by_size[_LARGEST:]
    drawn = random.Random(1).sample(others, min(_OTHERS, len(others)))
    return [_Sample(parameters[place], parameters=many)
            for some, many in ((largest, 1), (drawn, len(others) / max(len(drawn), 1)))
            for place in some]


def _dense(parameter):
    formats = sys.modules["torch"]
    return parameter.numel() > 0 and (parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=formats.channels_last)))
