# SPDX-License-Identifier: Apache-2.0
"""Pages that scripts write: Markdown, whose paragraphs are wrapped as ./dev lint wants them, and
HTML in one design."""

import html
import os
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


def words_below(path, header):
    """What was written by hand below an earlier page's last table with this header."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    end = max((number for number, line in enumerate(lines) if line.rstrip() == header),
              default=len(lines))
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "".join(lines[end:])


# The design of `deft report --html` (tools/html_page.cpp).
STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#5a5a5a;--line:#d5d5d5;
--card:#f4f4f2}
@media (prefers-color-scheme:dark){:root{--ink:#ececec;--paper:#161616;--soft:#b0b0b0;
--line:#3c3c3c;--card:#222}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2rem 0 .4rem}h2{font-size:1.1rem;margin:2rem 0 .2rem}
h3{font-size:1rem;margin:1.2rem 0 .2rem}p{margin:.3rem 0 .7rem;max-width:46rem}
.verdict{max-width:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.6rem;
margin:.6rem 0}
.card{background:var(--card);border-radius:.4rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.25rem;line-height:1.25;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:.85rem;display:block}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.92rem}
td,th{border-bottom:1px solid var(--line);padding:.25rem .7rem .25rem 0;text-align:right}
td:first-child,th:first-child{text-align:left;white-space:nowrap}th{color:var(--soft)}
.legend span{display:inline-block;margin-right:1.2rem}
.legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.35rem;vertical-align:-.1rem}
svg{width:100%}body>svg{display:block}body>svg[viewBox]{height:auto}
svg text{fill:var(--ink);font-size:13px}svg .soft{fill:var(--soft);font-size:12px}
svg .over{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
svg .grid{stroke:var(--line)}svg .now{stroke:var(--ink);stroke-width:2}svg .bound{stroke-width:2}
svg .dashed{stroke:var(--ink);stroke-dasharray:3 3}
"""


def cards(list_of):
    """(name, figure, remark) each."""
    return '<div class="cards">' + "".join(
        f"<div class=\"card\"><span>{html.escape(name)}</span><b>{html.escape(figure)}</b>"
        f"<span>{html.escape(remark)}</span></div>" for name, figure, remark in list_of) + "</div>"


def html_page(title, body):
    """`body`: lines of HTML."""
    return ("<!doctype html>\n"
            "<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n"
            + "\n".join(body) + "\n</body></html>\n")
