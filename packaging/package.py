#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what users install out of one portable build: a relocatable tarball, a .deb, an .rpm, a
wheel, an OCI image for a DaemonSet, debug information, an SBOM and checksums. The same build gives
the same bytes.

usage: package.py BUILD OUT        (BUILD: meson setup -Dportable=true --prefix=/usr --libdir=lib)
"""
import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import zipfile

import system_packages
from system_packages import MODULE
from tree import FLOOR, MACHINES, SUMMARY, UCX, UCX_MODULE, Tree, run, stop, with_places

LARGEST = 3_000_000  # bytes of the library, without debug information
LICENCES = ("share/doc/deft/LICENSE", "share/doc/deft/packaging/copyright")
# Above share/modulefiles, wherever the tree lies.
RELOCATED = "[file dirname [file dirname [file dirname $ModulesCurrentModulefile]]]"
INSTALLER = """#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copies deft onto the host whose folder is mounted at /host (or named). Each build gets a folder of
# its own, for jobs that run keep the one that they have; the link opt/deft changes in one step.
set -eu
from=$(cd "$(dirname "$0")" && pwd)
host=${{1:-/host}}
name=deft-{version}-{digest}
mkdir -p "$host/opt"
if [ -d "$host/opt/deft" ] && [ ! -L "$host/opt/deft" ]; then
    echo "deft: $host/opt/deft is a folder that this script has not made; move it away" >&2
    exit 1
fi
if [ ! -d "$host/opt/$name" ]; then
    rm -rf "$host/opt/.$name"
    cp -R "$from" "$host/opt/.$name"
    mv "$host/opt/.$name" "$host/opt/$name"
fi
rm -f "$host/opt/.deft.link"
ln -s "$name" "$host/opt/.deft.link"
mv -T "$host/opt/.deft.link" "$host/opt/deft"
"""


def epoch():
    """When the commit was made: the date of all files."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    try:
        return int(subprocess.run(["git", "-C", pathlib.Path(__file__).parent, "log", "-1",
                                   "--format=%ct"], capture_output=True, text=True).stdout)
    except (OSError, ValueError):
        return 315532800  # 1980, the first that zip knows


def machine_of(path):
    """As uname says it."""
    names = {62: "x86_64", 183: "aarch64"}  # e_machine
    number = int.from_bytes(path.read_bytes()[18:20], "little")
    return names.get(number) or stop(f"{path} is for machine {number}, which has no package")


def binutil(name, path):
    """The program of binutils for the machine of `path`; readelf reads them all."""
    machine = machine_of(path)
    return name if machine == os.uname().machine else f"{machine}-linux-gnu-{name}"


def glibc_asked_for(path):
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", run(binutil("objdump", path), "-T", path))
    return max(((int(a), int(b)) for a, b in found), default=(0, 0))


def check(path):
    """The floor, and no library of one distribution."""
    if "libdeft-preload" in path.name:
        return
    asked = glibc_asked_for(path)
    if asked > tuple(map(int, FLOOR.split("."))):
        stop(f"{path.name} asks for glibc {asked[0]}.{asked[1]}, the floor is {FLOOR}; "
             "configure with -Dportable=true")
    needed = set(re.findall(r"NEEDED\s+(\S+)", run(binutil("objdump", path), "-p", path)))
    allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}
    if "libdeft-ucx" in path.name:  # which nothing loads where UCX is not asked for
        allowed |= {"libucp.so.0", "libucs.so.0"}
    odd = {name for name in needed if name not in allowed and not name.startswith("ld-linux")}
    if odd:
        stop(f"{path.name} needs {', '.join(sorted(odd))}; configure with -Dportable=true")


