# SPDX-License-Identifier: Apache-2.0
"""Watches a PyTorch job from inside, and proves to deft which of its sums are gradients.

Nothing of the job's code changes, and nothing is raised into it. docs/companion.md says what is
seen, what is refused and why. Standard library and torch only; each PyTorch from 1.13 on.
"""

import os
import sys

__version__ = "0.1.0"


def start():
    """Waits for torch to be imported. Costs nothing until then; once for a process."""
    if os.environ.get("DEFT_COMPANION", "auto") == "off":
        return
    try:
        from . import imports
        imports.install()
    except Exception as error:
        print(f"deft: the companion cannot start: {error!r}", file=sys.stderr)
