# SPDX-License-Identifier: Apache-2.0
"""The headline figures that are kept (perf/headlines) are those of the code.

usage: headlines_test.py PATH_OF_HEADLINES"""

import csv
import math
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "perf" / "headlines"
sys.path.insert(0, str(FOLDER))
import draw  # noqa: E402

PROGRAM = sys.argv.pop(1)
# Of the last digit, which another compiler's arithmetic may round otherwise.
DIGIT = 2
REMEDY = "run: build/perf/headlines/headlines --csv > perf/headlines/policies.csv; " \
         "python3 perf/headlines/draw.py"


def printed(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, check=True).stdout


def same(kept, now):
    """Words are equal; numbers differ by no more than a rounding."""
    try:
        one, other = float(kept), float(now)
    except ValueError:
        return kept == now
    digits = len(kept.partition(".")[2])
    return math.isclose(one, other, rel_tol=0, abs_tol=DIGIT * 10 ** -digits)


class Headlines(unittest.TestCase):
    def test_table_is_that_of_the_code(self):
        kept = list(csv.reader((FOLDER / "policies.csv").read_text("utf-8").splitlines()))
        now = list(csv.reader(printed("--csv").splitlines()))
        self.assertEqual(len(kept), len(now), REMEDY)
        self.assertGreater(len(kept), 1000)
        for one, other in zip(kept, now):
            self.assertTrue(len(one) == len(other) and all(map(same, one, other)),
                            f"kept {one}, now {other}; {REMEDY}")

    def test_picture_is_that_of_the_table(self):
        self.assertEqual((FOLDER / "policies.svg").read_text("utf-8"), draw.drawing(), REMEDY)

    def test_page_has_the_tables_that_the_program_prints(self):
        def cells(text):
            return [[cell.strip(" *") for cell in line.replace(",", "|").strip("|").split("|")]
                    for line in text.splitlines() if line.startswith("|")]
        kept, now = cells((FOLDER / "results.md").read_text("utf-8")), cells(printed())
        self.assertEqual(len(kept), len(now))
        for one, other in zip(kept, now):
            self.assertTrue(len(one) == len(other) and all(map(same, one, other)),
                            f"kept {one}, now {other}; run: build/perf/headlines/headlines")


if __name__ == "__main__":
    unittest.main()
