# SPDX-License-Identifier: Apache-2.0
"""A step of an optimizer that was asked for, and is made bucket by bucket when the sums are there:
by the optimizer's own code, with the settings of when it was asked for."""

from .pending import gradient_of

TO_NONE, TO_ZERO = "none", "zero"


def lists_of(optimizer, wanted):
    """Of each of its groups, the parameters that are wanted."""
    return [[parameter for parameter in group["params"] if wanted(parameter)]
            for group in optimizer.param_groups]


def why_not(optimizer, tensor):
    """Why its steps cannot be put off; "": they can."""
    if getattr(optimizer, "grad_scale", None) is not None:
        return "its gradients are scaled"
    for group in optimizer.param_groups:
        if group.get("capturable") or any(isinstance(value, tensor) for value in group.values()):
            return "its optimizer's settings are on the device"
    return ""


class LateStep:
    def __init__(self, optimizer, make):
        self._optimizer, self._make = optimizer, make
        self._groups = [{key: list(value) if isinstance(value, list) else value
                         for key, value in group.items() if key != "params"}
                        for group in optimizer.param_groups]

    def make(self, lists):
        """Of these parameters, by group."""
        optimizer = self._optimizer
        groups = optimizer.param_groups
        optimizer.param_groups = [dict(group, params=some)
                                  for group, some in zip(self._groups, lists) if some]
        try:
            if optimizer.param_groups:
                self._make(optimizer)
        finally:
            optimizer.param_groups = groups


def clear(parameter, how):
    """As zero_grad() does."""
    gradient = gradient_of().__get__(parameter, type(parameter))
    if how == TO_NONE:
        gradient_of().__set__(parameter, None)
    elif gradient is not None:
        if gradient.grad_fn is not None:
            gradient.detach_()
        else:
            gradient.requires_grad_(False)
        gradient.zero_()
