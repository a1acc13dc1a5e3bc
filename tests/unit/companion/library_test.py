#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of the preloaded library's functions the companion has, where the two are of different
releases."""

import contextlib
import functools
import io
import pathlib
import signal
import sys
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "companion"))
sys.dont_write_bytecode = True

from deft_companion import library  # noqa: E402

BEGIN, NEW = "companion_begin", tuple(library._NEW)


class Process:
    """As ctypes.CDLL(None), with a library that is preloaded or without one."""

    def __init__(self, functions, *known):
        self.begun = []

        def begin(interface, _who):
            self.begun.append(interface)
            return library.PROOF if interface in known else -1
        for name in functions:
            function = mock.Mock(return_value=7) if name != BEGIN else mock.Mock(side_effect=begin)
            setattr(self, "deft_" + name, function)


class Releases(unittest.TestCase):
    def begin(self, process):
        """What the companion has then, and what it says."""
        said = io.StringIO()
        with mock.patch.object(library.ctypes, "CDLL", lambda _: process), \
             contextlib.redirect_stderr(said):
            return library._Library(), said.getvalue()

    def test_one_of_the_same_release_hears_of_the_loss(self):
        process = Process((*library._FUNCTIONS, *NEW), library.INTERFACE, library.BEFORE)
        found, said = self.begin(process)
        self.assertEqual((process.begun, said), ([library.INTERFACE], ""))
        self.assertEqual((found.wants, found.watch_training(1)), (library.PROOF, 7))

    def test_one_of_the_release_before_does_not(self):
        process = Process(library._FUNCTIONS, library.BEFORE)
        found, said = self.begin(process)
        self.assertEqual((process.begun, said), ([library.BEFORE], ""))
        self.assertEqual((found.wants, found.prove_iteration(1)), (library.PROOF, 7))
        self.assertEqual(found.watch_training(1), 0, "nothing is asked for")
        self.assertEqual(found.note_steps(1, -1, -1), 0, "no steps need be measured")
        found.note_training(1, 0, 1, 0.5, 1.0, 0.1)

    def test_nor_does_one_behind_a_guest_that_is_newer(self):
        process = Process((*library._FUNCTIONS, *NEW), library.BEFORE)
        found, said = self.begin(process)
        self.assertEqual(process.begun, [library.INTERFACE, library.BEFORE])
        self.assertEqual((found.wants, found.watch_training(1), said), (library.PROOF, 0, ""))
        process.deft_watch_training.assert_not_called()

    def test_one_that_is_further_apart_is_left_alone(self):
        for name, known in (("older", library.BEFORE - 1), ("newer", library.INTERFACE + 1)):
            with self.subTest(name):
                found, said = self.begin(Process((*library._FUNCTIONS, *NEW), known))
                self.assertIn("of another release", said)
                self.assertEqual((found.wants, found.prove_iteration(1)), (library.UNWANTED, 0))

    def test_where_nothing_is_preloaded_nothing_is_said(self):
        found, said = self.begin(Process(()))
        self.assertEqual((found.wants, said), (library.UNWANTED, ""))
        found, said = self.begin(Process(("version", BEGIN), library.INTERFACE))
        self.assertIn("knows no companion", said)
        self.assertEqual(found.wants, library.UNWANTED)


class Compiling(unittest.TestCase):
    def test_it_is_asked_where_each_release_has_it(self):
        asked = types.SimpleNamespace(is_compiling=lambda: True)
        without = types.SimpleNamespace()
        for release, torch, compiling in (
                ("2.6", types.SimpleNamespace(compiler=asked, _utils=without), True),
                ("2.1", types.SimpleNamespace(compiler=without, _utils=asked), True),
                ("1.13", types.SimpleNamespace(_utils=without), False)):
            with self.subTest(release), mock.patch.dict(sys.modules, torch=torch):
                self.assertIs(library.compiling(), compiling)


class Late(Exception):
    pass


class Guarded(unittest.TestCase):
    """What fails in the companion stays there, and what the job raises in it does not."""

    def setUp(self):
        self.stands_down = mock.Mock()
        patch = mock.patch.object(library, "library",
                                  lambda: types.SimpleNamespace(stand_down=self.stands_down))
        patch.start()
        self.addCleanup(patch.stop)

    def raise_by(self, handler):
        """In a guarded function, as a signal's handler."""
        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        @library.guarded
        def works():
            signal.raise_signal(signal.SIGUSR1)
            return 7
        return works

    def test_what_fails_in_it_stays_there(self):
        def of_the_job():
            raise Late

        @library.guarded
        def fails(*_):
            of_the_job()
        self.assertIsNone(fails())
        self.stands_down.assert_called_once()
        frame = sys._getframe()
        self.assertIsNone(fails(frame), "the frame that calls it is not interrupted")

    def test_what_a_handler_of_a_signal_raises_is_the_jobs(self):
        def deep():
            raise Late

        def handler(_number, _frame):
            deep()

        def sets_back(*arguments):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            raise Late

        class Limit:
            def end(self, number, frame):
                raise Late
        for one in (handler, sets_back, Limit().end, functools.partial(handler)):
            with self.subTest(one):
                self.assertRaises(Late, self.raise_by(one))
                self.stands_down.assert_called()
        self.assertEqual(self.raise_by(lambda *_: None)(), 7)


if __name__ == "__main__":
    unittest.main()
