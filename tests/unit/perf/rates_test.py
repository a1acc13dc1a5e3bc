# SPDX-License-Identifier: Apache-2.0
"""The rate of plain TCP that bounds are computed from is read as raw_tcp tells it.

usage: rates_test.py RAW_TCP"""

import subprocess
import sys
import types
import unittest

from perf.common import ranks


class Loopback:
    """A host whose links all end in this machine."""

    def address(self, _link):
        return "127.0.0.1"

    def popen(self, command, **how):
        return subprocess.Popen(command, **how)

    def run(self, command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Rates(unittest.TestCase):
    def test_of_each_link(self):
        network = types.SimpleNamespace(hosts=[Loopback(), Loopback()], rates=["1gbit", "1gbit"])
        found = ranks.raw_gbit(network, types.SimpleNamespace(raw_tcp=RAW_TCP), 0.1,
                               ranks.free_port())
        self.assertEqual(len(found), 2)
        self.assertGreater(min(found), 0)


if __name__ == "__main__":
    RAW_TCP = sys.argv.pop()
    unittest.main(verbosity=2)
