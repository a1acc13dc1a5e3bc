# SPDX-License-Identifier: Apache-2.0
"""A dispatch mode that sees each operator of the thread. The job's own modes come and go in their
order, so this one goes only where it is the innermost; else it stays, and is to look at nothing."""

import sys


def address(tensor):
    """Of the memory that a tensor lies in; None: it has none."""
    try:
        if hasattr(tensor, "untyped_storage"):
            return tensor.untyped_storage().data_ptr() or None
        return tensor.storage().data_ptr() or None
    except Exception:
        return None


def addresses_in(values):
    from torch.utils._pytree import tree_flatten
    tensor = sys.modules["torch"].Tensor
    return [address(value) for value in tree_flatten(values)[0] if isinstance(value, tensor)]


def innermost():
    """The dispatch mode that sees an operator first; None: there is none."""
    from torch.utils import _python_dispatch as dispatch
    if hasattr(dispatch, "_get_current_dispatch_mode"):
        return dispatch._get_current_dispatch_mode()
    return sys.modules["torch"]._C._get_torch_dispatch_mode()


class Mode:
    def __init__(self, see):
        self._see = see
        self._mode = self._class = None

    def push(self):
        """False: the job runs under a mode of its own."""
        inner = innermost()
        if self._mode is not None or not (inner is None or hasattr(inner, "deft")):
            return self._mode is not None and inner is self._mode
        self._class = self._class or self._make()
        self._mode = self._class()
        self._mode.__enter__()
        return True

    def pop(self):
        # Where inference mode ends, PyTorch has back what it kept when that began: the mode too.
        if sys.modules["torch"].is_inference_mode_enabled():
            return
        if self._mode is not None and innermost() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _make(self):
        from torch.utils._python_dispatch import TorchDispatchMode
        see = self._see

        class Look(TorchDispatchMode):
            deft = True

            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                see(function, arguments, named or {})
                return function(*arguments, **(named or {}))
        return Look
