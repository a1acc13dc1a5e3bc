# SPDX-License-Identifier: Apache-2.0
"""Says that the job scales its gradients, when it makes a GradScaler that is in use."""

import functools

from .library import guarded, library


def watch(module):
    if not library().wants:
        return
    make = module.GradScaler.__init__

    @guarded
    def note(scaler):
        if scaler.is_enabled():
            library().set_gradient_scaling(1)

    @functools.wraps(make)
    def noted(self, *arguments, **named):
        make(self, *arguments, **named)
        note(self)
    module.GradScaler.__init__ = noted
