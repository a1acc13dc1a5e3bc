#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the stand-in for NCCL to what a program printed when it ran on NCCL itself.

usage: golden_test.py [--write] GOLDEN PROGRAM [ARGUMENT...]

GOLDEN is a file of this program's output on real NCCL, its name RELEASE-NAME.txt (2.28.9-api.txt);
the stand-in follows the rules of that release. Functions that are absent there are not asked for
here. --write: the library that the loader finds is real NCCL; its output becomes the file.
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys

# Where the stand-in still answers otherwise, and what it does. Of one release alone: "2.27.7 call".
KNOWN = {
    "CommInitRankConfig netName unknown leaves a handle":
        "NCCL's communicator has to be destroyed after an init that failed; here there is none",
    "2.27.7 CommShrink by rank 1":
        "NCCL calls it an internal error, though the child is whole; here it succeeds, as in 2.28",
}

# NCCL registers one buffer that all connections for messages share, of 16 chunks for each channel.
# The stand-in has one of 8 chunks for each connection.
SHARED = re.compile(r"(, device \d: registers )(1048576|2097152|4194304|8388608) host$")


def version_number(release):
    major, minor, patch = (int(part) for part in release.split("."))
    return major * 10000 + minor * 100 + patch


def comparable(release, golden, text):
    """Lines of both; a function that is absent in the golden file takes its answers out of the
    other."""
    known = {name.removeprefix(release + " ") for name in KNOWN}
    absent = {line.split(" -> ")[0] for line in golden if line.endswith(" -> absent")}
    golden = [SHARED.sub(r"\1SHARED host", line) for line in golden
              if not line.endswith(" -> absent") and line.split(" -> ")[0] not in known]
    kept, dropping = [], False
    for line in text:
        follows = line.startswith("... ")
        dropping = (dropping and follows) or line.split(" -> ")[0] in absent
        if not dropping and line.split(" -> ")[0] not in known:
            kept.append(SHARED.sub(r"\1SHARED host", line))
    return golden, kept


def main(arguments):
    write = arguments[:1] == ["--write"]
    file, *command = arguments[1:] if write else arguments
    file = pathlib.Path(file)
    release = file.name.split("-")[0]
    environment = dict(os.environ, SOFTDEV_NCCL_VERSION=str(version_number(release)))
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=400)
    if ran.returncode == 77:
        print(f"{command[0]} cannot run here")
        return 77
    if ran.returncode != 0:
        print(f"{command[0]}: exit {ran.returncode}; its last lines:")
        print(*ran.stdout.splitlines()[-5:], sep="\n")
        return 1
    if write:
        file.write_text(ran.stdout, encoding="ascii")
        return 0
    golden, text = comparable(release, file.read_text(encoding="ascii").splitlines(),
                              ran.stdout.splitlines())
    difference = list(difflib.unified_diff(golden, text, f"NCCL {release}", "the stand-in",
                                           lineterm=""))
    print(*difference, sep="\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
