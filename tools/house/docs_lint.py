#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every tracked Markdown page to 100 columns, and its links to files that exist. A line that
nobody can break is allowed: the row of a table, or a line with a long address.

usage: docs_lint.py [PAGE...]     exit codes: 0 nothing found, 1 findings, one on a line"""

import posixpath
import re
import sys

import files
import prose

TARGET = re.compile(r"\]\(([^)\s]+)\)")


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
            file = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if not (root / file).exists():
                found.append(prose.Offence(line.number, f"there is no file {file}"))
            elif anchor and file.endswith(".md"):
                if file not in known:
                    known[file] = anchors(files.read(root, file))
                if anchor not in known[file]:
                    found.append(prose.Offence(line.number, f"{file} has no heading #{anchor}"))
    return found


def findings(names, root):
    known = {}
    for name in names:
        text = files.read(root, name)
        offences = wide(text) + broken_links(name, text, root, known)
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
