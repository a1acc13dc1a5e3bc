# SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts in perf/."""

import argparse


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text; `label` stands in front of it."""

    def __init__(self, *arguments, label=None, **options):
        super().__init__(*arguments, **options)
        self.label = label or self.prog

    def error(self, message):
        self.exit(2, f"{self.label}: {message}; --help lists the options\n")
