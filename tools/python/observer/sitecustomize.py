# SPDX-License-Identifier: Apache-2.0
"""Tells deft which optimizer a PyTorch job uses (DEFT_PREDICT=auto needs to know).

`deft run` puts this folder on PYTHONPATH in mode deft, and Python imports the module at its start. It waits until the job
imports torch.optim, notes class, learning rate and momentum of each optimizer that is made, and hands them to the preloaded
library. The job's objects and results stay as they are; whatever fails here is swallowed. DEFT_OBSERVE_OPTIMIZER=0 turns it
off.
"""

import importlib.machinery
import os
import sys


def _run_the_other_one():
    """Only the first sitecustomize on the path is imported; the machine's own comes after this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _text(optimizer, defaults):
    """As DEFT_OPTIMIZER has it; "unknown" for anything but PyTorch's own classes."""
    kind = type(optimizer)
    if not (kind.__module__ + ".").startswith("torch.optim."):
        return "unknown"
    values = dict(defaults)
    text = kind.__name__.lower()
    parts = []
    if text in ("sgd", "rmsprop"):
        parts.append("momentum=%g" % float(values.get("momentum", 0)))
        if values.get("nesterov"):
            parts.append("nesterov=1")
    elif isinstance(values.get("betas"), (tuple, list)):
        parts.append("momentum=%g" % float(values["betas"][0]))
    rate = values.get("lr")
    if isinstance(rate, (int, float)):
        parts.append("lr=%g" % rate)
    return text + (":" + ",".join(parts) if parts else "")


def _observe(torch_optimizer):
    import ctypes
    import functools

    tell = ctypes.CDLL(None).deft_set_optimizer
    tell.argtypes, tell.restype = [ctypes.c_char_p], ctypes.c_int
    seen = set()
    make = torch_optimizer.Optimizer.__init__

    @functools.wraps(make)
    def noted(self, params, defaults, *more, **named):
        make(self, params, defaults, *more, **named)
        try:
            seen.add(_text(self, defaults))
            # Two different ones: which of them gets a gradient cannot be told.
            text = seen.copy().pop() if len(seen) == 1 else "unknown"
            if tell(text.encode()) != 0:
                tell(b"unknown")
        except Exception:
            pass

    torch_optimizer.Optimizer.__init__ = noted


class _Finder:
    """Sees torch.optim.optimizer come; loads nothing itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch.optim.optimizer":
            return None
        try:
            sys.meta_path.remove(cls)
        except ValueError:
            pass
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_observe(module):
                load(module)
                try:
                    _observe(module)
                except Exception:
                    pass

            spec.loader.exec_module = load_and_observe
        return spec


try:
    if os.environ.get("DEFT_OBSERVE_OPTIMIZER", "1") != "0" and not os.environ.get("DEFT_OPTIMIZER"):
        sys.meta_path.insert(0, _Finder)
finally:
    import importlib.util
    _run_the_other_one()
