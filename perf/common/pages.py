# SPDX-License-Identifier: Apache-2.0
"""Pages that scripts write: Markdown, whose paragraphs are wrapped as ./dev lint wants them, and
HTML in one design."""

import html
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


def html_page(title, body):
    """`body`: lines of HTML."""
    return ("<!doctype html>\n"
            "<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
            f"<title>{html.escape(title)}</title><style>\n"
            "body{font:15px/1.4 sans-serif;max-width:960px;margin:2em auto;padding:0 "
            "1em;color:#222}\n"
            "table{border-collapse:collapse}td,th{border-bottom:1px solid #ddd;padding:.2em "
            ".8em;text-align:right}\n"
            "td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}\n"
            "</style></head><body>\n"
            + "\n".join(body) + "\n</body></html>\n")
