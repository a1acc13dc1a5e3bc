# SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts in perf/."""

import argparse
import json
import os


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text; `label` stands in front of it."""

    def __init__(self, *arguments, label=None, **options):
        super().__init__(*arguments, **options)
        self.label = label or self.prog

    def error(self, message):
        self.exit(2, f"{self.label}: {message}; --help lists the options\n")


def check_output(parser, option, path):
    """Wrong usage if the file could not be written later, when the work is done. None: nothing
    is to be written."""
    if path is None:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        parser.error(f"{option} {path}: there is no folder {folder}")
    if os.path.isdir(path):
        parser.error(f"{option} {path}: is a folder; name a file")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        parser.error(f"{option} {path}: cannot be written")


def earlier_record(parser, option, path, member):
    """What an earlier run has left in the file that this one adds to; None if it is not there.
    Wrong usage if it is no such record."""
    check_output(parser, option, path)
    if path is None or not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        if not isinstance(record[member], list):
            raise TypeError(f"'{member}' is no list")
        return record
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{option} {path}: is there and is no earlier record ({type(error).__name__}: "
                     f"{error}); name another file")
