# SPDX-License-Identifier: Apache-2.0
"""A communicator with its stream, and the names of types and reductions."""

import os
import threading
from ctypes import byref, c_double, c_float, c_int, c_void_p

import torch
import torch.distributed as dist

from .binding import NcclError, UniqueId
from .completion import Operation

# ncclDataType_t by torch type. bool travels as bytes, as in ProcessGroupNCCL.
TYPES = {torch.int8: 0, torch.uint8: 1, torch.bool: 1, torch.int32: 2, torch.int64: 4,
         torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}
for _name, _code in (("uint32", 3), ("uint64", 5), ("float8_e4m3fn", 10), ("float8_e5m2", 11)):
    if hasattr(torch, _name):
        TYPES[getattr(torch, _name)] = _code

_KINDS = dist.ReduceOp.RedOpType
_OPERATIONS = {_KINDS.SUM: 0, _KINDS.PRODUCT: 1, _KINDS.MAX: 2, _KINDS.MIN: 3, _KINDS.AVG: 4}
MAXIMUM = _OPERATIONS[_KINDS.MAX]
NO_COLOR = -1              # NCCL_SPLIT_NOCOLOR
_SCALAR_ON_HOST = 1        # ncclScalarHostImmediate


class PremulFactors:
    """Remembers the factors given to _make_nccl_premul_sum: a CPU build of PyTorch 1.13 cannot
    be asked for them."""

    seen = []

    @classmethod
    def of(cls, operation):
        state = operation.__getstate__() if hasattr(operation, "__getstate__") else None
        if isinstance(state, tuple) and len(state) > 1 and state[1] is not None:
            return float(state[1])
        if len(set(cls.seen)) != 1:
            raise NcclError("PREMUL_SUM: this PyTorch does not tell the factor of a reduction, "
                            f"and the program has made {len(set(cls.seen))} different ones; "
                            "the software device supports one")
        return cls.seen[0]


def data_type(tensor):
    try:
        return TYPES[tensor.dtype]
    except KeyError:
        raise TypeError(f"Unsupported data type for NCCL process group: {tensor.dtype}") from None


def check_dense(tensors):
    for tensor in tensors:
        if tensor.is_sparse or not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous and dense, as for ProcessGroupNCCL")


def address(tensor):
    return c_void_p(tensor.data_ptr())


def give_way():
    """SOFTDEV_NICE: this thread, which computes, lets those go first that were there before:
    they stand for GPU and network, which on a real host wait for no core."""
    nice = int(os.environ.get("SOFTDEV_NICE") or 0)
    if nice:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def by_unique_id(library, store, key, rank, size):
    """How a channel meets the other ranks: rank 0's unique id travels through the store."""
    def make(comm):
        unique = UniqueId()
        if rank == 0:
            library.nccl("ncclGetUniqueId", byref(unique))
            store.set(key, unique.to_hex())
        else:
            unique = UniqueId.from_hex(store.get(key).decode())
        library.nccl("ncclCommInitRank", byref(comm), size, unique, rank)
    return make


def by_split(parent, color, rank):
    """How a channel meets the other ranks: all ranks of its parent split, as `rank` of `color`."""
    def make(comm):
        parent.split(color, rank, comm)
    return make


class Channel:
    """One communicator and the stream its operations go to. `make` fills in the communicator."""

    def __init__(self, library, tracker, rank, size, device, timeout, make):
        self.rank, self.size, self.timeout, self.error = rank, size, timeout, None
        self._library, self._tracker, self._closing = library, tracker, threading.Lock()
        library.open_device(device)
        self.stream = library.make_stream()
        self.comm = c_void_p()
        make(self.comm)
        tracker.add_channel(self)
        give_way()

    def split(self, color, rank, child):
        """ncclCommSplit, into `child`; which stays empty with color NO_COLOR."""
        self._library.enter()
        self.nccl("ncclCommSplit", self.comm, color, rank, byref(child), None)

    def trouble(self, seconds):
        """What is wrong with the communicator, given how long its oldest operation runs; None if
        nothing is."""
        if self.error:
            return self.error
        if not self.comm:
            return "the communicator was destroyed with operations outstanding"
        result = self._library.async_error(self.comm)
        if result:
            return self._library.describe("the communicator", result, self.comm)
        result = self._library.stream_error(self.stream)
        if result:
            return f"the stream failed with CUDA error {result}"
        if seconds > self.timeout:
            return (f"timed out after {seconds:.0f} s "
                    f"(the process group's timeout is {self.timeout:.0f} s)")
        return None

    def nccl(self, function, *arguments):
        self._library.nccl(function, *arguments, comm=self.comm)

    def start(self, operation, calls):
        """Runs `calls` (which issue NCCL calls) and puts the operation's completion behind them."""
        self._library.enter()
        if self.error or not self.comm:
            raise NcclError(f"{operation.what}: {self.error or 'the process group was destroyed'}")
        number = self._tracker.begin(operation)
        try:
            calls()
            self._library.cuda("cuLaunchHostFunc", self.stream, self._tracker.callback, number)
        except BaseException as error:
            self._tracker.forget(number)
            if isinstance(error, NcclError):
                raise NcclError(self.error or str(error)) from None
            raise
        return operation.work

    def operation(self, what, tensors, value, after=None):
        return Operation(what, self, tensors, value, after)

    def reduce(self, function, operation, source, target, *root):
        """Issues a reducing collective of target.numel() elements from source to target."""
        op, made = self.reduction(operation, target)
        self.nccl(function, address(source), address(target), target.numel(), data_type(target), op,
                  *root, self.comm, self.stream)
        if made:
            self.nccl("ncclRedOpDestroy", op, self.comm)

    def reduction(self, operation, tensor):
        """ncclRedOp_t for a ReduceOp on a tensor, and whether it has to be destroyed after the
        call."""
        kind = getattr(operation, "op", operation)
        if kind == _KINDS.PREMUL_SUM:
            if tensor.dtype not in (torch.float16, torch.float32, torch.float64):
                raise TypeError("Only half, float, and double are supported for PREMUL_SUM")
            factor = PremulFactors.of(operation)
            scalar = c_double(factor) if tensor.dtype is torch.float64 else c_float(factor)
            if tensor.dtype is torch.float16:
                half = torch.tensor([factor], dtype=torch.float16)
                scalar = (c_int * 1)(half.view(torch.int16).item())
            made = c_int()
            self.nccl("ncclRedOpCreatePreMulSum", byref(made), byref(scalar), data_type(tensor),
                      _SCALAR_ON_HOST, self.comm)
            return made.value, True
        if tensor.dtype is torch.bool:
            if kind == _KINDS.AVG:
                raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
            if kind == _KINDS.SUM:
                return MAXIMUM, False  # a sum of truth values is their "or"
        if kind not in _OPERATIONS:
            raise ValueError(f"Cannot use ReduceOp.{getattr(kind, 'name', kind)} with NCCL")
        return _OPERATIONS[kind], False

    def abort(self):
        self._close("ncclCommAbort")

    def destroy(self):
        self._close("ncclCommAbort" if self.error else "ncclCommDestroy")

    def _close(self, function):
        with self._closing:
            comm, self.comm = self.comm, None
        if comm:
            self._tracker.remove_channel(self)
            self._library.enter()
            self._library.nccl(function, comm)
