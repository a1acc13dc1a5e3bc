# SPDX-License-Identifier: Apache-2.0
"""How the scripts of perf/ write their JSON: one set of samples a line, not one number a line."""

import json
import os
import sys

COLUMNS = 100


def _flat(value):
    members = value.values() if isinstance(value, dict) else value
    return not any(isinstance(member, (dict, list, tuple)) for member in members)


def _layout(value, one_a_line, indent):
    """The lines of a value that begins in column `indent`, as one text."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list, tuple)) or _flat(value) or indent + len(line) <= COLUMNS:
        return line
    margin = " " * (indent + 1)
    if not isinstance(value, dict):
        rows = [margin + _layout(member, one_a_line, indent + 1) for member in value]
        return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
    rows = []
    for name, member in value.items():
        if name in one_a_line:
            inside = ",\n".join(f"{margin} {json.dumps(one)}" for one in member)
            written = f"[\n{inside}\n{margin}]"
        else:
            written = _layout(member, one_a_line, indent + 1)
        rows.append(f"{margin}{json.dumps({name: 0})[1:-4]}: {written}")
    return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"


def text(document, one_a_line=()):
    """The JSON of a document. A list or an object is one line if it holds no other, or if it is
    short. `one_a_line`: names of lists each member of which is one line, whatever it holds."""
    return _layout(document, one_a_line, 0) + "\n"


def write(path, document, one_a_line=()):
    """Writes a document to a file; "-" is standard output."""
    if path == "-":
        sys.stdout.write(text(document, one_a_line))
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text(document, one_a_line))


def replace(path, document, one_a_line=()):
    """The same, and whoever reads the file meanwhile sees the old document or the new one."""
    write(path + ".new", document, one_a_line)
    os.replace(path + ".new", path)
