# SPDX-License-Identifier: Apache-2.0
"""Where DistributedDataParallel keeps the gradients of a bucket."""

import sys
import weakref

from .late_steps import lists_of
from .overdue import why_not_left


class Layout:
    """Of one bucket. It holds from iteration to iteration."""

    def __init__(self, buffer, parameters, optimizer, lists):
        self.address, self.device = buffer.data_ptr(), buffer.device
        self.parameters = parameters
        self.optimizer = weakref.ref(optimizer)
        self.lists = lists      # of them, by its groups
        self.views = []
        at = buffer.storage_offset()
        for parameter in parameters:
            self.views.append(buffer.as_strided(parameter.size(), parameter.stride(), at))
            at += parameter.numel()

    def fits(self, buffer, parameters):
        return (self.address == buffer.data_ptr() and len(parameters) == len(self.parameters) and
                all(one is other for one, other in zip(parameters, self.parameters)))


def layout_of(layers, bucket, buffer):
    """None: it is not as it is known to be."""
    parameters, place = bucket.parameters(), bucket.index()
    known, optimizer = layers.layouts.get(place), layers.module.owner()
    if (known is not None and known.optimizer() is optimizer is not None and
        known.fits(buffer, parameters)):
        return known
    if (optimizer is None or buffer.numel() != sum(one.numel() for one in parameters) or
        not all(id(one) in layers.module.ids for one in parameters)):
        return None
    ids = {id(one) for one in parameters}
    lists = lists_of(optimizer, lambda parameter: id(parameter) in ids)
    layers.layouts[place] = Layout(buffer, parameters, optimizer, lists)
    return layers.layouts[place]


def _is_dense(tensor):
    """Without gaps: then its gradient lies in the bucket as it does itself."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 0:
            return False
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _overlap(parameters):
    """Two of them share memory."""
    ranges = sorted((one.data_ptr(), one.data_ptr() + one.numel() * one.element_size())
                    for one in parameters)
    return any(before[1] > behind[0] for before, behind in zip(ranges, ranges[1:]))


def _is_compiled(module):
    return (hasattr(module, "_orig_mod") or
            getattr(module, "_compiled_call_impl", None) is not None)


def why_not_layers(ddp, module):
    """Why the layers of a module that is proven cannot wait for themselves; "": they can."""
    torch = sys.modules["torch"]
    parameters = module.live()
    if any(type(one) is not torch.nn.Parameter for one in parameters):
        return "parameters are of a class of their own"
    if len({(one.device, one.dtype, one.layout) for one in parameters}) > 1:
        return "parameters are of several devices or types"
    if not all(one.layout is torch.strided and _is_dense(one) for one in parameters):
        return "parameters are not dense"
    if _overlap(parameters):
        return "parameters share memory"
    if any(one.device.type == "cpu" and one.is_shared() for one in parameters):
        return "parameters are shared with other processes"
    if any(isinstance(one, torch.jit.ScriptModule) for one in ddp.modules()):
        return "a part of it is a script (torch.jit)"
    if any(_is_compiled(one) for one in ddp.modules()):
        return "the job compiles (torch.compile)"
    return why_not_left()
