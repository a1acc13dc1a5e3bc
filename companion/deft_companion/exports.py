# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the job has given away, to NumPy or by DLPack, and still has there.
Whoever reads it asks nobody, so layers whose memory it is cannot wait for their own gradients.
"""

import functools
import sys
import weakref

from .library import guarded, library, where
from .modes import address

_MOST = 256   # dead ones are sorted out then


class Exports:
    """What was given away. A tensor is there as long as its array is; of a capsule nobody knows."""

    def __init__(self):
        self.heard = None    # is called when one comes
        self._tensors = []   # [(weakly, the job's line)]
        self._for_good = {}  # {address: line}
        self.count = 0       # of all that have come

    def add(self, tensor, for_good):
        self.count += 1
        if for_good:
            self._for_good[address(tensor)] = where()
            return
        self._tensors.append((weakref.ref(tensor), where()))
        if len(self._tensors) > _MOST:
            self._tensors = [one for one in self._tensors if one[0]() is not None]

    def find(self, sums):
        """The first of these sums whose memory is among it, and the line; none: (None, "")."""
        with sys.modules["torch"]._C.DisableTorchFunction():
            given = {**self._for_good, **{address(tensor): line for tensor, line in (
                (one(), line) for one, line in self._tensors) if tensor is not None}}
            given.pop(None, None)
            if given:
                for one in sums:
                    for tensor in one.memory():
                        if address(tensor) in given:
                            return one, given[address(tensor)]
        return None, ""


exports = Exports()


@guarded
def _note(tensor, given):
    kind = sys.modules["torch"].Tensor
    base = getattr(given, "base", None)   # an array's, which need not be the tensor that was asked
    if isinstance(tensor, kind):
        exports.add(base if isinstance(base, kind) else tensor, not isinstance(base, kind))
        if exports.heard is not None:
            exports.heard()


def _noting(owner, name):
    give = getattr(owner, name, None)
    if give is None:
        return

    @functools.wraps(give)
    def noted(tensor, *arguments, **named):
        given = give(tensor, *arguments, **named)
        _note(tensor, given)
        return given
    setattr(owner, name, noted)


def watch(module):
    if not library().layers:
        return
    if module.__name__ == "torch._tensor":
        for name in ("numpy", "__dlpack__"):
            _noting(module.Tensor, name)
    else:
        _noting(module, "to_dlpack")
