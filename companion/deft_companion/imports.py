# SPDX-License-Identifier: Apache-2.0
"""Sees the modules of torch come that are watched, and has each looked at when it is loaded."""

import functools
import importlib
import importlib.machinery
import sys

from .library import guarded

# Which module of this package looks at which of torch's.
_WATCHED = {
    "torch.autograd": "backward",
    "torch.optim.optimizer": "optimizers",
    "torch.nn.utils.clip_grad": "clipping",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "clipping",
    "torch.cuda.amp.grad_scaler": "scaling",  # in PyTorch 2 a subclass of the next
    "torch.amp.grad_scaler": "scaling",
    "torch.nn.parallel.distributed": "buckets",
    "torch.distributed.distributed_c10d": "collectives",
}


@guarded
def _look_at(name, module):
    importlib.import_module("." + _WATCHED[name], __package__).watch(module)


class _Finder:
    """Loads nothing itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            @functools.wraps(load)
            def load_and_look(module):
                load(module)
                _look_at(name, module)
            spec.loader.exec_module = load_and_look
        return spec


def install():
    if _Finder not in sys.meta_path and "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder)
