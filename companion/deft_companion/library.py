# SPDX-License-Identifier: Apache-2.0
"""The preloaded library's functions for the companion (include/deft/deft.h), and what becomes of
an error: it never reaches the job."""

import ctypes
import functools
import inspect
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
INTERFACE, BEFORE = 4, 3
UNWANTED, OPTIMIZER, PROOF, LAYERS = range(4)
BUCKET, FORWARD, BACKWARD, PARAMETERS, HELD_BACK, COMPRESSED = range(6)

_FUNCTIONS = {
    "companion_begin": (ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p),
    "companion_end": (None, ctypes.c_char_p),
    "mark_sum": (None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32,
                 ctypes.c_uint32, ctypes.c_int),
    "prove_iteration": (ctypes.c_int, ctypes.c_uint32),
    "refuse_proof": (None, ctypes.c_uint32, ctypes.c_char_p),
    "layers_wait": (None, ctypes.c_uint32),
    "take_sum": (ctypes.c_void_p,),
    "wait_sum": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "observe_optimizer": (ctypes.c_int, ctypes.c_char_p),
    "set_gradient_scaling": (None, ctypes.c_int),
    "set_gradient_clipping": (None, ctypes.c_int),
}
# What a library of the interface before does not have.
_NEW = {
    "note_steps": (ctypes.c_int, ctypes.c_uint32, ctypes.c_double, ctypes.c_double),
    "watch_training": (ctypes.c_int, ctypes.c_uint32),
    "note_training": (None, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_double,
                      ctypes.c_double, ctypes.c_double),
}


_OF_LAYERS = ("companion_begin", "companion_end", "refuse_proof", "mark_sum", "layers_wait",
              "take_sum", "wait_sum")


def _nothing(*_):
    return 0


def _take(process, wanted):
    """{name: function}; empty: not all of them are there."""
    found = {}
    for name, (result, *arguments) in wanted.items():
        function = getattr(process, "deft_" + name, None)
        if function is None:
            return {}
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


class _Library:
    """Its attributes are the functions; where nothing is wanted of the companion they do
    nothing."""

    def __init__(self):
        self.wants = UNWANTED
        found = self._find()
        for name in (*_FUNCTIONS, *_NEW):
            setattr(self, name, found.get(name, _nothing))

    def _find(self):
        from . import __version__, say
        process = ctypes.CDLL(None)
        found = _take(process, _FUNCTIONS)
        if not found:
            if hasattr(process, "deft_version"):
                say("the deft that is preloaded knows no companion, so it does nothing")
            return {}  # not preloaded: nobody has asked for anything
        new = _take(process, _NEW)
        wants = -1
        if new:   # with the guest of fleets they may be there, and the library be older
            wants = found["companion_begin"](INTERFACE, __version__.encode())
            found.update(new if wants >= UNWANTED else {})
        if wants < UNWANTED:
            wants = found["companion_begin"](BEFORE, __version__.encode())
        if wants < UNWANTED:
            say("the deft that is preloaded is of another release, so it does nothing")
        self.wants = max(wants, UNWANTED)
        if self.layers:   # nothing comes late
            return {name: found[name] for name in _OF_LAYERS}
        return found if self.wants else {}

    @property
    def proof(self):
        """Whether anything is to be proven."""
        return self.wants in (PROOF, LAYERS)

    @property
    def layers(self):
        """Whether layers may wait for their own gradients, where that is proven."""
        return self.wants == LAYERS

    def stand_down(self, why):
        """From now on the job is as without a companion."""
        if self.wants:
            # Before the marks stop: a sum without its mark would end a plan on this rank alone.
            # Of a module whose layers have waited for themselves they go on (left_sums.py).
            self.companion_end(why.encode())
            self.wants = UNWANTED


_found = []


def library():
    """The library; looked for when torch is there, so not in each Python process."""
    if not _found:
        _found.append(_Library())
    return _found[0]


def guarded(function):
    """A function of the companion that fails ends the companion, and not the job."""
    @functools.wraps(function)
    def harmless(*arguments, **named):
        try:
            return function(*arguments, **named)
        except Exception as error:
            try:
                library().stand_down(f"{type(error).__name__} in {function.__module__}."
                                     f"{function.__name__}: {error}")
            except Exception:
                pass
            if _is_of_a_signal(error):
                raise
            return None
    return harmless


def _is_of_a_signal(error):
    """A handler of the job's has raised it, so it is the job's (a time limit, a scheduler's word).
    It is known by its arguments: the frame that it has interrupted is among them."""
    traceback, interrupted = error.__traceback__, None
    while traceback is not None:
        frame = traceback.tb_frame
        if interrupted is not None and any(value is interrupted for value in _arguments(frame)):
            return True
        traceback, interrupted = traceback.tb_next, frame
    return False


def _arguments(frame):
    names, others, _, values = inspect.getargvalues(frame)
    return (*(values.get(name) for name in names), *values.get(others, ()))


def compiling():
    """A compiler traces the job: what it sees now is not what happens later."""
    torch = sys.modules["torch"]
    # Since 2.3 in torch.compiler; since 2.1 in torch._utils; what is older is not asked.
    ask = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    ask = ask or getattr(getattr(torch, "_utils", None), "is_compiling", None)
    return ask is not None and ask()


def where():
    """The job's line that has led here: " (train.py:31)"."""
    frame = sys._getframe(1)
    torch = os.path.dirname(sys.modules["torch"].__file__)
    while frame is not None:
        name = frame.f_code.co_filename
        if (not name.startswith((_HERE, torch, "<"))
            and os.path.basename(name) not in ("functools.py", "contextlib.py")):
            return f" ({os.path.basename(name)}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
