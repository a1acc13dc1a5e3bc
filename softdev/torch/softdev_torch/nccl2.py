# SPDX-License-Identifier: Apache-2.0
"""The process groups of PyTorch 2.15, where backend "nccl" is by default the one it calls nccl2.

What differs from NcclGroup is the life of communicators, as ProcessGroupNCCL2 has it. A group makes
its communicator when it is made, not at its first collective. A group of some ranks is split off
the default group's. One communicator serves sends and receives too; nccl-lazy has one for each
pair of ranks. A communicator can be suspended and resumed.
"""

from ctypes import byref, c_uint64, c_void_p

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .channel import NO_COLOR, by_split
from .group import NcclGroup

SUSPEND_MEMORY = 1         # NCCL_SUSPEND_MEM
# ncclCommMemStat_t, by PyTorch's names.
MEMORY_STATS = {"gpu_mem_suspend": 0, "gpu_mem_suspended": 1, "gpu_mem_persist": 2,
                "gpu_mem_total": 3}


def default_group():
    """The default group if groups of some ranks are split off it, else None."""
    group = c10d._get_default_group() if dist.is_initialized() else None
    return group if isinstance(group, NcclGroup2) else None


class NcclGroup2(NcclGroup):
    """Backend "nccl" from PyTorch 2.15 on, "nccl2" by its full name."""

    supports_splitting = True

    def __init__(self, store, rank, size, options=None, device=None):
        super().__init__(store, rank, size, options)
        self._ranks = list(getattr(options, "global_ranks_in_group", None) or range(size))
        self._parent = None if getattr(options, "lazy_init", False) else default_group()
        if not getattr(options, "lazy_init", False):
            self.channel()

    def channel(self):
        if self._channel is None and self._parent is not None:
            color = c10d._process_group_color(self._ranks)
            self._channel = self._open(self._rank, self._size,
                                       by_split(self._parent.channel(), color, self._rank))
        return super().channel()

    def perform_nocolor_split(self, device=None):
        """What a rank calls that is not in the group which the others split off."""
        self.channel().split(NO_COLOR, 0, c_void_p())

    def _pair(self, peer):
        return self.channel(), peer

    def suspend(self):
        self._whole("ncclCommSuspend", SUSPEND_MEMORY)

    def resume(self):
        self._whole("ncclCommResume")

    def memory_stats(self):
        stats = {}
        for name, number in MEMORY_STATS.items():
            value = c_uint64()
            self._whole("ncclCommMemStats", number, byref(value))
            stats[name] = value.value
        return stats

    def _whole(self, function, *arguments):
        """A call that concerns the communicator itself."""
        channel = self.channel()
        self.library.enter()
        channel.nccl(function, channel.comm, *arguments)


class NcclLazyGroup(NcclGroup2):
    """Backend "nccl-lazy": each pair of ranks has a communicator of its own."""

    _pair = NcclGroup._pair
