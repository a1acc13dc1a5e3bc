# SPDX-License-Identifier: Apache-2.0
"""Waiting for processes that may hang, and telling where they do."""
import shutil
import subprocess


def stacks_of(process):
    """What its threads do, in whatever root it runs."""
    if not shutil.which("gdb"):
        return "no gdb here, no stacks"
    try:
        return subprocess.run(["gdb", "-batch", "-iex", f"set sysroot /proc/{process.pid}/root",
                               "-p", str(process.pid), "-ex", "thread apply all backtrace"],
                              capture_output=True, text=True, timeout=60).stdout
    except subprocess.TimeoutExpired:
        return "gdb took longer than a minute"


def end_of(process, seconds):
    """communicate(), at most so many seconds that this process has seen pass, and not by a clock: a
    machine that stops this process and the other for a while has not shown that the other hangs."""
    for _ in range(seconds):
        try:
            return process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            pass
    stacks = stacks_of(process)
    process.kill()
    out, err = process.communicate()
    raise AssertionError(f"no end within {seconds} s\n{out}\n{err}\n{stacks}")
