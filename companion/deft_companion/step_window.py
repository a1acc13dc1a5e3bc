# SPDX-License-Identifier: Apache-2.0
"""The gradients of a module in some steps in a row, as far as steps.py looks at them.

They are read where DistributedDataParallel has summed them, in its buckets' memory. That stays
where it is, so one call gathers what is sampled of all parameters. The gradients themselves are new
tensors in each iteration of most jobs, which takes several calls for each parameter.

A job has other things in the processor's caches between two steps. So what counts here is how many
different calls are made, and hardly how many numbers each has.
"""

import itertools
import random
import sys
import weakref

from .reads import allowed

WINDOW = 10   # steps of one answer
_ELEMENTS, _RUN = 512, 128  # of a parameter, and how many of them lie side by side
_LARGEST, _OTHERS = 8, 8    # parameters of a module; the others are drawn
_NOISE = 4                  # every so many steps
_NOISES = len(range(1, WINDOW + 1, _NOISE))


class Unlike(Exception):
    """A gradient lies in memory otherwise than its parameter."""


class _Sample:
    """Which elements of a parameter are sampled, and of what lies in memory as it does. The
    parameter is the job's, which may let it go."""

    def __init__(self, parameter, parameters):
        """It stands for so many."""
        self.parameter = weakref.ref(parameter)
        self._shape, self._strides = parameter.shape, parameter.stride()
        size = parameter.numel()
        many, self._run = (_ELEMENTS // _RUN, _RUN) if size > _ELEMENTS else (1, size)
        self._gap = size // many   # from one run to the next
        self.taken = self._run * many
        self.each = size / self.taken * parameters   # elements that one of these stands for

    def of(self, tensor):
        strides = tensor.stride()
        if strides != self._strides and any(
                one != other and size > 1 for one, other, size in
                zip(strides, self._strides, self._shape)):
            raise Unlike
        return tensor.as_strided((self.taken // self._run, self._run), (self._gap, 1)).reshape(-1)

    def within(self, memory, at):
        """A view of each run, in the memory where the like of the parameter begins there."""
        at += memory.storage_offset()
        return [memory.as_strided((self._run,), (1,), at + run * self._gap)
                for run in range(self.taken // self._run)]


def choose(parameters):
    """The samples, the same on all ranks."""
    by_size = sorted(range(len(parameters)), key=lambda place: -parameters[place].numel())
    largest, others = by_size[:_LARGEST], by_size[_LARGEST:]
    drawn = random.Random(1).sample(others, min(_OTHERS, len(others)))
    return [_Sample(parameters[place], many)
            for some, many in ((largest, 1), (drawn, len(others) / max(len(drawn), 1)))
            for place in some]


class Bucket:
    """The samples that one bucket has, and views of its memory, which they keep."""

    def __init__(self, buffer, parameters, samples):
        self._address = buffer.data_ptr()
        self.samples, self.views, at = [], [], 0
        samples = {id(sample.parameter()): sample for sample in samples}
        for parameter in parameters:
            sample = samples.get(id(parameter))
            if sample is not None:
                self.samples.append(sample)
                self.views += sample.within(buffer, at)
            at += parameter.numel()

    def is_in(self, buffer):
        return buffer.data_ptr() == self._address


class Window:
    """Some steps in a row, and the sums over them, on the device."""

    def __init__(self, buckets, beta, nesterov, second):
        """`buckets`: {place: Bucket}, which have all samples; then as in steps.py."""
        self._torch = sys.modules["torch"]
        self._beta, self._nesterov, self._second = beta, nesterov, second
        self.apart = False   # gradients are read one by one: what was summed is not what is stepped
        self._samples = [sample for bucket in buckets.values() for sample in bucket.samples]
        self._summed = [view for bucket in buckets.values() for view in bucket.views]
        like, size = self._summed[0], sum(sample.taken for sample in self._samples)
        memory = like.new_zeros((WINDOW + 1 + _NOISES + 9, size))
        self._states, self._sums = memory[-6:-4], memory[-4:]   # v, and Adam's root
        rows = memory.unbind()
        self._gradients, self._noises = rows[:WINDOW + 1], rows[WINDOW + 1:-9]
        self._weights, self._share, self._spare, self._moments = rows[-9:-5]
        for sample, weights in zip(self._samples, self._parts(self._weights)):
            weights.fill_(sample.each)
        shares = self._share.split([sum(sample.taken for sample in bucket.samples)
                                    for bucket in buckets.values()])
        # {place: (views, their part of the row of shares, samples)}
        self._shares = {place: (bucket.views, share, len(bucket.samples))
                        for (place, bucket), share in zip(buckets.items(), shares)}
        self._compared = False
        self.begin()

    def _parts(self, row):
        """Of each sample."""
        return row.split([sample.taken for sample in self._samples])

    def begin(self):
        """Anew, because a step was not seen."""
        self._rates = []       # at each step that was
        self._taken = 0        # samples whose share is there, of the next one
        self._with_noise = []  # the steps whose noise was seen
        self._goes_on = False  # at the step behind the window before, whose moments are there
        self.wants_noise = False

    def go_on(self):
        """With the next window."""
        self.begin()
        self._torch.add(self._gradients[-1], self._moments, alpha=self._beta, out=self._moments)
        self._goes_on = True

    def take_shares(self, place):
        """This rank's gradients of a bucket, before they are summed."""
        views, row, many = self._shares[place]
        if many:
            self._torch.cat(views, out=row)
            self._taken += many

    def look(self, optimizer, ranks, rates):
        """Right before a step. Whether it was the last one."""
        seen = len(self._rates)
        row = self._gradients[seen]
        if not self.apart:
            self._torch.cat(self._summed, out=row)
        elif not self._read_gradients(row):
            self.begin()
            return False
        if not seen and not self._goes_on and not self._read_states(optimizer):
            return False
        if self._taken == len(self._samples) and len(self._with_noise) < _NOISES:
            self._torch.sub(row, self._share, alpha=ranks, out=self._noises[len(self._with_noise)])
            self._with_noise.append(seen)
        self._taken = 0
        self._rates.append(rates)
        self.wants_noise = (seen + 1) % _NOISE == 1   # of the next step's gradients
        return seen == WINDOW

    def _read_gradients(self, row):
        """False: one is not there."""
        parameters = [sample.parameter() for sample in self._samples]
        with allowed:
            gradients = [None if one is None else one.grad for one in parameters]
        if any(gradient is None for gradient in gradients):
            return False
        self._read(row, gradients)
        return True

    def _read(self, row, tensors):
        """One of each sample, or of each another one behind that."""
        with self._torch.no_grad():
            self._torch.cat([sample.of(tensor) for sample, tensor in
                             zip(itertools.cycle(self._samples), tensors)], out=row)

    def _read_states(self, optimizer):
        """v of each, from the step before, and for Adam its root of the second moment; false: they
        are not there yet, or a parameter has gone."""
        if not self._beta and self._second is None:
            return True
        states = [optimizer.state.get(sample.parameter(), {}) for sample in self._samples]
        names = ("momentum_buffer",) if self._second is None else ("exp_avg", "exp_avg_sq")
        tensors = [state.get(name) for name in names for state in states]
        if any(tensor is None for tensor in tensors):
            return False
        self._read(self._states[:len(names)].view(-1), tensors)
        if self._second is not None:
            beta2, eps = self._second
            step = states[0]["step"]   # a tensor, maybe on the device
            if getattr(step, "is_cpu", True):
                step = float(step)
            self._moments.div_(1 - self._beta)
            self._states[1].sqrt_().add_(eps * (1 - beta2 ** step) ** 0.5)
        return True

    def _rates_of_elements(self, optimizer):
        """R of each, times how many it stands for, but for a factor: it is in all that is compared.
        None where a parameter has gone."""
        groups, units = optimizer.param_groups, self._weights
        if len({group["lr"] for group in groups}) > 1:
            of = {id(parameter): float(group["lr"]) for group in groups
                  for parameter in group["params"]}
            rates = [of.get(id(sample.parameter())) for sample in self._samples]
            if None in rates:
                return None
            units = units.clone()
            for rate, part in zip(rates, self._parts(units)):
                part.mul_(rate)
        return units if self._second is None else units / self._states[1]

    def answer(self, optimizer, ranks):
        """None: R is not known yet."""
        torch, beta, moments = self._torch, self._beta, self._moments
        rates = self._rates_of_elements(optimizer)
        if rates is None:
            return None
        along, lengths, of_noise, squares = self._sums.zero_().unbind()
        for now, after in zip(self._gradients[:-1], self._gradients[1:]):
            torch.add(now, moments, alpha=beta, out=moments)
            step = torch.add(now, moments, alpha=beta) if self._nesterov else moments
            along.addcmul_(torch.sub(now, after, out=self._spare), step)
            lengths.addcmul_(step, step)
        for seen, noise in zip(self._with_noise, self._noises):
            of_noise.addcmul_(noise, noise)
            squares.addcmul_(self._gradients[seen], self._gradients[seen])
        sums = torch.cat(((self._sums[:3] * rates).sum(1), (self._sums[2:] * self._weights).sum(1),
                          self._difference().view(1)))
        many = max(len(self._with_noise), 1)
        own = (1 + beta if self._nesterov else 1) * WINDOW   # of each noise, in the steps
        return Answer(sums, self._rates[-1], many, many * (ranks - 1), own)

    def _difference(self):
        """In the latest step, of one parameter's gradient from what was summed."""
        row = self._gradients[-1]
        if self.apart or self._compared:
            return row.new_zeros(())
        self._compared = True
        sample = self._samples[0]
        parameter = sample.parameter()
        with allowed, self._torch.no_grad():
            if parameter is None or parameter.grad is None:
                return row.new_ones(())
            return self._torch.dist(row[:sample.taken], sample.of(parameter.grad))


class Answer:
    """What a window ends with. Nobody waits for it."""

    def __init__(self, sums, rates, seen, noises, own):
        self.rates = rates   # of the optimizer's groups, which it is for
        self._seen, self._noises, self._own = seen, noises, own
        self._sums, self._event = sums, None
        if sums.is_cuda:   # which need be neither the job's current device nor its default one
            torch = sys.modules["torch"]
            self._sums = torch.empty_like(sums, device="cpu", pin_memory=True)
            self._sums.copy_(sums, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(sums.device))

    @property
    def there(self):
        return self._event is None or self._event.query()

    def numbers(self):
        """Change along the steps, that of noise, the steps over R, noise and gradients squared; and
        what gradients that were stepped differ by from those that were summed."""
        change, along, of_noise, noise, gradients, difference = self._sums.tolist()
        if not any(self.rates):
            along = 0.0
        return (change, of_noise / self._noises * self._own, along, noise / self._noises,
                gradients / self._seen, difference)
