# SPDX-License-Identifier: Apache-2.0
"""A tree of files that a package is made of, and how programs are run on it."""
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile

FLOOR = "2.28"
UCX = "1.13"  # the oldest that the module takes, where the tree has it
UCX_MODULE = "lib/libdeft-ucx.so"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
SUMMARY = "Makes NCCL training jobs faster on the links they already have"
PKG_CONFIG = "lib/pkgconfig/deft.pc"


def stop(what):
    sys.exit(f"package: {what}")


def run(*command, env=None):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            env={**os.environ, **(env or {})})
    if result.returncode != 0:
        stop(f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}")
    return result.stdout


class Tree:
    """Files by the path that they get, with mode and content."""

    def __init__(self):
        self.files = {}

    def add(self, path, content, mode=0o644):
        self.files[path] = (content if isinstance(content, bytes) else content.encode(), mode)

    def under(self, prefix, keep=lambda path: True):
        tree = Tree()
        tree.files = {prefix + path: file for path, file in self.files.items() if keep(path)}
        return tree

    def write(self, folder, when):
        """With the same dates and modes everywhere, whatever the umask is."""
        for path, (content, mode) in self.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(mode)
            os.utime(file, (when, when))
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
                os.utime(path, (when, when))

    def tar(self, when):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
            seen = set()
            for path, (content, mode) in sorted(self.files.items()):
                for parent in reversed(pathlib.PurePosixPath(path).parents):
                    if str(parent) not in ("", ".", "/") and parent not in seen:
                        seen.add(parent)
                        entry = tarfile.TarInfo(f"{parent}/")
                        entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, when
                        archive.addfile(entry)
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode, entry.mtime = len(content), mode, when
                archive.addfile(entry, io.BytesIO(content))
        return data.getvalue()


def with_places(tree, prefix, libdir):
    """The same, and deft.pc says where it lies."""
    placed = Tree()
    placed.files = dict(tree.files)
    content, mode = tree.files[PKG_CONFIG]
    text = re.sub(r"^prefix=.*$", f"prefix={prefix}", content.decode(), flags=re.M)
    text = re.sub(r"^libdir=.*$", f"libdir={libdir}", text, flags=re.M)
    placed.files[PKG_CONFIG] = (text.encode(), mode)
    return placed
