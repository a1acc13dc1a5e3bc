# SPDX-License-Identifier: Apache-2.0
"""Pages of Markdown that scripts write: their paragraphs are wrapped as ./dev lint wants them."""

import re
import textwrap

COLUMNS = 100
ITEM = re.compile(r"[*-] ")
AS_IT_IS = re.compile(r"$|\||#|<|```|    ")  # blank lines, tables, headings, comments, code


def wrapped(text):
    """The page with paragraphs and list items at most COLUMNS wide; all else as it is."""
    lines, paragraph = [], []

    def end():
        if paragraph:
            indent = "  " if ITEM.match(paragraph[0]) else ""
            lines.extend(textwrap.wrap(" ".join(line.strip() for line in paragraph), COLUMNS,
                                       subsequent_indent=indent, break_long_words=False,
                                       break_on_hyphens=False))
            paragraph.clear()

    for line in text.split("\n"):
        if AS_IT_IS.match(line):
            end()
            lines.append(line)
        else:
            if ITEM.match(line):
                end()
            paragraph.append(line)
    end()
    return "\n".join(lines)
