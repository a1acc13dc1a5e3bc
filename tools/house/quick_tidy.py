#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy without its static analyzer over many sources, in a fraction of the time.

clang-tidy spends most of its time on the headers of the standard library, anew for each source.
Here up to GROUP sources of one directory become one, which includes them one after the other. Two
sources may not compile together: both give the same name to something of their own, or include
system headers that exclude each other. Then the group is halved until every part compiles. A check
that looks only at the file it was given (misc-unused-using-decls) finds nothing here.

usage: quick_tidy.py BUILD SOURCE...
exit codes: 0 no finding, 1 findings, or a source that BUILD does not compile, 2 bad usage
"""

import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

GROUP = 8
# Sources that are included are the point here.
CHECKS = "--checks=-clang-analyzer-*,-bugprone-suspicious-include"
DOES_NOT_COMPILE = "clang-diagnostic-error"


def flags(command):
    """What of a compiler's command decides how a source reads."""
    words = shlex.split(command)
    return tuple(word for word in words if word.startswith(("-I", "-D", "-std=", "-isystem", "-f")))


def compiled(build):
    """{source: the command that compiles it}."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        commands.setdefault((build / entry["file"]).resolve(), entry["command"])
    return commands


def groups(commands, sources):
    """Lists of sources of one directory that are compiled alike, each with its flags."""
    alike = {}
    for source in sources:
        alike.setdefault((source.parent, flags(commands[source])), []).append(source)
    for (_, words), members in alike.items():
        for first in range(0, len(members), GROUP):
            yield members[first : first + GROUP], words


def findings(build, scratch, members, words):
    """What clang-tidy says of these sources; empty where it has no finding."""
    handle, name = tempfile.mkstemp(suffix=".cpp", dir=scratch)
    with os.fdopen(handle, "w") as text:
        text.writelines(f'#include "{member}"\n' for member in members)
    config = Path(__file__).resolve().parents[2] / ".clang-tidy"
    command = ["clang-tidy", "--quiet", CHECKS, f"--config-file={config}", name, "--", *words]
    result = subprocess.run(command, cwd=build, capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    if DOES_NOT_COMPILE in result.stdout and len(members) > 1:
        half = len(members) // 2
        parts = (members[:half], members[half:])
        return "".join(findings(build, scratch, part, words) for part in parts)
    return result.stdout or result.stderr or f"clang-tidy ended with code {result.returncode}\n"


def main(arguments):
    if len(arguments) < 2 or not Path(arguments[0], "compile_commands.json").exists():
        print("usage: quick_tidy.py BUILD SOURCE...; BUILD is a configured build", file=sys.stderr)
        return 2
    build = Path(arguments[0]).resolve()
    sources = [Path(name).resolve() for name in arguments[1:]]
    commands = compiled(build)
    unread = [source for source in sources if source not in commands]
    known = [source for source in sources if source in commands]
    with (
        tempfile.TemporaryDirectory() as scratch,
        concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        said = [pool.submit(findings, build, scratch, *group) for group in groups(commands, known)]
    text = "".join(f"{source}: error: not compiled in {build}, so not read\n" for source in unread)
    text += "".join(one.result() for one in said)
    print(text or f"{len(sources)} files, no finding")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
