# SPDX-License-Identifier: Apache-2.0
"""Pages that scripts write: what is wrapped, and what stays as it is."""

import unittest

from perf.common import pages


class Wrapped(unittest.TestCase):
    def test_paragraphs_and_items(self):
        text = "# Title\n\n" + "word " * 30 + "\n\n* " + "item " * 30 + "\n* next\n"
        lines = pages.wrapped(text).split("\n")
        self.assertEqual(max(map(len, lines)), 100 - 1)
        self.assertEqual(lines[:2], ["# Title", ""])
        self.assertEqual(lines[2].split() + lines[3].split(), ["word"] * 30)
        self.assertTrue(lines[5].startswith("* item"))
        self.assertTrue(lines[6].startswith("  item"))
        self.assertEqual(lines[7:], ["* next", ""])

    def test_tables_code_and_headings_stay(self):
        text = "| " + "cell " * 40 + "|\n    " + "code " * 40 + "\n## " + "head " * 40 + "\n"
        self.assertEqual(pages.wrapped(text), text)

    def test_a_word_is_not_broken(self):
        self.assertEqual(pages.wrapped("a " + "x" * 150), "a\n" + "x" * 150)


if __name__ == "__main__":
    unittest.main()
