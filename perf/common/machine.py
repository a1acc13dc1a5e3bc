# SPDX-License-Identifier: Apache-2.0
"""What figures were measured on."""

import os
import platform
import subprocess


def describe():
    """CPU, number of CPUs, kernel, load and Python, for the JSON of a measurement."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    return {"cpu": model, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "load_before": round(os.getloadavg()[0], 2), "python": platform.python_version()}


def revision(folder):
    """Which commit of the project is measured, as git describes it; "" where it is not in a clone."""
    try:
        done = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=60,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
