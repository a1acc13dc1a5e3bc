# SPDX-License-Identifier: Apache-2.0
"""Knocks at every listening TCP port that a table of /proc shows, with what scanners, browsers and
broken clients send.

    strangers.py TABLE SEED ADDRESS...     until it is killed; prints a line for each port it finds
"""

import random
import socket
import struct
import sys
import time

HELD = 64          # connections kept open without a word
LISTENING = "0A"


def ports(table):
    """The ports that are listened at, by /proc/.../net/tcp."""
    with open(table, encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENING})


def words(dice):
    """What one stranger says."""
    return dice.choice([
        b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"SSH-2.0-scan\r\n",
        bytes.fromhex("16030100c8010000c40303") + dice.randbytes(190),
        dice.randbytes(7), dice.randbytes(64), dice.randbytes(4096), b"\0" * 256, b"\xff" * 256,
        struct.pack("<Q", 2 ** 63) * 32])


def knock(address, port, dice, held):
    stranger = socket.socket()
    stranger.settimeout(0.3)
    try:
        stranger.connect((address, port))
        stranger.sendall(words(dice))
        end = dice.randrange(3)
        if end == 0:
            # ends with a reset
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == 1:
            held.append(stranger)
            return
        stranger.close()
    except OSError:
        stranger.close()


def main():
    table, dice, addresses = sys.argv[1], random.Random(int(sys.argv[2])), sys.argv[3:]
    held, known = [], set()
    while True:
        for port in ports(table):
            if port not in known:
                known.add(port)
                print(port, flush=True)
            knock(dice.choice(addresses), port, dice, held)
        while len(held) > HELD:
            held.pop(dice.randrange(len(held))).close()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