def stage(build, work):
    """The installed tree, its binaries stripped; and their debug information."""
    root = work / "stage"
    run("meson", "install", "-C", build, "--no-rebuild", "--destdir", root, "--tags",
        "runtime,man,doc,devel")
    tree, debug = Tree(), Tree()
    for path in sorted((root / "usr").rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(root / "usr"))
        content = path.read_bytes()
        if content.startswith(b"\x7fELF"):
            split = work / (path.name + ".debug")
            run(binutil("objcopy", path), "--only-keep-debug", path, split)
            run(binutil("strip", path), "--strip-unneeded", path)
            check(path)
            build = re.search(r"Build ID: ([0-9a-f]+)", run("readelf", "-n", path))
            if build is None:
                stop(f"{path.name} has no build id")
            # Where gdb looks, wherever the package was installed.
            debug.add(f"usr/lib/debug/.build-id/{build[1][:2]}/{build[1][2:]}.debug",
                      split.read_bytes())
            content = path.read_bytes()
            if path.name == "libnccl-net-deft.so" and len(content) > LARGEST:
                stop(f"{path.name} has {len(content)} bytes, {LARGEST} are allowed")
        # Libraries are read, not started.
        tree.add(name, content, 0o755 if name.startswith("bin/") else 0o644)
    return tree, debug


def wheel(tree, version, machine, when):
    """The command goes into bin/, the library into lib/, as in an installation."""
    name = f"deft-{version}"
    tag = f"py3-none-manylinux_{FLOOR.replace('.', '_')}_{machine}"
    files = {"deft.py": tree.files["share/deft/python/deft.py"],
             f"{name}.data/scripts/deft": (tree.files["bin/deft"][0], 0o755)}
    for path, file in tree.files.items():
        # manylinux allows no library that a host may lack, and the module links to UCX.
        if path.startswith(("lib/lib", "share/deft/", "share/man/")) and path != UCX_MODULE:
            files[f"{name}.data/data/{path}"] = file
    files[f"{name}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: deft\nVersion: {version}\nSummary: {SUMMARY}\n"
        "License: Apache-2.0\nRequires-Python: >=3.6\n".encode(), 0o644)
    files[f"{name}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: deft\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        0o644)
    for path in LICENCES:
        files[f"{name}.dist-info/{pathlib.PurePosixPath(path).name}"] = tree.files[path]
    record = ""
    for path, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    record += f"{name}.dist-info/RECORD,,\n"
    data = io.BytesIO()
    date = time.gmtime(when)[:6]
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, (content, mode) in [*sorted(files.items()),
                                      (f"{name}.dist-info/RECORD", (record.encode(), 0o644))]:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return f"{name}-{tag}.whl", data.getvalue()


def oci(tree, version, machine, when, folder):
    """An OCI image layout with one layer: /opt/deft, and a script that copies it to the host. The
    script needs a shell, so the layer is put upon an image that has one."""
    layer = tree.under("opt/deft/")
    digest = hashlib.sha256(b"".join(content for _, (content, _) in sorted(tree.files.items())))
    layer.add("opt/deft/install-on-host",
              INSTALLER.format(version=version, digest=digest.hexdigest()[:12]), 0o755)
    plain = layer.tar(when)
    packed = gzip.compress(plain, mtime=0)
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = blob(json.dumps({
        "architecture": MACHINES[machine], "os": "linux",
        "config": {"Env": ["PATH=/opt/deft/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers",
                   "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]}}).encode())
    manifest = blob(json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                    **blob(packed)}]}).encode())
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({
        "schemaVersion": 2,
        "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", **manifest,
                       "annotations": {"org.opencontainers.image.ref.name": version}}]}))


def versions_of(build):
    """What meson has found of each dependency, by its name in the SBOM."""
    found = json.loads((build / "meson-info/intro-dependencies.json").read_text())
    return {dependency["name"].replace("_", "-"): dependency.get("version", "unknown")
            for dependency in found}


def verification_code(files):
    """SPDX 2.3, 7.9: over the SHA1 of all files of a package."""
    return hashlib.sha1("".join(sorted(
        check["checksumValue"] for file in files for check in file["checksums"]
        if check["algorithm"] == "SHA1")).encode()).hexdigest()


