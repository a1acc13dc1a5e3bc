# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel's buckets: a communication hook marks each right before it is summed,
and sums it as DDP itself would."""

import contextlib
import functools
import inspect
import sys
import weakref

from . import left_sums
from .layers import layers
from .library import BUCKET, compiling, guarded, library
from .proofs import Module, proofs
from .steps import Steps

_first_forward = weakref.WeakKeyDictionary()   # module: the handle of its hook
_own_hooks = weakref.WeakSet()                 # reducers with a hook of the job's
_hooked = weakref.WeakKeyDictionary()          # reducers with ours: its state


class Buckets:
    """The state of the hook of one module."""

    def __init__(self, ddp, module):
        # What steps.py has of its buckets' memory goes with it.
        self.ddp = weakref.ref(ddp, lambda _: module.forget_state())
        self.module = module
        self.take_group(ddp.process_group)
        self.jobs = None    # hook and state that the job has registered later: they count
        # Layers; null: its layers have never waited for themselves. Once they have, sums are taken
        # (left_sums.py).
        self.layers = None
        self.together = left_sums.Together()

    def take_group(self, group):
        self.group = group
        # As DDP's reducer has it where no hook is registered.
        self.scale = 1.0 / group.size()


def _first(future):
    return future.value()[0]


@functools.lru_cache(None)
def _get_future():
    """Work.get_future as PyTorch has it. The software device's waits, because most callbacks may
    look at the data; this one hands it on."""
    distributed = sys.modules["torch.distributed"]
    work = getattr(distributed, "Work", None) or distributed.distributed_c10d.Work
    return inspect.unwrap(work.get_future)


def _joins(ddp):
    """A rank without inputs sums zeros meanwhile."""
    join = getattr(ddp, "_join_config", None)
    return join is not None and join.enable


_JOINS = "ranks may join with fewer inputs (Join)"


@guarded
def _mark(state, buffer, bucket):
    module, place, last = state.module, bucket.index(), bucket.is_last()
    if library().proof or state.layers is not None:
        library().mark_sum(buffer.data_ptr(), buffer.numel() * buffer.element_size(), BUCKET,
                           module.number, place, last)
    if library().proof:
        if last:
            proofs.set_comes(module)
            if _joins(state.ddp()):
                module.refuse(_JOINS)
        module.sum_comes(place, last)


@guarded
def _refuse_other_group(state):
    state.module.refuse("its process group is another one from now on")


def _sum(state, bucket):
    """The communication hook."""
    if state.jobs is not None:
        hook, its_state = state.jobs
        return hook(its_state, bucket)
    ddp = state.ddp()
    if ddp is not None and ddp.process_group is not state.group:
        # _update_process_group(): the reducer has it too, and its scale.
        state.take_group(ddp.process_group)
        _refuse_other_group(state)
    buffer = bucket.buffer()
    buffer.mul_(state.scale)
    steps = state.module.steps
    if steps is not None and steps.takes_shares:
        steps.shares_come(bucket.index(), bucket, buffer)
    _mark(state, buffer, bucket)
    work = state.group.allreduce([buffer])
    if state.layers is None and not library().layers:
        return _get_future()(work).then(_first)
    return _future_of(state, bucket, buffer, work)


def _future_of(state, bucket, buffer, work):
    """Of a sum of a module whose layers may wait for their own."""
    left = None
    if state.layers is not None:
        if bucket.index() == 0:
            state.together.begin()
        left = left_sums.take(buffer, state.group)
    future = None
    if library().layers:
        done = _done(buffer)
        if layers.take(state, bucket, buffer, work, left):
            future, left = done, None
    if left is not None:
        future = state.together.add(left, buffer)
    if bucket.is_last():
        state.together.finish()
    return future or _get_future()(work).then(_first)


def _done(buffer):
    """A future for whoever is not to wait."""
    future = sys.modules["torch"].futures.Future
    future = future(devices=[buffer.device]) if buffer.is_cuda else future()
    future.set_result(buffer)
    return future


def _why_not(ddp):
    """Why this module's buckets are left alone; "": they are not."""
    world = ddp.process_group.size()
    if ddp.reducer in _own_hooks:
        return "the job has a communication hook of its own (compression)"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DistributedDataParallel's mixed_precision is used"
    if getattr(ddp, "_use_python_reducer", False):
        return "compiled autograd sums the gradients"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params is used"
    if ddp.find_unused_parameters:
        return ("it looks for unused parameters, and what came late for one that is not used then "
                "would be lost")
    if _joins(ddp):
        return _JOINS
    if any(getattr(module, "sparse", False) for module in ddp.modules()):
        return "gradients are sparse"
    if ddp.gradient_as_bucket_view and world & (world - 1):
        return "gradient_as_bucket_view is used, and the number of ranks is no power of two"
    if any(getattr(parameter, "_post_accumulate_grad_hooks", None)
           for parameter in ddp.parameters()):
        return "the job has hooks on gradients"
    return ""


