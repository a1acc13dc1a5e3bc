#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the job has given away of its tensors' memory, and how long that counts."""

import contextlib
import pathlib
import sys
import types
import unittest
import weakref
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "companion"))
sys.dont_write_bytecode = True

from deft_companion import exports  # noqa: E402


class Storage:
    def __init__(self, place):
        self._place = place

    def data_ptr(self):
        return self._place


class Tensor:
    """On a GPU."""

    def __init__(self, place, storage=None):
        self._storage = storage or Storage(place)

    def untyped_storage(self):
        return self._storage

    def __dlpack__(self):
        return self._storage   # a capsule keeps that

    @property
    def __cuda_array_interface__(self):
        """As PyTorch says."""
        return {"data": (self._storage.data_ptr(), False)}


class StorageWeakRef:
    def __init__(self, storage):
        self._storage = weakref.ref(storage)

    def expired(self):
        return self._storage() is None


class GivenAway(unittest.TestCase):
    def setUp(self):
        torch = types.SimpleNamespace(
            Tensor=type("Tensor", (Tensor,), dict(vars(Tensor))), __file__="/nowhere/torch/a.py",
            _C=types.SimpleNamespace(DisableTorchFunction=contextlib.nullcontext))
        modules = {"torch": torch, "torch.multiprocessing": types.ModuleType("multiprocessing"),
                   "torch.multiprocessing.reductions":
                       types.SimpleNamespace(StorageWeakRef=StorageWeakRef)}
        self.made = exports.Exports()
        for patch in (mock.patch.dict(sys.modules, modules),
                      mock.patch.object(exports, "exports", self.made),
                      mock.patch.object(exports, "library",
                                        lambda: types.SimpleNamespace(layers=True))):
            patch.start()
            self.addCleanup(patch.stop)
        self.kind = torch.Tensor
        exports.watch(types.SimpleNamespace(__name__="torch._tensor", Tensor=self.kind))

    def line(self, *tensors):
        found = self.made.find([types.SimpleNamespace(memory=lambda: tensors)])
        return found[1]

    def test_the_address_that_cuda_arrays_are_made_of(self):
        tensor, other = self.kind(64), self.kind(128)
        self.assertEqual(tensor.__cuda_array_interface__["data"], (64, False))
        self.assertIn("exports_test.py", self.line(other, tensor))
        self.assertEqual(self.line(other), "")
        self.assertEqual(self.kind.__cuda_array_interface__.__doc__, "As PyTorch says.")

    def test_a_tensor_that_has_none_is_not_noted(self):
        def without(_):
            raise AttributeError
        kind = type("Tensor", (self.kind,), {"__cuda_array_interface__": property(without)})
        exports.watch(types.SimpleNamespace(__name__="torch._tensor", Tensor=kind))
        self.assertFalse(hasattr(kind(64), "__cuda_array_interface__"))
        self.assertEqual(self.made.count, 0)

    def test_a_capsule_counts_as_long_as_the_storage(self):
        tensor = self.kind(64)
        alias = self.kind(64, tensor.untyped_storage())
        capsule = tensor.__dlpack__()
        del tensor
        self.assertIn("exports_test.py", self.line(alias))
        del alias, capsule
        self.assertEqual(self.line(self.kind(64)), "", "it is other memory now")

    def test_what_is_gone_is_not_kept(self):
        kept = [self.kind(1 << 20 | place) for place in range(8)]
        for tensor in kept:
            tensor.__dlpack__()
        for place in range(4096):
            self.kind(place + 1).__dlpack__()
            self.assertLessEqual(len(self.made._for_good), 300)
        self.assertTrue(all(self.line(tensor) for tensor in kept))


if __name__ == "__main__":
    unittest.main()
