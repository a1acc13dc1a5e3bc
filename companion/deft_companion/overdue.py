# SPDX-License-Identifier: Apache-2.0
"""Sums that never come. Where a rank stands still, PyTorch's watchdog ends the others after the
timeout of the process group. It asks the `Work` of each call, and the work of a sum that deft sends
when it is its turn (left_sums.py) is over before the sum is there. So those are watched here, and
the job ends as it would without deft.
"""

import os
import sys
import threading
import time

from . import say
from .library import guarded

_EVERY = 1.0    # seconds from look to look
# As PyTorch has them: with its prefix since 2.2.
_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_NOTHING, _GOES_ON = 0, 2   # what PyTorch does of an error, for the first


def _number(names, otherwise):
    for name in names:
        if os.environ.get(name):
            try:
                return int(os.environ[name])
            except ValueError:
                return otherwise
    return otherwise


def _ends_by_default():
    """Since 2.2, which has the constant."""
    return hasattr(sys.modules["torch.distributed.distributed_c10d"], "default_pg_nccl_timeout")


def _is_on():
    return _number(_HANDLING, 3 if _ends_by_default() else _NOTHING) != _NOTHING


def why_not_left():
    """Why the job has to hear at once that a sum does not come; "": it ends then, if at all."""
    if _number(_BLOCKING, 0) != 0:
        return "NCCL_BLOCKING_WAIT is set"
    if _number(_HANDLING, _NOTHING) == _GOES_ON:
        return "NCCL_ASYNC_ERROR_HANDLING=2 is set, so it goes on when a sum fails"
    return ""


def timeout_of(group, device):
    """The process group's, in seconds. The job may change it."""
    backend = group._get_backend(device) if hasattr(group, "_get_backend") else group
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    if timeout is None:
        timeout = sys.modules["torch.distributed.distributed_c10d"].default_pg_timeout
    return timeout.total_seconds()


class _Wait:
    """Somebody waits for a sum: a thread, or a stream."""

    def __init__(self, group, device):
        self.group, self.device, self.since = group, device, time.monotonic()
        self.event = None   # comes behind it on the stream; null: a thread waits


class Overdue:
    def __init__(self):
        self._waits, self._watcher = {}, None   # in their order; the values mean nothing

    @guarded
    def begin(self, group, device):
        self._forget_done()
        wait = _Wait(group, device)
        self._waits[wait] = None
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True, name="deft-overdue")
            self._watcher.start()
        return wait

    @guarded
    def end(self, wait, stream):
        """This thread waits no more. `stream`: which does now; null: none does."""
        if wait is None:
            return
        self._waits.pop(wait, None)     # first: what cannot be asked must not be taken for overdue
        if stream is not None:
            wait.event = stream.record_event()
            self._waits[wait] = None

    def _forget_done(self):
        """In the job's own thread: CUDA ends a graph's capture where another thread asks an event
        meanwhile, so the watcher asks none before its time is over."""
        for wait in list(self._waits):
            if wait.event is None or not wait.event.query():
                break
            self._waits.pop(wait, None)

    def _watch(self):
        while True:
            time.sleep(_EVERY)
            self._look()

    @guarded
    def _look(self):
        for wait in list(self._waits):
            waited = time.monotonic() - wait.since
            if waited <= _EVERY or waited <= timeout_of(wait.group, wait.device):
                continue
            if wait.event is not None and wait.event.query():
                self._waits.pop(wait, None)
            elif _is_on():
                self._end_process(waited)

    @staticmethod
    def _end_process(waited):
        """As PyTorch's watchdog does: nobody is left who could be told by an exception."""
        say(f"rank {os.environ.get('RANK', '?')}: the sum of a bucket of gradients has not come "
            f"for {waited:.0f} s, so it timed out (the process group's timeout). The process ends, "
            "as PyTorch's watchdog ends it (docs/companion.md)")
        os.abort()

    def begin_in_child(self):
        """It has no communicator."""
        self._waits, self._watcher = {}, None


overdue = Overdue()
os.register_at_fork(after_in_child=overdue.begin_in_child)
