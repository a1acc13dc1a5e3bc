# SPDX-License-Identifier: Apache-2.0
"""Trees in sysfs's form that show RoCE ports to deft and the stand-in NCCL (DEFT_SYSFS,
SOFTDEV_SYSFS)."""

import os

INDEX = 3  # of a port's IPv4 address as RoCE v2, as the software verbs device has it


def put(root, path, text):
    path = os.path.join(root, "class", "infiniband", path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(text + "\n")


def add_port(root, device, interface, address, rate="100 Gb/sec (4X EDR)", state="4: ACTIVE"):
    """Port 1 of `device`, whose link is `interface` with this IPv4 address."""
    port = f"{device}/ports/1"
    octets = [int(octet) for octet in address.split(".")]
    gid = ("0000:0000:0000:0000:0000:ffff:"
           f"{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}")
    for name, text in {"state": state, "link_layer": "Ethernet", "rate": rate,
                       f"gids/{INDEX}": gid, f"gid_attrs/ndevs/{INDEX}": interface,
                       f"gid_attrs/types/{INDEX}": "RoCE v2"}.items():
        put(root, f"{port}/{name}", text)
