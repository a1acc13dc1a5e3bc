#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`deft topo` of captured machines against another reading of the same files. The files are not
part of the repository: DEFT_TOPOLOGY_DATA names their folder.

Usage: topo_captured.py DEFT SOURCE_ROOT"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

DEFT, ROOT = map(os.path.abspath, sys.argv[1:3])
FILES = ("azure-ndv4.nccl.xml", "azure-ndv5.nccl.xml", "g5.48xl.xml", "p3dn.24xl.xml",
         "p4d.24xl.xml", "p5.48xl.xml")


def data_folder():
    for folder in (os.environ.get("DEFT_TOPOLOGY_DATA"), f"{ROOT}/../shared/data/topology",
                   f"{ROOT}/../../shared/data/topology"):
        if folder and pathlib.Path(folder, FILES[0]).exists():
            return pathlib.Path(folder).resolve()
    return None


class Device:
    """A PCI device with the chain of bridges above it and its NUMA node (None: not told)."""

    def __init__(self, address, code, vendor, bridges, node, element):
        self.address, self.code, self.vendor = address, code, vendor
        self.bridges, self.node, self.element = bridges, node, element

    def far_from(self, other):
        if self.address == other.address:
            return "same"
        common = len(os.path.commonprefix([self.bridges, other.bridges]))
        if common == 0:
            apart = None not in (self.node, other.node) and self.node != other.node
            return "SYS" if apart else "NODE"
        if common == 1:
            return "PHB"
        below = max(len(self.bridges), len(other.bridges)) - common
        return "PIX" if below <= 1 else "PXB"

    @property
    def is_gpu(self):
        return self.vendor in ("10de", None) and self.code in ("0302", "0300")

    @property
    def is_network(self):
        return self.code[:2] == "02" or self.code == "0c06"


def from_hwloc(root):
    devices = []

    def walk(element, bridges, node):
        kind = element.get("type")
        if kind == "Bridge":
            bridges = bridges + [id(element)]
        elif element.get("nodeset"):
            mask = 0
            for word in element.get("nodeset").split(","):
                mask = mask << 32 | int(word or "0", 16)
            node = mask.bit_length() - 1 if bin(mask).count("1") == 1 else None
        if kind == "PCIDev":
            code, vendor = re.match(r"(\w{4}) \[(\w{4})", element.get("pci_type")).groups()
            devices.append(Device(element.get("pci_busid"), code, vendor, bridges, node, element))
        for child in element.findall("object"):
            walk(child, bridges, node)

    for element in root.findall("object"):
        walk(element, [], None)
    return devices


def from_nccl(root):
    devices = []

    def walk(element, bridges, node):
        for child in element.findall("pci"):
            code = child.get("class")[2:6]
            devices.append(Device(child.get("busid"), code, None, bridges, node, child))
            walk(child, bridges + [id(child)], node)

    for cpu in root.findall("cpu"):
        walk(cpu, [id(cpu)], int(cpu.get("numaid")))
    return devices


class Captured(unittest.TestCase):
    maxDiff = None
    folder = None

    def read(self, name):
        root = ElementTree.parse(self.folder / name).getroot()
        devices = from_hwloc(root) if root.tag == "topology" else from_nccl(root)
        done = subprocess.run([DEFT, "topo", "--json", "--input", self.folder / name], text=True,
                              capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return devices, json.loads(done.stdout)

    def check(self, name):
        devices, shown = self.read(name)
        gpus = [device for device in devices if device.is_gpu]
        cards = [device for device in devices if device.is_network]
        self.assertGreater(len(gpus) * len(cards), 0)
        self.assertEqual([gpu["pci"] for gpu in shown["gpus"]], [gpu.address for gpu in gpus])
        self.assertEqual({link["pci"] for link in shown["links"] if link["pci"]},
                         {card.address for card in cards})
        rows = {gpu.address: [] for gpu in gpus}
        for gpu, entry in zip(gpus, shown["gpus"]):
            for nic in shown["nics"]:
                [card] = [each for each in cards if each.address == nic["pci"]]
                self.assertEqual(entry["distances"][nic["name"]], gpu.far_from(card),
                                 f"{gpu.address} to {nic['name']}")
            for peer in entry["peers"]:
                self.assertEqual(peer["path"], gpu.far_from(gpus[peer["gpu"]]))
                rows[gpu.address].append(peer["path"])
        self.check_kinds(cards, shown)

    def check_kinds(self, cards, shown):
        by_place = {}
        for link in shown["links"]:
            by_place.setdefault(link["pci"], set()).add((link["kind"], link["driver"]))
        for card in cards:
            model = card.element.get("pci_type", "")
            if card.code == "0207":
                expected = {("ib", "NCCL")}
            elif "[1d0f:efa" in model:
                expected = {("efa", "")}
            else:
                expected = {("tcp", "deft")}
            self.assertEqual(by_place[card.address], expected, card.address)

    def test_captured_machines(self):
        for name in FILES:
            with self.subTest(file=name):
                self.check(name)

    def test_text_and_matrix(self):
        for name in FILES:
            for option in ([], ["--matrix"]):
                done = subprocess.run([DEFT, "topo", *option, "--input", self.folder / name],
                                      text=True, capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("GPU0  ", done.stdout)
                self.assertIn("NIC0", done.stdout)


if __name__ == "__main__":
    Captured.folder = data_folder()
    if Captured.folder is None:
        print(f"{FILES[0]} is not here: DEFT_TOPOLOGY_DATA names the folder of captured topologies")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
