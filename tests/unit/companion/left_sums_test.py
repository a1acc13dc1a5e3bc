#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What becomes of the memory of a sum that deft has left to the companion."""

import contextlib
import gc
import itertools
import pathlib
import sys
import types
import unittest
import weakref
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "companion"))
sys.dont_write_bytecode = True

from deft_companion import left_sums  # noqa: E402

ADDRESSES = itertools.count(1 << 20, 4096)


class Buffer:
    device = types.SimpleNamespace(type="cpu")

    def __init__(self):
        self._address = next(ADDRESSES)

    def data_ptr(self):
        return self._address


def stays(result, broken_off=True):
    """Whether a buffer does for which deft_wait_sum() says that (null: it is not asked), when its
    owner has let it go."""
    library = types.SimpleNamespace(take_sum=lambda: 1, wait_sum=lambda *_: result)
    with mock.patch.object(left_sums, "library", lambda: library):
        buffer = Buffer()
        seen = weakref.ref(buffer)
        left = left_sums.take(buffer, None)
        with contextlib.suppress(left_sums.Lost):
            if result is not None:
                left.wait(broken_off)
    del buffer, left
    gc.collect()
    return seen() is not None


class Memory(unittest.TestCase):
    def test_of_a_sum_that_is_there_goes(self):
        self.assertFalse(stays(0))
        self.assertFalse(stays(-1), "nothing is sent any more")

    def test_of_one_that_is_not_sent_yet_stays(self):
        """The plan's end sends it."""
        self.assertTrue(stays(1))
        self.assertTrue(stays(1, broken_off=False))
        self.assertTrue(stays(None))

    def test_nobody_waits_once_a_signal_has_broken_the_wait(self):
        """Else the process would be ended later, as if the sum had never come."""
        def interrupted(*_):
            self.assertEqual(len(left_sums.overdue._waits), 1)
            raise KeyboardInterrupt
        library = types.SimpleNamespace(take_sum=lambda: 1, wait_sum=interrupted)
        with (mock.patch.object(left_sums, "library", lambda: library),
              self.assertRaises(KeyboardInterrupt)):
            left_sums.take(Buffer(), None).wait()
        self.assertEqual(len(left_sums.overdue._waits), 0)


if __name__ == "__main__":
    unittest.main()