@guarded
def _begin(ddp):
    """A forward of the module: the first with gradients registers the hook."""
    torch = sys.modules["torch"]
    if compiling() or not torch.is_grad_enabled() or not ddp.require_backward_grad_sync:
        return
    handle = _first_forward.pop(ddp, None)
    if handle is not None:
        handle.remove()
    if not library().proof:
        return
    why = _why_not(ddp)
    if why:
        # 0 stands for all sums that have no mark.
        library().refuse_proof(Module([]).number if library().layers else 0, why.encode())
        return
    if ddp.process_group.size() < 2:
        return
    _get_future()  # a PyTorch that has none ends the companion here, and not a backward
    module = Module([parameter for parameter in ddp.parameters() if parameter.requires_grad])
    state = Buckets(ddp, module)
    if not library().layers:   # else nothing comes late
        module.steps = Steps(module, state.group.size())
    _register(ddp.reducer, state, _sum)
    _hooked[ddp.reducer] = state
    proofs.add(module)


_register = None


def _builtin(kind):
    """DDP's built-in hooks as Python has them."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    return (default_hooks.fp16_compress_hook if "FP16" in str(kind) else
            default_hooks.allreduce_hook)


def _inside(hook):
    """A hook of the job's, of whose sums it is known where they are made."""
    @functools.wraps(hook)
    def own(state, bucket):
        proofs.in_own_hook += 1
        try:
            return hook(state, bucket)
        finally:
            proofs.in_own_hook -= 1
    return own


@guarded
def _job_registers(reducer):
    """The job registers a hook. True: ours is there already, and hands on to it."""
    _own_hooks.add(reducer)
    if reducer in _hooked:
        _hooked[reducer].module.refuse("the job has a communication hook of its own (compression)")
    return reducer in _hooked


def _watch_registration():
    """A reducer takes one hook only, so the job's must find its place free, or be handed on to."""
    global _register
    distributed = sys.modules["torch.distributed"]
    _register = distributed._register_comm_hook
    register_builtin = distributed._register_builtin_comm_hook

    @functools.wraps(_register)
    def register(reducer, state, hook):
        if _job_registers(reducer):
            _hooked[reducer].jobs = _inside(hook), state
            return None
        return _register(reducer, state, _inside(hook))

    @functools.wraps(register_builtin)
    def builtin(reducer, kind):
        if _job_registers(reducer):
            group = _hooked[reducer].group
            _hooked[reducer].jobs = _builtin(kind), group
            return None
        return register_builtin(reducer, kind)
    distributed._register_comm_hook = register
    distributed._register_builtin_comm_hook = builtin


class _FirstForward:
    """A hook of a module travels with it, into a file or a copy, and deft need not be there when it
    arrives: it becomes one that does nothing."""

    def __call__(self, ddp, inputs):
        _begin(ddp)

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")


@guarded
def _expect(ddp):
    _first_forward[ddp] = ddp.register_forward_pre_hook(_FirstForward())


def watch(module):
    if not library().proof:
        return
    _watch_registration()
    # A copy, or one out of a file, has a new reducer and comes by the second.
    for name in ("__init__", "__setstate__"):
        setattr(module.DistributedDataParallel, name,
                _expecting(getattr(module.DistributedDataParallel, name)))


def _expecting(make):
    @functools.wraps(make)
    def noted(self, *arguments, **named):
        make(self, *arguments, **named)
        _expect(self)
    return noted
