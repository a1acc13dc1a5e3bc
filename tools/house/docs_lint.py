#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every tracked Markdown page to 100 columns, and its links and paths to files that exist. A
line that nobody can break is allowed: the row of a table, or a line with a long address. A path is
what stands between backquotes and begins with a folder at the top. In the lists of a room's README
a bare word between backquotes is a file or folder of that room, with or without its ending.

usage: docs_lint.py [PAGE...]     exit codes: 0 nothing found, 1 findings, one on a line"""

import fnmatch
import posixpath
import re
import sys

import files
import prose

TARGET = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.*{},-]+)+/?")
BRACES = re.compile(r"\{([^}]*)\}")
PART = re.compile(r"[a-z]\w*(?:\.\w+)?")
ROOMS = ("base", "planner", "plugin", "shim", "topology")


def wide(text):
    lines = text.splitlines()
    return [offence for offence in prose.wide_lines(text)
            if not prose.may_be_wide(lines[offence.line - 1])]


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    found = set()
    for line in prose.lines_of(text):
        if line.kind != "heading":
            continue
        title = prose.plain(line.text.lstrip("#")).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.add(anchor)
    return found


def broken_links(name, text, root, known):
    """Relative links to files that are not there, or to headings that a page has not."""
    found = []
    for line in prose.lines_of(text):
        if line.kind in ("code", "comment"):
            continue
        for target in TARGET.findall(re.sub(r"`[^`]*`", "", line.text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            here = posixpath.dirname(name)
            file = posixpath.normpath(posixpath.join(here, path)) if path else name
            if not (root / file).exists():
                found.append(prose.Offence(line.number, f"there is no file {file}"))
            elif anchor and file.endswith(".md"):
                if file not in known:
                    known[file] = anchors(files.read(root, file))
                if anchor not in known[file]:
                    found.append(prose.Offence(line.number, f"{file} has no heading #{anchor}"))
    return found


class Paths:
    """What may be named: files, folders, patterns, and files without their ending."""

    def __init__(self, root):
        self.names = files.tracked(root)
        self.folders = {name[:end] for name in self.names
                        for end, sign in enumerate(name) if sign == "/"}

    def known(self, path):
        return (path in self.folders or bool(fnmatch.filter(self.names, path))
                or any(name.startswith(path + ".") for name in self.names))

    def missing(self, text):
        found = []
        for line in prose.lines_of(text):
            for code in CODE.findall(line.text):
                if not PATH.fullmatch(code) or code.split("/")[0] not in self.folders:
                    continue
                braces = BRACES.search(code)
                for choice in braces.group(1).split(",") if braces else [""]:
                    path = BRACES.sub(choice, code, count=1).rstrip("/")
                    if not self.known(path):
                        found.append(prose.Offence(line.number, f"there is no file {path}"))
        return found

    def missing_parts(self, name, text):
        """What a room's README lists and the room does not hold."""
        room, page = posixpath.split(name)
        if page != "README.md" or room.split("/")[0] not in ROOMS:
            return []
        inside = {word for file in self.names if file.startswith(room + "/")
                  for part in file[len(room) + 1:].split("/")
                  for word in (part, part.split(".")[0])}
        return [prose.Offence(line.number, f"{room} has no file {code}")
                for line in prose.lines_of(text)
                if line.kind == "item" or (line.kind == "text" and line.text.startswith(" "))
                for code in CODE.findall(line.text)
                if PART.fullmatch(code) and code not in inside]


def findings(names, root):
    known, paths = {}, Paths(root)
    for name in names:
        text = files.read(root, name)
        offences = (wide(text) + broken_links(name, text, root, known) + paths.missing(text)
                    + paths.missing_parts(name, text))
        for offence in sorted(offences, key=lambda offence: offence.line):
            yield f"{name}:{offence.line}: {offence.what}"


def main():
    names = sys.argv[1:] or [name for name in files.tracked() if name.endswith(".md")]
    found = list(findings(names, files.ROOT))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
