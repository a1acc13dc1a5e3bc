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
            model = next((line.split(":", 1)[1].strip() for line in file
                          if line.startswith("model name")), "")
    except OSError:
        pass
    return {"cpu": model, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "load_before": round(os.getloadavg()[0], 2), "python": platform.python_version()}


def revision(folder):
    """Which commit of the project is measured, "-dirty" where more has changed than records; ""
    where it is not in a clone."""
    def git(*arguments):
        return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True,
                              timeout=60, check=True).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!perf/results")
        return git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""
