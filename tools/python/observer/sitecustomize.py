# SPDX-License-Identifier: Apache-2.0
"""Tells deft which optimizer a PyTorch job uses (DEFT_PREDICT=auto needs to know), and whether it
scales or clips its gradients.

`deft run` puts this folder on PYTHONPATH in modes deft and covap, and Python imports the module at
its start. It waits until the job imports torch.optim, a GradScaler or torch's functions that clip,
notes class, learning rate and momentum of each optimizer that is made, and hands them to the
preloaded library. The job's objects and results stay as they are; whatever fails here is swallowed.
DEFT_OBSERVE_OPTIMIZER=0 turns it off.
"""

import importlib.machinery
import os
import sys


def _run_the_other_one():
    """Only the first sitecustomize on the path is imported; the machine's own comes after this
    one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _kind(optimizer, group):
    """One group of parameters as DEFT_OPTIMIZER has it, without its learning rate; "unknown" for
    anything but PyTorch's own classes."""
    kind = type(optimizer)
    if not (kind.__module__ + ".").startswith("torch.optim."):
        return "unknown"
    name = kind.__name__.lower()
    if group.get("amsgrad"):
        return "unknown"  # another second moment: not measured
    parts = []
    if name in ("sgd", "rmsprop"):
        parts.append("momentum=%g" % float(group.get("momentum", 0)))
        if group.get("nesterov"):
            parts.append("nesterov=1")
    elif isinstance(group.get("betas"), (tuple, list)):
        parts.append("momentum=%g" % float(group["betas"][0]))
    return name + (":" + ",".join(parts) if parts else "")


def _observe_optimizers(module):
    import ctypes
    import functools

    tell = ctypes.CDLL(None).deft_observe_optimizer
    tell.argtypes, tell.restype = [ctypes.c_char_p], ctypes.c_int
    kinds, rates = set(), set()
    make = module.Optimizer.__init__

    @functools.wraps(make)
    def noted(self, *arguments, **named):
        make(self, *arguments, **named)
        try:
            for group in self.param_groups:
                kinds.add(_kind(self, group))
                rate = group.get("lr")
                rates.add(float(rate) if isinstance(rate, (int, float)) else None)
            # Two different ones, or groups that differ: which of them gets a gradient cannot be
            # told.
            text = next(iter(kinds)) if len(kinds) == 1 else "unknown"
            rate = next(iter(rates)) if len(rates) == 1 else None
            if rate is not None and text != "unknown":
                text += (",lr=%g" if ":" in text else ":lr=%g") % rate
            if tell(text.encode()) != 0:
                tell(b"unknown")
        except Exception:
            pass

    module.Optimizer.__init__ = noted


def _observe_scalers(module):
    import ctypes
    import functools

    tell = ctypes.CDLL(None).deft_set_gradient_scaling
    tell.argtypes, tell.restype = [ctypes.c_int], None
    make = module.GradScaler.__init__

    @functools.wraps(make)
    def noted(self, *arguments, **named):
        make(self, *arguments, **named)
        try:
            if self.is_enabled():
                tell(1)
        except Exception:
            pass

    module.GradScaler.__init__ = noted


def _clips(owner, name):
    """The function says that the job clips when it is first called; traced by a compiler it says
    nothing."""
    import ctypes
    import functools

    tell = ctypes.CDLL(None).deft_set_gradient_clipping
    tell.argtypes, tell.restype = [ctypes.c_int], None
    clip = getattr(owner, name)
    told = []

    @functools.wraps(clip)
    def noted(*arguments, **named):
        import torch
        traced = hasattr(torch, "compiler") and torch.compiler.is_compiling()
        if not traced and not told:
            told.append(True)
            try:
                tell(1)
            except Exception:
                pass
        return clip(*arguments, **named)

    setattr(owner, name, noted)


def _observe_clipping(module):
    for name in ("clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        if hasattr(module, name):
            _clips(module, name)


def _observe_sharded_clipping(module):
    _clips(module.FullyShardedDataParallel, "clip_grad_norm_")


_WATCHED = {"torch.optim.optimizer": _observe_optimizers,
            "torch.nn.utils.clip_grad": _observe_clipping,
            "torch.distributed.fsdp.fully_sharded_data_parallel": _observe_sharded_clipping,
            "torch.cuda.amp.grad_scaler": _observe_scalers,  # in PyTorch 2 a subclass of the next
            "torch.amp.grad_scaler": _observe_scalers}


class _Finder:
    """Sees the modules come that are watched; loads nothing itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_observe(module):
                load(module)
                try:
                    _WATCHED[name](module)
                except Exception:
                    pass

            spec.loader.exec_module = load_and_observe
        return spec


try:
    if os.environ.get("DEFT_OBSERVE_OPTIMIZER", "1") != "0":
        sys.meta_path.insert(0, _Finder)
finally:
    import importlib.util
    _run_the_other_one()
