# SPDX-License-Identifier: Apache-2.0
"""Puts the process group where torch.distributed has ProcessGroupNCCL. Knows what differs
between PyTorch versions."""

import datetime
import functools
import re
import time

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as native

from . import fsdp
from .binding import NcclError
from .channel import PremulFactors
from .group import NcclGroup
from .nccl2 import NcclGroup2, NcclLazyGroup, default_group

NO_TIMEOUT = datetime.timedelta(0)


def _publish(name, value):
    """Sets a name of torch.distributed in every module it is imported from."""
    for module in (c10d, dist):
        if module is c10d or hasattr(module, name):
            setattr(module, name, value)


def install():
    """After this, init_process_group("nccl") makes an NcclGroup. Call before the script runs."""
    cpu = torch.device("cpu")
    _publish("is_nccl_available", lambda: True)
    _publish("ProcessGroupNCCL", NcclGroup)
    dist.ProcessGroupNCCL = native.ProcessGroupNCCL = NcclGroup
    c10d._NCCL_AVAILABLE = True
    for name in ("_get_pg_device", "_get_pg_default_device", "_get_object_coll_device"):
        if hasattr(c10d, name):
            original = getattr(c10d, name)
            setattr(c10d, name, functools.partial(_device_of, original, cpu))
    if hasattr(native, "ProcessGroupNCCL2"):
        _install_nccl2()
    _publish("init_process_group", _without_device(c10d.init_process_group))
    _publish("new_group", _without_device(c10d.new_group))
    _publish("destroy_process_group", _destroying(c10d.destroy_process_group))
    _raise_in_wait()
    _complete_before_callbacks()
    fsdp.install()
    make = native._make_nccl_premul_sum

    def recording(factor):
        PremulFactors.seen.append(float(factor))
        return make(factor)
    native._make_nccl_premul_sum = recording
    _publish("_make_nccl_premul_sum", recording)


def _install_nccl2():
    """The same for PyTorch 2.15's backends. TORCH_DIST_USE_NCCL2=0 chooses the older one for
    "nccl", as it does without a launcher."""
    for name, group in (("ProcessGroupNCCL2", NcclGroup2), ("ProcessGroupNCCLLazy", NcclLazyGroup)):
        _publish(name, group)
        setattr(dist, name, group)
        setattr(native, name, group)
    # There need not be a CUDA device.
    c10d._nccl2_device = lambda options: None
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def new_process_group(group_size, group_rank, ranks, backend, *arguments, **named):
        parent = default_group() if ranks else None
        made = make(group_size, group_rank, ranks, backend, *arguments, **named)
        lazy = getattr(named.get("backend_options"), "lazy_init", False)
        if (parent is not None and not lazy and parent.rank() not in ranks and
            str(backend) in ("nccl", "nccl2", "nccl-lazy", "cuda:nccl")):
            parent.perform_nocolor_split()
        return made
    c10d._new_process_group_helper = new_process_group


def _without_device(original):
    """A device named for a group is a GPU, and says that the communicator is made at once."""
    @functools.wraps(original)
    def make_group(*arguments, device_id=None, **named):
        made = original(*arguments, **named)
        group = made or c10d.GroupMember.WORLD
        if device_id is not None and isinstance(group, NcclGroup):
            group.eager_connect_single_device(device_id)
        return made
    return make_group


def _device_of(original, cpu, group=None):
    """Objects travel in CPU tensors: the group's device would be "cuda"."""
    group = group or c10d._get_default_group()
    return cpu if isinstance(group, NcclGroup) else original(group)


def _groups():
    """All process groups that exist, oldest first."""
    table = c10d._world.pg_map if hasattr(c10d, "_world") else c10d._pg_map
    return list(table)


def _destroying(original):
    @functools.wraps(original)
    def destroy_process_group(group=None):
        world = c10d.GroupMember.WORLD
        doomed = _groups() if group is None or group == world else [group]
        original(group)
        for one in doomed:
            if isinstance(one, NcclGroup):
                one.shutdown()
    return destroy_process_group


def _message(error):
    """The text that an operation failed with, out of what PyTorch wraps it in."""
    found = re.search(r"NcclError: (.*?)\n\nAt:", str(error), re.S)
    return found.group(1) if found else str(error)


def _raise_in_wait():
    """Work.wait() of a work made from a future returns when the future failed, or has no time
    limit, in some versions: make it raise, and give it one."""
    original = dist.Work.wait if hasattr(dist, "Work") else c10d.Work.wait

    def wait(self, timeout=NO_TIMEOUT):
        if timeout > NO_TIMEOUT:
            deadline = time.monotonic() + timeout.total_seconds()
            while not self.is_completed():
                if time.monotonic() > deadline:
                    raise NcclError(f"an operation did not end within {timeout}")
                time.sleep(0.001)
        try:
            done = original(self)
            if NcclGroup.tracker and NcclGroup.tracker.failed():
                self.result()
        except RuntimeError as error:
            raise NcclError(_message(error)) from None
        return done
    c10d.Work.wait = wait


def _complete_before_callbacks():
    """NCCL's futures are complete when an operation has been enqueued: what a communication hook
    puts behind one runs at once, in the thread that asks, and may call NCCL. So the order of all
    calls is that of the program, on every rank. Here a future is complete when the data are
    there; a callback put on it earlier would run in a host function, which may not call NCCL,
    whenever that comes."""
    work = dist.Work if hasattr(dist, "Work") else c10d.Work
    original = work.get_future

    def get_future(self):
        self.wait()
        return original(self)
    work.get_future = get_future