def sbom(tree, version, when, versions):
    """SPDX 2.3: the package, its files, and what is linked into them."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    linked = [("libstdc++", "GPL-3.0-only WITH GCC-exception-3.1"), ("fmt", "MIT"),
              ("nlohmann-json", "MIT"), ("CLI11", "BSD-3-Clause"), ("zlib", "Zlib"),
              ("tomlplusplus", "MIT")]
    files = [{"SPDXID": f"SPDXRef-file-{index}", "fileName": "./" + path,
              "checksums": [{"algorithm": algorithm.upper(),
                             "checksumValue": hashlib.new(algorithm, content).hexdigest()}
                            for algorithm in ("sha1", "sha256")]}
             for index, (path, (content, _)) in enumerate(sorted(tree.files.items()))]
    packages = [{"SPDXID": "SPDXRef-deft", "name": "deft", "versionInfo": version,
                 "downloadLocation": "NOASSERTION", "licenseConcluded": "Apache-2.0",
                 "filesAnalyzed": True, "packageVerificationCode": {
                     "packageVerificationCodeValue": verification_code(files)}}]
    for name, licence in linked:
        part = {"SPDXID": f"SPDXRef-{name.replace('+', 'x')}", "name": name,
                "downloadLocation": "NOASSERTION", "licenseConcluded": licence,
                "filesAnalyzed": False}
        if versions.get(name, "unknown") != "unknown":
            part["versionInfo"] = versions[name]
        packages.append(part)
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": "SPDXRef-deft"}]
    relations += [{"spdxElementId": "SPDXRef-deft", "relationshipType": "STATIC_LINK",
                   "relatedSpdxElement": package["SPDXID"]} for package in packages[1:]]
    if UCX_MODULE in tree.files:  # the host's, opened where DEFT_UCX=on
        packages.append({"SPDXID": "SPDXRef-ucx", "name": "ucx", "versionInfo": f">={UCX}",
                         "downloadLocation": "NOASSERTION", "licenseConcluded": "BSD-3-Clause",
                         "filesAnalyzed": False})
        relations.append({"spdxElementId": "SPDXRef-ucx", "relatedSpdxElement": "SPDXRef-deft",
                          "relationshipType": "OPTIONAL_DEPENDENCY_OF"})
    relations += [{"spdxElementId": "SPDXRef-deft", "relationshipType": "CONTAINS",
                   "relatedSpdxElement": file["SPDXID"]} for file in files]
    return json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"deft-{version}", "documentNamespace": f"https://deft.invalid/spdx/{version}",
        "creationInfo": {"created": created, "creators": ["Tool: packaging/package.py"]},
        "packages": packages, "files": files, "relationships": relations}, indent=1) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    info = json.loads((arguments.build / "meson-info/intro-projectinfo.json").read_text())
    machine = machine_of(arguments.build / "tools/deft")
    version, when, out = info["version"], max(epoch(), 315532800), arguments.out
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    out = out.resolve()
    base = f"deft-{version}-linux-{machine}"
    with tempfile.TemporaryDirectory(prefix="deft-package-") as folder:
        work = pathlib.Path(folder)
        tree, debug = stage(arguments.build, work)
        system_packages.deb(tree, version, machine, when, work / "deb",
                            out / f"deft_{version}_{MACHINES[machine]}.deb")
        system_packages.rpm(tree, version, machine, when, work / "rpm",
                            out / f"deft-{version}-1.{machine}.rpm")
    tree.add("share/modulefiles/deft", MODULE.format(root=RELOCATED))
    tree = with_places(tree, "${pcfiledir}/../..", "${prefix}/lib")
    made = {f"{base}.tar.gz": gzip.compress(tree.under(f"{base}/").tar(when), mtime=0),
            f"{base}-debug.tar.gz": gzip.compress(debug.tar(when), 6, mtime=0),
            f"{base}.spdx.json": sbom(tree, version, when, versions_of(arguments.build)).encode()}
    name, content = wheel(tree, version, machine, when)
    made[name] = content
    for name, content in made.items():
        (out / name).write_bytes(content)
    oci(tree, version, machine, when, out / f"{base}-oci")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out)}\n"
                   for path in sorted(out.rglob("*")) if path.is_file())
    (out / "SHA256SUMS").write_text(sums)
    print("\n".join(f"{path.stat().st_size:>10}  {path}" for path in sorted(out.iterdir())
                    if path.is_file()))


if __name__ == "__main__":
    main()
