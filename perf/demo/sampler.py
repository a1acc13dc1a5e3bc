# SPDX-License-Identifier: Apache-2.0
"""Notes how many bytes the interfaces of a host have sent, again and again, until its standard
input ends.

    python3 sampler.py MILLISECONDS FILE DEVICE...

FILE becomes {"devices": [...], "samples": [[seconds of CLOCK_MONOTONIC, bytes by device...]...]}. A
sample costs some 50 us of a core. Standard library only.
"""

import json
import os
import select
import sys
import time


def sent(table, devices):
    """Bytes by device, of the text of /proc/net/dev (whole frames)."""
    rows = dict(line.split(":", 1) for line in table.splitlines()[2:])
    found = {name.strip(): int(numbers.split()[8]) for name, numbers in rows.items()}
    return [found.get(device, 0) for device in devices]


def main():
    every, path, devices = float(sys.argv[1]) / 1e3, sys.argv[2], sys.argv[3:]
    samples = []
    counters = os.open("/proc/self/net/dev", os.O_RDONLY)
    while True:
        table = os.pread(counters, 65536, 0).decode()
        samples.append([round(time.monotonic(), 5), *sent(table, devices)])
        if select.select([sys.stdin], [], [], every)[0]:
            break
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"devices": devices, "samples": samples}, file)


if __name__ == "__main__":
    main()
