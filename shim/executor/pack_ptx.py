#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the kernels' PTX, else a twentieth of the library: 128 times the commonest pair of
symbols becomes a symbol of its own (0x80 and up; PTX is ASCII). Every job loads the library, and
few load the kernels.

usage: pack_ptx.py kernels_ptx.inc OUT        kernels.cpp unpacks it
"""
import ast
import collections
import sys

CODES = 128


def text_of(source):
    lines = [line for line in source.splitlines() if line.startswith('"')]
    return "".join(ast.literal_eval(line) for line in lines).encode("ascii")


def packed(data):
    """The pairs that the codes stand for, and the text in them."""
    pairs = []
    while len(pairs) < CODES:
        (pair, times), = collections.Counter(zip(data, data[1:])).most_common(1)
        if times < 3:
            break
        data = data.replace(bytes(pair), bytes([0x80 + len(pairs)]))
        pairs.append(pair)
    return pairs, data


def rows(numbers, width=20):
    return "".join("    " + ", ".join(map(str, numbers[at:at + width])) + ",\n"
                   for at in range(0, len(numbers), width))


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        data = text_of(file.read())
    pairs, symbols = packed(data)
    with open(sys.argv[2], "w", encoding="ascii") as out:
        out.write(f"constexpr std::size_t kPtxLength = {len(data)};\n"
                  f"constexpr unsigned char kPtxPairs[{len(pairs)}][2] = {{\n"
                  + rows([f"{{{one}, {other}}}" for one, other in pairs], 8)
                  + "};\nconstexpr unsigned char kPtxSymbols[] = {\n" + rows(list(symbols))
                  + "};\n")


if __name__ == "__main__":
    main()
