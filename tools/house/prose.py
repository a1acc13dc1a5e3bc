# SPDX-License-Identifier: Apache-2.0
"""Reads a Markdown page as its reader does: sentences of its paragraphs and list items, cells of
its tables, and the width of its lines."""

import dataclasses
import re

COLUMNS = 100
CELL_WORDS = 30

FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
SEPARATOR = re.compile(r"^\s*\|?[\s:|-]+\|?\s*$")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
# A full stop behind a known short form ends no sentence; the project's name may begin one.
SHORT_FORM = re.compile(r"(?:^|[\s(])(?:e\.g|i\.e|cf|vs|Fig|Sec|No|et al)\.$")
SENTENCE_END = re.compile(r"[.!?][)*`\"']*(?=\s+(?:[^a-z\s]|deft\b|[a-z]+:\s)|$)")
UNBREAKABLE = re.compile(r"https?://\S+|\]\([^)\s]*\)")


@dataclasses.dataclass
class Line:
    number: int
    text: str
    kind: str  # text, item, table, code, heading, comment or blank


@dataclasses.dataclass
class Offence:
    line: int
    what: str


def lines_of(text):
    """The lines of a page with their kinds. Code is what is fenced, or indented by four behind a
    blank line outside a list."""
    lines, fenced, comment, in_list, before = [], False, False, False, "blank"
    for number, content in enumerate(text.splitlines(), 1):
        if fenced or FENCE.match(content):
            kind = "code"
            if FENCE.match(content):
                fenced = not fenced
        elif comment or content.lstrip().startswith("<!--"):
            kind = "comment"
            comment = "-->" not in content
        elif not content.strip():
            kind = "blank"
        elif content.startswith("#"):
            kind, in_list = "heading", False
        elif ITEM.match(content) and (in_list or not content.startswith("    ")):
            kind, in_list = "item", True
        elif content.lstrip().startswith("|"):
            kind, in_list = "table", in_list and content.startswith(" ")
        elif content.startswith("    ") and before in ("blank", "code") and not in_list:
            kind = "code"
        else:
            kind = "text"
            if not content.startswith(" ") and before == "blank":
                in_list = False
        lines.append(Line(number, content, kind))
        before = kind
    return lines


def paragraphs(lines):
    """The paragraphs and list items of a page, each as one line of text."""
    found, current = [], []
    for line in [*lines, Line(0, "", "blank")]:
        if line.kind != "text" and current:
            found.append(" ".join(current))
            current = []
        if line.kind == "text":
            current.append(line.text.strip())
        elif line.kind == "item":
            current = [ITEM.sub("", line.text).strip()]
    return found


def plain(text):
    return LINK.sub(r"\1", text)


def words(text):
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text):
    """The sentences of a paragraph."""
    text, found, start = plain(text), [], 0
    for match in SENTENCE_END.finditer(text):
        if SHORT_FORM.search(text[: match.start() + 1]):
            continue
        found.append(text[start: match.end()].strip())
        start = match.end()
    if text[start:].strip():
        found.append(text[start:].strip())
    return found


def sentence_lengths(text):
    return [len(words(sentence)) for paragraph in paragraphs(lines_of(text))
            for sentence in sentences(paragraph)]


def cells(line):
    """The cells of a row; a bar in code or behind a backslash belongs to its cell."""
    row = re.sub(r"`[^`]*`", lambda code: code.group().replace("|", " "), line.strip())
    row = row.replace("\\|", " ").strip("|")
    return [cell.strip() for cell in row.split("|")]


def long_cells(text):
    return [Offence(line.number, f"a table cell of {len(words(plain(cell)))} words")
            for line in lines_of(text)
            if line.kind == "table" and not SEPARATOR.match(line.text)
            for cell in cells(line.text) if len(words(plain(cell))) > CELL_WORDS]


def wide_lines(text):
    return [Offence(number, f"{len(content)} columns, {COLUMNS} are allowed")
            for number, content in enumerate(text.splitlines(), 1) if len(content) > COLUMNS]


def may_be_wide(content):
    """A line that nobody can break: a row of a table, or one whose address alone is too long."""
    if content.lstrip().startswith("|"):
        return True
    return any(len(match.group()) > COLUMNS // 2 for match in UNBREAKABLE.finditer(content))
