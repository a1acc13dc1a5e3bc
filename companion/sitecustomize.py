# SPDX-License-Identifier: Apache-2.0
"""Starts deft's companion in a Python process.

`deft run` puts this folder on PYTHONPATH in modes deft and covap, and Python imports the module at
its start. The companion waits there until the job imports torch. DEFT_COMPANION=off turns it off.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_other_one():
    """Only the first sitecustomize on the path is imported; the machine's own comes after this
    one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    import deft_companion
    deft_companion.wait()
except ImportError:
    pass  # a folder of which only this file is left
finally:
    _run_the_other_one()
