# SPDX-License-Identifier: Apache-2.0
"""deft's C API for Python jobs (include/deft/deft.h says what the functions promise).

    import deft
    loss.backward()
    if deft.should_step():
        optimizer.step()

Where the job does not run under deft, should_step() is always True, flush() returns 0 and stats()
is None.
"""

import ctypes

__all__ = ["available", "flush", "set_gradient_clipping", "set_gradient_scaling", "set_optimizer",
           "should_step", "stats", "version"]


class _Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "in_force", "switched", "ended", "iterations", "executed_calls", "forwarded_calls",
        "launched_bytes",
        "delivered", "zeroed_calls", "dropped", "guard_decisions")]


def _find():
    """The preloaded library's functions are in the process's own scope; None where it is not
    preloaded."""
    try:
        process = ctypes.CDLL(None)
        process.deft_version.restype = ctypes.c_char_p
        for number in (process.deft_should_step, process.deft_flush, process.deft_stats):
            number.restype = ctypes.c_int
        process.deft_stats.argtypes = [ctypes.POINTER(_Stats)]
        process.deft_set_optimizer.argtypes = [ctypes.c_char_p]
        process.deft_set_optimizer.restype = ctypes.c_int
        for tell in (process.deft_set_gradient_scaling, process.deft_set_gradient_clipping):
            tell.argtypes, tell.restype = [ctypes.c_int], None
        return process
    except (AttributeError, OSError):
        return None


_library = _find()


def available():
    """True if the job runs under deft."""
    return _library is not None


def version():
    """deft's version, or None."""
    return _library.deft_version().decode() if _library else None


def should_step():
    """False if the gradients just reduced are zeros that stand for "no update". Once per
    iteration, before the optimizer."""
    return _library is None or _library.deft_should_step() != 0


def set_optimizer(text):
    """Names the job's optimizer ("sgd:momentum=0.9,lr=0.1", "adamw"); `deft run` does it for
    PyTorch's own classes."""
    if _library and _library.deft_set_optimizer(text.encode()) != 0:
        raise ValueError(f"deft.set_optimizer({text!r}): not understood; "
                         "see DEFT_OPTIMIZER in docs/configuration.md")


def set_gradient_scaling(scaled):
    """True where the job scales its loss (its own scaler, apex); `deft run` does it for
    PyTorch's GradScaler."""
    if _library:
        _library.deft_set_gradient_scaling(1 if scaled else 0)


def set_gradient_clipping(clipped):
    """True where the job clips its gradients by code of its own (DeepSpeed, Megatron); `deft
    run` does it for PyTorch's functions."""
    if _library:
        _library.deft_set_gradient_clipping(1 if clipped else 0)


def flush():
    """Ends the plan in force between two iterations, on all ranks alike; returns how many
    generations were dropped."""
    dropped = _library.deft_flush() if _library else 0
    if dropped < 0:
        raise RuntimeError("deft.flush() in the middle of an iteration: "
                           "call it between the optimizer and the next backward")
    return dropped


def stats():
    """Counters as a dict, or None."""
    if _library is None:
        return None
    counters = _Stats(size=ctypes.sizeof(_Stats))
    _library.deft_stats(ctypes.byref(counters))
    return {name: getattr(counters, name) for name, _ in _Stats._fields_[1:]}
