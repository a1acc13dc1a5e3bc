# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the job has given away, to NumPy, by DLPack or as CUDA's arrays are given
(__cuda_array_interface__), and still has there.
Whoever reads it asks nobody, so layers whose memory it is cannot wait for their own gradients.
"""

import functools
import sys
import weakref

from .library import guarded, library, where
from .modes import address

_MOST = 256   # dead ones are sorted out then, and when as many have come again


class Exports:
    """What was given away. A tensor is there as long as its array is; of a capsule, or of an
    address, nobody knows, so that counts as long as there is the storage."""

    def __init__(self):
        self.heard = None    # is called when one comes
        self._tensors = {}   # {address: [(weakly, the job's line)]}
        self._for_good = {}  # {address: (its storage, weakly, the job's line)}
        self._most_for_good = _MOST
        self._most = _MOST   # a job may keep all its arrays
        self.count = 0       # of all that have come

    def add(self, tensor, for_good):
        self.count += 1
        with sys.modules["torch"]._C.DisableTorchFunction():
            place = address(tensor)
            if for_good:
                self._for_good[place] = (_weakly(tensor), where())
                if len(self._for_good) > self._most_for_good:
                    self._for_good = {place: one for place, one in self._for_good.items()
                                      if not one[0].expired()}
                    self._most_for_good = max(_MOST, 2 * len(self._for_good))
                return
        here = [one for one in self._tensors.get(place, ()) if one[0]() is not None]
        self._tensors[place] = [*here, (weakref.ref(tensor), where())]
        if len(self._tensors) > self._most:
            self._tensors = {place: some for place, some in self._tensors.items()
                             if any(one[0]() is not None for one in some)}
            self._most = max(_MOST, 2 * len(self._tensors))

    def find(self, sums):
        """The first of these sums whose memory is among it, and the line; none: (None, "")."""
        with sys.modules["torch"]._C.DisableTorchFunction():
            if self._tensors or self._for_good:
                for one in sums:
                    for tensor in one.memory():
                        line = self._line_of(address(tensor))
                        if line is not None:
                            return one, line
        return None, ""

    def _line_of(self, place):
        """Where what lies there was given away; None: it was not."""
        if place is None:
            return None
        for weakly, line in self._tensors.get(place, ()):
            if weakly() is not None:
                return line
        weakly, line = self._for_good.get(place, (None, None))
        return line if weakly is not None and not weakly.expired() else None


def _weakly(tensor):
    """What a capsule is of keeps the storage alive, and not the tensor."""
    from torch.multiprocessing.reductions import StorageWeakRef
    has_untyped = hasattr(tensor, "untyped_storage")
    return StorageWeakRef(tensor.untyped_storage() if has_untyped else tensor.storage())


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
    """A function, or a property."""
    give = getattr(owner, name, None)
    if give is None:
        return
    if isinstance(give, property):
        setattr(owner, name, property(_noted(give.fget), doc=give.__doc__))
    else:
        setattr(owner, name, _noted(give))


def _noted(give):
    @functools.wraps(give)
    def noted(tensor, *arguments, **named):
        given = give(tensor, *arguments, **named)
        _note(tensor, given)
        return given
    return noted


def watch(module):
    if not library().layers:
        return
    if module.__name__ == "torch._tensor":
        for name in ("numpy", "__dlpack__", "__cuda_array_interface__"):
            _noting(module.Tensor, name)
    else:
        _noting(module, "to_dlpack")
