#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`deft topo` of made-up machines, as text against files next to them, and of broken ones.

Usage: topo_golden.py DEFT FOLDER [--update]. FOLDER holds machines, X.xml or X.sysfs (lines
"path = text" and "path -> path", of which a tree is made), and X.txt with what is printed."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DEFT = os.path.abspath(sys.argv[1])
FOLDER = pathlib.Path(sys.argv[2]).resolve()
UPDATE = "--update" in sys.argv


def make_tree(description, root):
    links = []
    for line in description.splitlines():
        if " -> " in line:
            links.append(line.split(" -> "))
        elif " = " in line and not line.startswith("#"):
            path, text = line.split(" = ", 1)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n")
    for path, target in links:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(os.path.relpath(root / target, (root / path).parent))


class TopoTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def deft(self, *arguments):
        return subprocess.run([DEFT, "topo", *arguments], capture_output=True, text=True,
                              timeout=60, cwd=self.folder, env={"PATH": os.environ["PATH"]})

    def put(self, source):
        """The machine in this test's own folder: its output names no path of this one."""
        if source.suffix == ".sysfs":
            make_tree(source.read_text(), self.folder / source.stem)
            return source.stem
        (self.folder / source.name).write_text(source.read_text())
        return source.name


class Golden(TopoTest):
    def test_text(self):
        sources = sorted(FOLDER.glob("*.xml")) + sorted(FOLDER.glob("*.sysfs"))
        self.assertGreater(len(sources), 4)
        for source in sources:
            with self.subTest(machine=source.name):
                result = self.deft("--input", self.put(source))
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                golden = FOLDER / (source.name + ".txt")
                if UPDATE:
                    golden.write_text(result.stdout)
                self.assertEqual(result.stdout, golden.read_text())

    def of(self, name):
        result = self.deft("--input", self.put(FOLDER / name), "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    @staticmethod
    def named(entries):
        return {entry["name"]: entry for entry in entries}

    def test_hwlocs_matrix_gives_pairs_and_switches(self):
        """The same host with bridges between pairs, of release 2, and with switches, of 3."""
        pairs = self.of("nvlink-pairs.hwloc2.xml")
        paths = [[peer["path"] for peer in gpu["peers"]] for gpu in pairs["gpus"]]
        self.assertEqual(paths[0], ["NV2", "NV1", "SYS"])
        self.assertEqual(pairs["gpus"][0]["peers"][0]["gbytes_per_s"], 50)
        self.assertEqual(pairs["gpus"][0]["peers"][0]["through"], "pair")
        self.assertEqual(pairs["gpus"][0]["distances"]["ib0"], "PIX")
        switched = self.of("nvlink-switch.hwloc3.xml")
        for gpu in switched["gpus"]:
            self.assertEqual({(p["path"], p["gbytes_per_s"], p["through"]) for p in gpu["peers"]},
                             {("NV12", 300, "switch")})
        self.assertEqual(pairs["matrix"]["rows"][0][:4], ["X", "NV2", "NV1", "SYS"])
        # Everything else is the same.
        self.assertEqual(pairs["links"], switched["links"])

    def test_two_ports_are_two_links(self):
        links = self.named(self.of("nvlink-pairs.hwloc2.xml")["links"])
        one, two = links["mlx5_0:1"], links["mlx5_0:2"]
        self.assertEqual((one["kind"], one["driver"], one["state"]), ("ib", "NCCL", "up"))
        self.assertEqual((two["kind"], two["driver"], two["reason"]), ("ib", "", "not active"))
        self.assertEqual(one["card"], two["card"])
        self.assertEqual(links["mlx5_1:1"]["kind"], "roce")
        self.assertEqual((links["ib0"]["kind"], links["ib0"]["driver"]), ("tcp", ""))
        self.assertIn("shares the wire", links["ib0"]["reason"])
        self.assertEqual((links["eno1"]["kind"], links["eno1"]["driver"]), ("tcp", "deft"))

    def test_nccls_nvlinks_and_networks(self):
        machine = self.of("nvlink-and-nets.nccl.xml")
        self.assertEqual(len(machine["gpus"][0]["nvlinks"]), 4)
        peer = machine["gpus"][0]["peers"][0]
        self.assertEqual((peer["path"], peer["through"]), ("NV18", "switch"))
        self.assertAlmostEqual(peer["gbytes_per_s"], 18 * 20.6, places=6)
        links = self.named(machine["links"])
        self.assertEqual([(links[n]["kind"], links[n]["speed_mbps"], links[n]["driver"])
                          for n in ("mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "eth0", "mlx5_9:1")],
                         [("ib", 200000, "NCCL"), ("ib", 200000, "NCCL"), ("roce", 400000, "NCCL"),
                          ("tcp", 25000, "deft"), ("ib", 400000, "")])
        self.assertEqual(links["eth0"]["pci"], "", "outside any PCI node")
        self.assertIn("NVLink switch", links["mlx5_9:1"]["reason"])

    def test_virtual_functions_and_switch_ports(self):
        machine = self.of("sriov.sysfs")
        ports = self.named(machine["rdma_ports"])
        self.assertEqual(list(ports), ["mlx5_0:1", "mlx5_0:2", "mlx5_2:1", "mlx5_4:1"])
        self.assertTrue(ports["mlx5_2:1"]["virtual_function"])
        self.assertEqual(ports["mlx5_2:1"]["physical_function"], "mlx5_0")
        self.assertFalse(ports["mlx5_0:1"]["virtual_function"])
        self.assertEqual(ports["mlx5_0:1"]["interfaces"], ["ens2f0"])
        self.assertEqual(ports["mlx5_4:1"]["obstacle"], "manages an NVLink switch")
        self.assertEqual(ports["mlx5_0:1"]["pci"], "0000:22:00.0")

    def test_a_containers_table_of_gids(self):
        machine = self.of("container.sysfs")
        ports = self.named(machine["rdma_ports"])
        self.assertEqual([(gid["index"], gid["here"]) for gid in ports["mlx5_6:1"]["gids"]],
                         [(0, False), (1, False), (10, True)])
        self.assertEqual(ports["mlx5_7:1"]["obstacle"],
                         "its GIDs belong to another network namespace")
        links = self.named(machine["links"])
        self.assertEqual(links["mlx5_6:1"]["addresses"],
                         ["0000:0000:0000:0000:0000:ffff:0a00:0002"])

    def test_an_nvlink_domain(self):
        name = self.put(FOLDER / "nvlink-domain.nccl.xml")
        for host in ("1", "2"):
            result = self.deft("--input", name, "--host", host)
            self.assertIn(f"host {host} of the 2", result.stdout)
            self.assertIn("NVLink reaches the GPUs of all 2 hosts", result.stdout)
            self.assertIn("18 to NVSwitch, C2C 224 GB/s", result.stdout)

    def test_the_matrix_alone(self):
        result = self.deft("--input", self.put(FOLDER / "nvlink-pairs.hwloc2.xml"), "-m")
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1", "NIC2",
                                            "NUMA"])
        self.assertEqual(lines[1].split(), ["GPU0", "X", "NV2", "NV1", "SYS", "PIX", "SYS", "SYS",
                                            "0"])
        self.assertEqual(lines[5].split()[:2], ["NIC0", "PIX"])
        self.assertIn("NIC0: mlx5_0\n", result.stdout)


GPU = '<pci busid="0000:10:00.0" class="0x030200"><gpu dev="0" sm="90">{}</gpu></pci>'
NET = '<nic><net name="mlx5_0" {}/></nic>'
MATRIX = ('<topology version="2.0"><object type="Machine" nodeset="0x1"><object type="PCIDev" '
          'gp_index="5" pci_busid="0000:10:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1"/>'
          '</object><distances2 type="PCIDev" nbobjs="{}" name="NVLinkBandwidth" indexing="gp">'
          '<indexes>{}</indexes><u64values>{}</u64values></distances2></topology>')


def nccl(inside):
    return f'<system version="1">\n<cpu numaid="0">\n{inside}\n</cpu>\n</system>\n'


class Broken(TopoTest):
    """One line that says what, where, and what to do; exit status 1; nothing else printed."""

    def check(self, path, *mentions):
        result = self.deft("--input", str(path))
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("deft: "), result.stderr)
        self.assertLess(len(result.stderr), 500)
        for mention in (*mentions, os.path.basename(path)):
            self.assertIn(mention, result.stderr)

    def check_text(self, text, *mentions):
        path = self.folder / "broken.xml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.check(path, *mentions)

    def test_xml(self):
        anew = "write the file anew"
        for text, mentions in (
                ("", ("empty",)), ("<system>\n<cpu>", ("line 2", anew)),
                (b"\x1f\x8b\x08", ("gunzip",)), (b"\xfd7zXZ\x00", ("unxz",)),
                ("<system/>".encode("utf-16"), ("iconv",)), (b"\x00\x01\x02", ("not XML", anew)),
                ("<html/>", ("<html>", "neither", anew)),
                ('<system a="1" a="2"/>', ("a twice", anew)),
                ("<a " + " ".join(f'a{i}="1"' for i in range(70)) + "/>", ("64 attributes",)),
                ("<a>" * 100, ("too deeply",)),
                ("<system>" + "<a/>" * 600000 + "</system>", ("500000 elements",))):
            with self.subTest(text=text[:40]):
                self.check_text(text, *mentions)

    def test_an_entity_is_never_expanded(self):
        bomb = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 30))
        text = f'<!DOCTYPE system [<!ENTITY a0 "lol">{bomb}]>' + nccl(
            '<nic><net name="&a29;" port="0"/></nic>')
        (self.folder / "bomb.xml").write_text(text)
        result = self.deft("--input", "bomb.xml")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("&a29;", result.stdout)
        text = '<!DOCTYPE system SYSTEM "file:///etc/passwd">' + nccl("")
        (self.folder / "bomb.xml").write_text(text)
        self.assertNotIn("root:", self.deft("--input", "bomb.xml", "--json").stdout)

    def test_nccls_files(self):
        correct = "correct it"
        twice = GPU.format("") * 2
        for inside, mentions in (
                ('<pci class="0x020000"/>', ("line 3", "no busid", correct)),
                (twice, ("0000:10:00.0", "already", correct)),
                (GPU.format('<nvlink target="x" count="many"/>'), ('count="many"', "0 to 1024")),
                (GPU.format('<nvlink count="-1"/>'), ('count="-1"',)),
                (GPU.format('<nvlink count="99999999999999999999"/>'), ("no number",)),
                (GPU.format('<c2c bw="1e9"/>'), ('bw="1e9"',)),
                (NET.format('speed="fast" port="1"'), ('speed="fast"', "line 3", correct)),
                (NET.format('speed="400 Gb/s" port="1"'), ('speed="400 Gb/s"',)),
                (NET.format('speed="1" port="x"'), ('port="x"',)),
                ("<nic>" + "".join(f'<net name="eth{i}" port="0"/>' for i in range(5000))
                 + "</nic>", ("more than 4096",)),
                ("".join(GPU.format("").replace("0000:10", f"{i:04x}:10") for i in range(600)),
                 ("more than 512",))):
            with self.subTest(inside=inside[:60]):
                self.check_text(nccl(inside), *mentions)
        self.check_text('<system>\n<cpu numaid="a"/></system>', "line 2", 'numaid="a"')
        self.check_text("<system/>", "no <cpu>", "NCCL_TOPO_DUMP_FILE")

    def test_hwlocs_files(self):
        for text, mentions in (
                (MATRIX.format(1, "5", "1 2"), ("2 values", "1 objects", "lstopo")),
                (MATRIX.format(2, "5", "1"), ('nbobjs is "2"',)),
                (MATRIX.format("", "5", "1"), ("nbobjs",)),
                (MATRIX.format(1, "5", "many"), ("many", "MB/s")),
                (MATRIX.format(1, "5", "-5"), ("-5",)),
                (MATRIX.format(1, "5", "99999999999"), ("99999999999",)),
                (MATRIX.format(3000, "5 " * 3000, "1"), ("more than 2048",)),
                (MATRIX.format(1, "5", "0").replace(' pci_busid="0000:10:00.0"', ""),
                 ("no pci_busid",)),
                ('<topology version="2.0"></topology>', ("no machine",))):
            with self.subTest(text=text[-80:]):
                self.check_text(text, *mentions)
        double = MATRIX.format(1, "5", "0")
        device = double[double.index('<object type="PCIDev"'):double.index("</object>")]
        self.check_text(double.replace(device, device * 2), "twice")

    def test_files_that_are_none(self):
        self.check("/nowhere/x.xml", "No such file")
        (self.folder / "empty").mkdir()
        self.check(self.folder / "empty", "a folder", "bus/pci/devices", "name a file")
        if os.getuid() != 0:
            path = self.folder / "closed.xml"
            path.write_text(nccl(""))
            path.chmod(0)
            self.check(path, "Permission denied")

    def test_a_tree_with_holes_is_shown_as_far_as_it_goes(self):
        make_tree((FOLDER / "sriov.sysfs").read_text(), self.folder / "tree")
        for file in ("class/infiniband/mlx5_0/ports/1/state", "class/infiniband/mlx5_2/ports"):
            path = self.folder / "tree" / file
            if path.is_dir():
                os.rename(path, self.folder / "away")
            else:
                path.unlink()
        (self.folder / "tree/class/infiniband/mlx5_4/ports/1/rate").write_text("very fast\n")
        (self.folder / "tree/class/infiniband/gone").symlink_to("/nowhere")
        result = self.deft("--input", "tree")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("ports/1/state cannot be read: No such file", result.stdout)

    def test_control_characters_reach_no_terminal(self):
        (self.folder / "x.xml").write_text(nccl('<nic><net name="e\x1b[31mth" port="0"/></nic>'))
        for option in ([], ["-m"]):
            self.assertNotIn("\x1b", self.deft("--input", "x.xml", *option).stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
