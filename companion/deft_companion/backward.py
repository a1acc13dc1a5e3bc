# SPDX-License-Identifier: Apache-2.0
"""Sees backward begin and end, in the thread that asks for it."""

import functools
import threading

from .layers import layers
from .library import guarded, library
from .losses import losses
from .proofs import proofs


def watch(module):
    if not library().proof:
        return
    run = module.backward

    @guarded
    def begins(outermost, arguments, named):
        proofs.backward_begins()
        if outermost and library().proof:
            losses.backward_begins(proofs.modules,
                                   arguments[0] if arguments else named.get("tensors"))

    @guarded
    def ends(outermost, failed):
        if outermost and not failed and library().proof:
            losses.gradients_are_there([module for module in proofs.modules
                                        if module.sets == 1 and not module.by_hand])
        proofs.backward_ends()

    depth = threading.local()

    @functools.wraps(run)
    def backward(*arguments, **named):
        # A node may run another backward: in its thread, or in one of autograd's for a device.
        own = getattr(depth, "of", 0)
        outermost = own == 0 and not (proofs.in_backward and _is_autograds())
        if outermost:
            layers.backward_begins()
        before, failed = proofs.enter_backward(), True
        depth.of = own + 1
        try:   # what a signal's handler raises in these is the job's
            if outermost and before:
                _overlaps()
            begins(before == 0, arguments, named)
            result = run(*arguments, **named)
            failed = False
            return result
        finally:
            depth.of = own
            ends(before == 0, failed)
            if outermost:
                layers.backward_ends(failed)
    module.backward = backward


def _is_autograds():
    """Python has not started this thread."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@guarded
def _overlaps():
    """Whose a bucket is, and when its backward is over, is not known any more."""
    why = "several threads are in backward at once"
    layers.stop(why)
    for module in list(proofs.modules):
        if module.watched:
            module.refuse(why)
