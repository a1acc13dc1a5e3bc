# SPDX-License-Identifier: Apache-2.0
"""Watches a PyTorch job from inside, and proves to deft which of its sums are gradients.

Nothing of the job's code changes, and nothing is raised into it. docs/companion.md says what is
seen, what is refused and why. Standard library and torch only; each PyTorch from 1.13 on.
"""

import os
import sys

__version__ = "0.1.0"


class _Torch:
    """Sees torch come, in a process that imports it; loads nothing itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            start()


def wait():
    """Starts when torch is imported: most processes of a machine never do."""
    sys.meta_path.insert(0, _Torch)


def start():
    """torch is about to be imported. Once for a process."""
    if os.environ.get("DEFT_COMPANION", "auto") == "off":
        return
    try:
        from . import imports
        imports.install()
    except Exception as error:
        say(f"cannot start: {error!r}")


def say(text):
    """To whoever started the job. It may have closed that."""
    try:
        if sys.stderr is not None:   # else print takes stdout
            print("deft: companion: " + text, file=sys.stderr)
    except Exception:
        pass
