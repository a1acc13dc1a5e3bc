# SPDX-License-Identifier: Apache-2.0
"""Sums that are not waited for by the stream of their call, because deft sends them when it is
their turn: the front layers' before others that were there first (include/deft/deft.h).

Once a module's layers wait for their own, each of its sums is marked and taken here for as long as
the process lives, whatever becomes of the companion: nobody else would wait for it.
"""

import sys

from .library import library
from .overdue import overdue
from .surroundings import stream_of


class Lost(RuntimeError):
    """The sum will not come."""


# {address: buffer}: of sums that have yet to come. Of an iteration that was broken off they may
# come when its plan ends, so its buffers stay for good.
_kept = {}


class LeftSum:
    """Of one bucket."""

    def __init__(self, handle, buffer, group):
        self._handle, self._buffer, self._group = handle, buffer, group
        _kept[buffer.data_ptr()] = buffer

    def wait(self, broken_off=False):
        """The current stream waits for it, or this thread where there is none. `broken_off`: this
        iteration's backward has failed, so it need not have been sent."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        stream = stream_of(self._buffer.device)
        wait = overdue.begin(self._group, self._buffer.device)
        try:
            result = library().wait_sum(handle, stream.cuda_stream if stream else None,
                                        0 if stream else 1)
        finally:    # a handler of a signal may raise
            overdue.end(wait, stream)
        if result <= 0:
            _kept.pop(self._buffer.data_ptr(), None)
        if result < 0 or (result > 0 and not broken_off):
            raise Lost("deft: the sum of a bucket of gradients will not come: its plan, or a rank, "
                       "has failed")


def take(buffer, group):
    """What this thread's latest sum has left; None: the stream of its call waits for it."""
    handle = library().take_sum()
    return LeftSum(handle, buffer, group) if handle else None


class Together:
    """Those of one module's iteration whose layers do not wait for them: they are waited for when
    the last has been called for."""

    def __init__(self):
        self._waiting = []   # (LeftSum, its signal)

    def begin(self):
        """A new iteration; the one before was broken off, if it is not finished."""
        waiting, self._waiting = self._waiting, []
        for left, _ in waiting:
            try:
                left.wait(broken_off=True)
            except Lost:
                pass

    def add(self, left, buffer):
        """The future of the sum, for DistributedDataParallel."""
        future = sys.modules["torch"].futures.Future
        signal = future(devices=[buffer.device]) if buffer.is_cuda else future()
        self._waiting.append((left, signal))

        def value(signal):
            error = signal.value()
            if error is not None:
                raise error   # C++ sees no other error
            return buffer
        return signal.then(value)

    def finish(self):
        """All of the iteration's sums have been called for."""
        waiting, self._waiting = self._waiting, []
        for left, signal in waiting:
            error = None
            try:
                left.wait()
            except Lost as lost:
                error = lost
            signal.set_result(error)
