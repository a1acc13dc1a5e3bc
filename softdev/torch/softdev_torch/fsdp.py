# SPDX-License-Identifier: Apache-2.0
"""What FSDP2 of PyTorch 2.6 lacks where its device is the CPU; 2.7 and later have it."""

import functools

import torch


def install():
    """Call before the script runs."""
    if tuple(torch.__version__.split(".")[:2]) == ("2", "6"):
        _complete_streams()
        _keep_versions()


def _complete_streams():
    """All work of a CPU is done when a call returns."""
    def nothing(*_):
        return None
    torch.cpu.Stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = torch.cpu.Stream.synchronize = nothing


def _keep_versions():
    """Parameters that are gathered again for the backward pass are what the forward pass saw. The
    CPU's copy into them counts as a change, a GPU's does not."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
    original = _fsdp_collectives.foreach_all_gather_copy_out

    @functools.wraps(original)
    def copy_out(result, parameters, group):
        before = [(output, output._version) for parameter in parameters
                  for output in parameter.all_gather_outputs]
        original(result, parameters, group)
        for output, version in before:
            torch._C._autograd._unsafe_set_version_counter(output, version)
    for module in (_fsdp_collectives, _fsdp_param_group):
        module.foreach_all_gather_copy_out = copy_out
