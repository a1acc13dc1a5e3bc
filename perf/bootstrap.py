# SPDX-License-Identifier: Apache-2.0
"""Runs a script of this folder as the module it is in the package `perf`, and ends the program with
it.

A script that is called by its path (`python3 perf/links`, `python3 perf/rdma/run.py`) is no part of
a package for Python, and cannot import from the package. Such a script runs this file, with its own
path as the global `script`. Called as a module (`python3 -m perf.rdma.run`), it does not need to.
"""

import importlib.util
import os
import runpy
import sys

FOLDER = os.path.dirname(os.path.realpath(__file__))


def load_package():
    """`import perf` means this folder from now on, whatever the module search path has."""
    spec = importlib.util.spec_from_file_location("perf", os.path.join(FOLDER, "__init__.py"))
    package = importlib.util.module_from_spec(spec)
    sys.modules["perf"] = package
    spec.loader.exec_module(package)


def module_name(script):
    """`perf.rdma.run` for .../perf/rdma/run.py."""
    inside = os.path.relpath(os.path.realpath(script), FOLDER)
    return ".".join(["perf", *os.path.splitext(inside)[0].split(os.sep)])


load_package()
runpy.run_module(module_name(globals()["script"]), run_name="__main__", alter_sys=True)
sys.exit(0)
