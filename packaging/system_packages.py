# SPDX-License-Identifier: Apache-2.0
"""The packages of distributions, .deb and .rpm, of an installed tree."""
import gzip
import hashlib
import pathlib
import shutil
import time

from tree import FLOOR, MACHINES, SUMMARY, UCX, UCX_MODULE, Tree, run, with_places

MODULE = """#%Module1.0
# SPDX-License-Identifier: Apache-2.0
# For Lmod and Environment Modules: `module load deft`, then `deft run -- COMMAND`.
module-whatis "SUMMARY"
proc ModulesHelp {{}} {{
    puts stderr "SUMMARY: deft run -- COMMAND"
}}
set root {root}
if {{$root ne "/usr"}} {{
    prepend-path PATH $root/bin
    prepend-path LD_LIBRARY_PATH $root/lib
    prepend-path MANPATH $root/share/man
}}
""".replace("SUMMARY", SUMMARY)
TMPFILES = """# SPDX-License-Identifier: Apache-2.0
# Links that deft run makes for paths that the loader would split: /tmp/deft-UID.
x /tmp/deft-*
"""
AUTHORS = "deft's authors <deft@localhost>"
# What Python has compiled next to the sources, where a job of root's ran: no package knows of it.
COMPILED = "{0}/*/__pycache__ {0}/*/*/__pycache__"
BEFORE_REMOVAL = """#!/bin/sh
set -e
rm -rf """ + COMPILED.format('"$DPKG_ROOT"/usr/share/deft') + """
"""
AFTER_REMOVAL = """/sbin/ldconfig
if [ "$1" -eq 0 ]; then
    rm -rf """ + COMPILED.format("/usr/share/deft") + """
    rmdir /usr/share/deft/*/* /usr/share/deft/* /usr/share/deft 2>/dev/null || :
fi
"""


def system_tree(tree, libdir, modules, zsh):
    """What a distribution's package holds: the tree below /usr, and what stands in /etc."""
    system = Tree()
    for path, file in with_places(tree, "/usr", "${prefix}/" + libdir).files.items():
        content, mode = file
        if path.startswith("lib/"):
            path = libdir + path[3:]
        elif path.startswith("share/man/"):
            path, content = path + ".gz", gzip.compress(content, 9, mtime=0)
        path = path.replace("share/zsh/site-functions", zsh)
        system.files[f"usr/{path}"] = content, mode
    system.add("etc/deft/deft.conf", tree.files["share/doc/deft/deft.conf.example"][0])
    system.add("usr/lib/tmpfiles.d/deft.conf", TMPFILES)
    system.add(f"usr/share/{modules}/deft", MODULE.format(root="/usr"))
    return system


def deb(tree, version, machine, when, work, file):
    system = system_tree(tree, "lib", "modules/modulefiles", "share/zsh/vendor-completions")
    system.add("usr/share/doc/deft/copyright", tree.files["share/doc/deft/packaging/copyright"][0])
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(when))
    system.add("usr/share/doc/deft/changelog.gz", gzip.compress(
        f"deft ({version}) unstable; urgency=medium\n\n  * CHANGELOG.md says what is new.\n\n"
        f" -- {AUTHORS}  {date}\n".encode(), 9, mtime=0))
    size = sum(len(content) for content, _ in system.files.values()) // 1024
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {path}\n"
                   for path, (content, _) in sorted(system.files.items())
                   if not path.startswith("etc/"))
    suggests = f"Suggests: libucx0 (>= {UCX})\n" if UCX_MODULE in tree.files else ""
    system.add("DEBIAN/control", f"""Package: deft
Version: {version}
Architecture: {MACHINES[machine]}
Maintainer: {AUTHORS}
Installed-Size: {size}
Depends: libc6 (>= {FLOOR})
{suggests}Section: net
Priority: optional
Description: {SUMMARY}
 A preloaded library and NCCL network plugin, and the command that puts both
 into a job: deft run -- torchrun train.py
""")
    system.add("DEBIAN/conffiles", "/etc/deft/deft.conf\n")
    system.add("DEBIAN/md5sums", sums)
    system.add("DEBIAN/prerm", BEFORE_REMOVAL, 0o755)
    system.add("DEBIAN/triggers", "activate-noawait ldconfig\n")
    system.write(work, when)
    # xz: Debian 11 does not know zstd.
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-b", work, file,
        env={"SOURCE_DATE_EPOCH": str(when)})


def rpm(tree, version, machine, when, work, file):
    system = system_tree(tree, "lib64", "modulefiles", "share/zsh/site-functions")
    system.write(work / "files", when)
    listed = "\n".join(("%config(noreplace) " if path.startswith("etc/") else "") + f"/{path}"
                       for path in sorted(system.files))
    # rpm takes away the folders that it has been told of, and leaves others behind, empty. Those of
    # shells and modules are there only where their packages are, which own them as well.
    own = {f"/{parent}" for path in system.files for parent in pathlib.PurePosixPath(path).parents
           if str(parent).startswith(("etc/deft", "usr/include/deft", "usr/share/deft",
                                       "usr/share/doc/deft", "usr/share/bash-completion",
                                       "usr/share/fish", "usr/share/modulefiles",
                                       "usr/share/zsh"))}
    folders = "\n".join(f"%dir {folder}" for folder in sorted(own))
    suggests = f"Suggests: ucx >= {UCX}\n" if UCX_MODULE in tree.files else ""
    spec = work / "deft.spec"
    spec.write_text(f"""Name: deft
Version: {version}
Release: 1
Summary: {SUMMARY}
License: Apache-2.0
AutoReqProv: no
Requires: libc.so.6(GLIBC_{FLOOR})(64bit)
{suggests}%description
{SUMMARY}.
%install
cp -a {work / "files"}/. %{{buildroot}}/
%post -p /sbin/ldconfig
%postun
{AFTER_REMOVAL}%files
%defattr(-,root,root)
{folders}
{listed}
""")
    defines = {"_topdir": work / "top", "_buildhost": "deft", "_build_id_links": "none",
               "use_source_date_epoch_as_buildtime": 1, "clamp_mtime_to_source_date_epoch": 1,
               "source_date_epoch_from_changelog": 0, "_binary_payload": "w9.gzdio",
               "__os_install_post": "%{nil}", "debug_package": "%{nil}", "_rpmdir": work / "rpms",
               "_dbpath": work / "db"}
    words = [f"{name} {value}" for name, value in defines.items()]
    run("rpmbuild", "-bb", "--target", f"{machine}-linux",
        *(word for define in words for word in ("--define", define)), spec,
        env={"SOURCE_DATE_EPOCH": str(when)})
    shutil.move(next((work / "rpms").rglob("*.rpm")), file)
