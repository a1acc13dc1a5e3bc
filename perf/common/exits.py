# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the scripts in perf/. A missed bar is a result; a run that failed is none, and
has a code of its own."""

import os
import signal
import sys
import traceback

MET, MISSED, USAGE, LACKING, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130


def of_bars(missed, failed):
    """What a script returns whose figures stand beside bars."""
    return FAILED if failed else MISSED if missed else MET


def on_signals():
    """The program ends with 128 plus the signal's number, by way of its `finally`, where the
    signal is not ignored (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda received, _: sys.exit(128 + received))


def run(label, main):
    """Ends the program with what main() returns. An exception that nobody expected is one line
    and FAILED: Python's own exit code for it is that of a missed bar."""
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split()) or "no more is known"
        print(f"{label}: failed: {type(error).__name__}: "
              f"{words} ({os.path.basename(where.filename)}:{where.lineno})", file=sys.stderr)
        code = FAILED
    sys.exit(code)
