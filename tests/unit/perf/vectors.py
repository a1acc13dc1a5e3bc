# SPDX-License-Identifier: Apache-2.0
"""Gradients without PyTorch."""


class Vector(list):
    """As much of a tensor as a delivery needs."""

    shape = property(len)

    def new_zeros(self, size):
        return Vector([0.0] * size)

    def __getitem__(self, place):
        found = list.__getitem__(self, place)
        return Vector(found) if isinstance(place, slice) else found

    def __add__(self, other):
        return Vector(one + two for one, two in zip(self, other))

    def __rmul__(self, factor):
        return Vector(factor * one for one in self)
