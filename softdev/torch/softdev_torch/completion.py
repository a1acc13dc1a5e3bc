# SPDX-License-Identifier: Apache-2.0
"""When an operation is done: futures set by a host function on the communicator's stream, and the
watchdog.

No thread waits for an operation. cuLaunchHostFunc puts a callback behind it on the stream; the
callback sets the future. One watchdog thread for the process does what ProcessGroupNCCL's does:
while anything is outstanding it asks for asynchronous errors and for operations over their time,
fails the futures and aborts the communicator.
"""

import atexit
import itertools
import os
import sys
import threading
import time

import torch
from torch._C._distributed_c10d import _create_work_from_future

from .binding import HOST_FUNCTION, NcclError

POLL_SECONDS = 0.1
# How long the end of the program waits for operations that are still under way, and for a destroy
# to return.
DRAIN_SECONDS = 30.0


class Operation:
    """One operation or group of operations on a communicator: keeps its tensors alive until it
    is done."""

    def __init__(self, what, channel, tensors, value, after=None):
        self.what, self.channel, self.tensors = what, channel, tensors
        self.value, self.after = value, after
        self.started = time.monotonic()
        self.error = None
        self.members = []    # operations of a batch, done when this one is
        self._finished = False
        self._signal = torch.futures.Future()
        self.future = self._signal.then(self._result)
        self.work = _create_work_from_future(self.future)

    def _result(self, _):
        # Raising here is what gives the future an error that C++ callers see too
        # (Future.set_exception does not).
        if self.error:
            raise NcclError(self.error)
        return self.value

    def finish(self, error=None):
        """Sets the future; the second and later calls do nothing."""
        if self._finished:
            return
        self._finished, self.error = True, error
        if not error and self.after:
            try:
                self.after()
            except Exception as problem:
                self.error = f"{self.what}: {problem}"
        self.tensors = self.after = None
        self._signal.set_result(None)
        for member in self.members:
            member.finish(error)


class Tracker:
    """All outstanding operations of the process, by the number that travels through the driver
    as user data."""

    def __init__(self, library):
        self._library = library
        self._numbers = itertools.count(1)
        self._pending = {}
        self._lock = threading.Condition()
        self._channels = []
        self._streams = []   # of every channel there ever was
        self._watchdog = None
        self._end = threading.Event()
        self._failed = False
        self.callback = HOST_FUNCTION(self._fire)

    def add_channel(self, channel):
        with self._lock:
            self._channels.append(channel)
            self._streams.append(channel.stream)

    def remove_channel(self, channel):
        with self._lock:
            if channel in self._channels:
                self._channels.remove(channel)

    def failed(self):
        """Whether any operation of this process ever failed."""
        return self._failed

    def begin(self, operation):
        """Registers before the NCCL call, so that the watchdog can free a call that blocks."""
        with self._lock:
            number = next(self._numbers)
            self._pending[number] = operation
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, name="softdev-watchdog",
                                                  daemon=True)
                self._watchdog.start()
            self._lock.notify_all()
        return number

    def forget(self, number):
        with self._lock:
            self._pending.pop(number, None)
            self._lock.notify_all()

    def _fire(self, number):
        with self._lock:
            operation = self._pending.pop(number, None)
            self._lock.notify_all()
        if operation:
            operation.finish(operation.channel.error)
            self._failed = self._failed or bool(operation.error)

    def outstanding(self, channel=None):
        with self._lock:
            return [operation for operation in self._pending.values()
                    if channel in (None, operation.channel)]

    def wait_idle(self, seconds, channel=None):
        """Waits until nothing is outstanding (on a channel); False when the time is over."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while any(channel in (None, operation.channel) for operation in self._pending.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._lock.wait(left)
        return True

    def fail(self, channel, message):
        """Ends every operation of a channel with an error and aborts its communicator."""
        channel.error, self._failed = channel.error or message, True
        with self._lock:
            numbers = [number for number, operation in self._pending.items()
                       if operation.channel is channel]
            failed = [self._pending.pop(number) for number in numbers]
            self._lock.notify_all()
        # until the abort NCCL may still write there
        kept = [operation.tensors for operation in failed]
        for operation in failed:
            operation.finish(f"{operation.what}: {channel.error}")
        channel.abort()
        del kept

    def _watch(self):
        entered = False
        while True:
            with self._lock:
                while not self._pending and not self._end.is_set():
                    self._lock.wait()
                if self._end.is_set():
                    return
                operations = list(self._pending.values())
            if not entered:
                self._library.enter()
                entered = True
            for channel in {operation.channel for operation in operations}:
                oldest = min(operation.started for operation in operations
                             if operation.channel is channel)
                message = channel.trouble(time.monotonic() - oldest)
                if message:
                    self.fail(channel, message)
            self._end.wait(POLL_SECONDS)

    def close(self, failing):
        """At the end of the program: finishes or aborts what is left, so that no callback comes
        into a dead interpreter."""
        with self._lock:
            channels = list(self._channels)
        idle = not failing and self.wait_idle(DRAIN_SECONDS)

        def close_all():
            self._library.enter()
            for channel in channels:  # in the order they came, as on the other ranks
                channel.destroy() if idle else channel.abort()
            # A callback that has done its work may still be on its way out of the interpreter.
            for stream in self._streams:
                self._library.settle(stream)
        # In a thread, since a peer may be gone.
        closer = threading.Thread(target=close_all, daemon=True)
        threads = [thread for thread in (closer if self._streams else None, self._watchdog)
                   if thread]
        if self._streams:
            closer.start()
        with self._lock:
            self._end.set()
            self._lock.notify_all()
        # A thread that is inside PyTorch's C++ when the interpreter ends would bring the process
        # down.
        deadline = time.monotonic() + DRAIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            names = (", ".join(sorted({operation.what for operation in self.outstanding()}))
                     or "a communicator")
            print(f"softdev-torch: rank {os.environ.get('RANK', '?')}: "
                  f"{names} did not end with the program",
                  file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)


def close_at_exit(tracker):
    """Arranges for tracker.close() before the interpreter goes, and notes whether it goes
    because of an exception."""
    state = {"failing": False}
    previous = sys.excepthook

    def hook(kind, value, trace):
        state["failing"] = True
        previous(kind, value, trace)
    sys.excepthook = hook
    atexit.register(lambda: tracker.close(state["failing"]))
    return state
