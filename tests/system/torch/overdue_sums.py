# SPDX-License-Identifier: Apache-2.0
"""A sum that a GPU's stream waits for, with a stand-in for the stream; CASE says what becomes of
it. Prints "over" where the process outlives the timeout of its process group.

sys.argv[1]: the folder of the package deft_companion.
"""

import os
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import torch.distributed  # noqa: F401

sys.path.insert(0, sys.argv[1])
from deft_companion import overdue  # noqa: E402


class Stream:
    """Its event comes at a third of the timeout, or never."""

    def record_event(self):
        began = time.monotonic()
        return SimpleNamespace(query=lambda: os.environ["CASE"] == "comes" and
                               time.monotonic() - began > 0.2)


def main():
    overdue._EVERY = 0.05
    group = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=0.6)))
    watched = overdue.Overdue()
    watched.end(watched.begin(group, None), Stream())
    time.sleep(2)
    print("over", len(watched._waits), overdue.why_not_left())


if __name__ == "__main__":
    main()
