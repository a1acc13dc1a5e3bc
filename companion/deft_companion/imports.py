# SPDX-License-Identifier: Apache-2.0
"""Sees the modules of torch come that are watched, and has each looked at when it is loaded."""

import functools
import importlib
import importlib.machinery
import sys

from .library import guarded

# Which modules of this package look at which of torch's.
_WATCHED = {
    "torch.autograd": ("backward",),
    "torch.autograd.function": ("layer_hooks",),
    "torch._functorch.eager_transforms": ("layer_hooks",),
    "torch.utils": ("swapped",),
    "torch._tensor": ("exports",),
    "torch.utils.dlpack": ("exports",),
    "torch.nn.parameter": ("layer_hooks",),
    "torch.nn.modules.module": ("layer_hooks",),
    "torch.optim.optimizer": ("optimizers", "layer_hooks"),
    "torch.nn.utils.clip_grad": ("clipping",),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("clipping",),
    "torch.cuda.amp.grad_scaler": ("scaling",),  # in PyTorch 2 a subclass of the next
    "torch.amp.grad_scaler": ("scaling",),
    "torch.cuda.graphs": ("layer_hooks",),
    "torch._dynamo.decorators": ("reads",),
    "torch._dynamo.eval_frame": ("layer_hooks",),
    "torch.nn.parallel.distributed": ("buckets",),
    "torch.distributed.distributed_c10d": ("collectives", "layer_hooks"),
}


@guarded
def _look_at(name, module):
    for one in _WATCHED[name]:
        importlib.import_module("." + one, __package__).watch(module)


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
