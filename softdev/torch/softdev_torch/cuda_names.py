# SPDX-License-Identifier: Apache-2.0
"""Lets "cuda" mean the CPU, for scripts that name it without asking (option --map-cuda).

torch.cuda answers as if every rank had its device, tensors and modules stay on the CPU whatever
device is asked for, and DistributedDataParallel drops device_ids. What needs a GPU's own arithmetic
(autocast's half precision, GradScaler, streams that run at the same time, CUDA graphs, memory
figures) is not imitated: see README.md.
"""

import contextlib
import os
import time

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _mapped(value):
    """The CPU for anything that names a CUDA device, else the value itself."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return CPU
    return value


class CudaIsCpu(TorchFunctionMode):
    """Rewrites the devices in calls of torch's functions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = CPU if isinstance(kwargs["device"],
                                                 int) else _mapped(kwargs["device"])
        if func in (torch.Tensor.to, torch.load):
            args = tuple(_mapped(value) for value in args)
        return func(*args, **kwargs)


class Stream:
    """All work is done when a call returns, so a stream has nothing to do."""

    def __init__(self, *_, **__):
        self.cuda_stream = 0
        self.device = torch.device("cuda", 0)

    def _nothing(self, *_):
        return None

    synchronize = wait_event = wait_stream = _nothing

    def query(self):
        return True

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Event:
    """The time at which it was recorded."""

    def __init__(self, *_, **__):
        self._time = 0.0

    def record(self, *_):
        self._time = time.perf_counter()

    def elapsed_time(self, end):
        return (end._time - self._time) * 1e3

    def query(self):
        return True

    def wait(self, *_):
        return None

    synchronize = wait


def install():
    """Replaces the names in torch.cuda, torch.Tensor and torch.nn.Module. Call before the script
    runs."""
    current = [int(os.environ.get("LOCAL_RANK", "0"))]
    count = max(int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))),
                current[0] + 1)

    def set_device(device):
        if isinstance(device, str):
            index = torch.device(device).index
        else:
            index = getattr(device, "index", device)
        current[0] = current[0] if index is None else int(index)

    @contextlib.contextmanager
    def device(index=None):
        before = current[0]
        if index is not None:
            set_device(index)
        try:
            yield
        finally:
            current[0] = before

    # A function of its own for each name: PyTorch's compiler has rules by function.
    def answering(value):
        return lambda *_, **__: value

    names = {"is_available": lambda: True, "device_count": lambda: count,
             "current_device": lambda: current[0], "set_device": set_device, "device": device,
             "Stream": Stream, "Event": Event, "current_stream": lambda *_: Stream(),
             "default_stream": lambda *_: Stream(),
             "stream": lambda stream=None: contextlib.nullcontext(stream),
             "is_initialized": lambda: True, "init": answering(None),
             "get_device_name": lambda *_: "softdev", "get_device_capability": lambda *_: (0, 0),
             "mem_get_info": lambda *_: (0, 0)}
    for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all", "ipc_collect",
                 "reset_peak_memory_stats"):
        names[name] = answering(None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved",
                 "max_memory_reserved"):
        names[name] = answering(0)
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    module_to = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *args, **kwargs: module_to(
        self, *(_mapped(value) for value in args),
        **{name: _mapped(value) if name == "device" else value for name, value in kwargs.items()})
    initialise = torch.nn.parallel.DistributedDataParallel.__init__

    def init_on_cpu(self, module, device_ids=None, output_device=None, *args, **kwargs):
        initialise(self, module, None, None, *args, **kwargs)
    torch.nn.parallel.DistributedDataParallel.__init__ = init_on_cpu
    # Stays on to the end of the program.
    mode = CudaIsCpu()
    mode.__enter__()
    install.mode = mode
