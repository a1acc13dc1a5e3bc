# SPDX-License-Identifier: Apache-2.0
"""What a step that was put off runs in: as where the job has asked for it, and not as where it is
caught up (a forward pass under autocast or inside of torch.func's transforms, an evaluation in
inference mode, a job's own mode)."""

import contextlib
import sys


def _autocasts(kind):
    torch = sys.modules["torch"]
    try:
        return torch.is_autocast_enabled(kind)
    except TypeError:   # before PyTorch 2.4
        return torch.is_autocast_cpu_enabled() if kind == "cpu" else torch.is_autocast_enabled()


def why_not_plain(device, stream):
    """Why a step that is asked for here cannot be put off; "": it can."""
    if sys.modules["torch"].is_inference_mode_enabled() or capturing():
        return "its optimizer steps in inference mode, or into a CUDA graph"
    if any(_autocasts(kind) for kind in {"cpu", device.type}):
        return "its optimizer steps under autocast"
    if stream != stream_of(device):
        return "its optimizer steps on another stream than backward's"
    return ""


def capturing():
    """Into a CUDA graph: nothing may wait for the device now."""
    cuda = sys.modules["torch"].cuda
    return cuda.is_initialized() and cuda.is_current_stream_capturing()


def stream_of(device):
    return sys.modules["torch"].cuda.current_stream(device) if device.type == "cuda" else None


@contextlib.contextmanager
def _without_dispatch_modes():
    guard = sys.modules["torch"]._C._DisableTorchDispatch
    if hasattr(guard, "__enter__"):
        with guard():
            yield
        return
    held = guard()   # before PyTorch 2: for as long as it is there
    try:
        yield
    finally:
        del held


def _transform():
    """The innermost of torch.func that this thread is in; None: it is in none."""
    transforms = getattr(sys.modules["torch"]._C, "_functorch", None)
    innermost = getattr(transforms, "peek_interpreter_stack", None)   # since PyTorch 2
    return innermost() if innermost is not None else None


def _leave_transforms(stack):
    """An operator inside of one is the transform's: it differentiates what has its level, and lets
    nothing else be changed in place."""
    while _transform() is not None:
        transforms = sys.modules["torch._functorch.pyfunctorch"]
        stack.enter_context(transforms.temporarily_pop_interpreter_stack())


@contextlib.contextmanager
def plain(device, stream):
    """Nobody's modes, on the stream of the step. What comes afterwards waits for it."""
    torch = sys.modules["torch"]
    now = stream_of(device)
    with contextlib.ExitStack() as stack:
        _leave_transforms(stack)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in {"cpu", device.type}:
            if _autocasts(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if stream is not None and now != stream:
            stack.enter_context(torch.cuda.stream(stream))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_without_dispatch_modes())
        yield
    if stream is not None and now != stream:
        now.wait_stream(stream)
