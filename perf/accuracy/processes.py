# SPDX-License-Identifier: Apache-2.0
"""The jobs that are running, and how all of them end when the program does."""

import contextlib
import os
import signal
import subprocess
import threading

from ..common.hosts import die_with_parent


class Stopped(RuntimeError):
    """No job is started any more."""


class TooLong(RuntimeError):
    """A job was not done in time, and was ended."""


def _kill(process):
    """The job with its ranks: they share a process group. Another thread may be about to note
    that it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)


class Processes:
    """Starts jobs, from any thread; a job ends with this program at the latest."""

    def __init__(self):
        self._lock, self._running, self.stopped = threading.Lock(), set(), False

    def run(self, command, environment, folder, timeout):
        """(exit code, what it said, what it said on its standard error). Stopped if stop() was
        called before, TooLong."""
        with self._lock:
            if self.stopped:
                raise Stopped
            # The launcher takes its ranks with it when it is asked to end; killed, it would leave
            # them.
            process = subprocess.Popen(command, env=environment, cwd=folder,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True,
                                       preexec_fn=die_with_parent(signal.SIGTERM))
            self._running.add(process)
        try:
            out, errors = process.communicate(timeout=timeout)
            return process.returncode, out, errors
        except subprocess.TimeoutExpired as error:
            with self._lock:
                _kill(process)
            process.communicate()
            raise TooLong(f"not done after {timeout:.0f} s") from error
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self):
        """Ends all jobs; none is started any more."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                _kill(process)
