# SPDX-License-Identifier: Apache-2.0
"""Writes the companion's wheel: the package, and a .pth file that starts it in each Python process.

usage: make_wheel.py PACKAGE VERSION WHEEL   (the folder with the sources; a file to write)
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

NAME = "deft_companion"
# Each Python process of the image runs it, so it imports nothing and takes microseconds. It has to
# be one line.
START = "import sys; exec(%r)\n" % f"""\
def find_spec(name, *_):
    if name == 'torch':
        try:
            import {NAME}
            {NAME}.start()
        except Exception:
            pass
sys.meta_path.insert(0, type('{NAME}', (), {{'find_spec': staticmethod(find_spec)}}))
"""
METADATA = """Metadata-Version: 2.1
Name: deft-companion
Version: {version}
Summary: What deft knows from inside a PyTorch job
License: Apache-2.0
Requires-Python: >=3.8
"""
WHEEL = """Wheel-Version: 1.0
Generator: deft
Root-Is-Purelib: true
Tag: py3-none-any
"""
WRITTEN = (1980, 1, 1, 0, 0, 0)   # the same bytes from the same sources


def contents(package, version):
    files = {f"{NAME}/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    folder = f"{NAME}-{version}.dist-info"
    files.update({f"{NAME}.pth": START.encode(),
                  f"{folder}/METADATA": METADATA.format(version=version).encode(),
                  f"{folder}/WHEEL": WHEEL.encode()})
    record = "".join(
        f"{name},sha256="
        f"{base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},"
        f"{len(data)}\n" for name, data in files.items())
    files[f"{folder}/RECORD"] = (record + f"{folder}/RECORD,,\n").encode()
    return files


def main():
    package, version, wheel = sys.argv[1:]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents(pathlib.Path(package), version).items():
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), data)


if __name__ == "__main__":
    main()
