# SPDX-License-Identifier: Apache-2.0
"""Which files belong to the repository: those that git tracks; in an archive without git, all."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def tracked(root=ROOT):
    """Paths below `root` with slashes, sorted."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True,
                            check=False) if (root / ".git").exists() else None
    if listed and listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith(("build", ".git/"))]
    return sorted(name for name in names if (root / name).is_file())


def read(root, name):
    return (root / name).read_text(encoding="utf-8", errors="replace")
