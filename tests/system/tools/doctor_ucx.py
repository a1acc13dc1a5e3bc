# SPDX-License-Identifier: Apache-2.0
"""Links over UCX: why there are none. What needs UCX itself is skipped where the build has no
module."""
import os
import pathlib
import shutil
import subprocess
import unittest

from doctor_host import two_hosts
from doctor_support import DEFT, INSTALLED, DoctorTest, needs_cc, needs_network

MODULE = pathlib.Path(INSTALLED).parent / "libdeft-ucx.so"
HEADERS = pathlib.Path(os.environ["DEFT_SOURCE_ROOT"]) / "include"
ON = {"DEFT_UCX": "on"}
OWN_SYSFS = "mount -t sysfs none /sys"  # where UCX looks for interfaces
needs_ucx = unittest.skipUnless(MODULE.exists(), "this build has no module for UCX")
# A module that says what it is told to say.
MADE_UP = """#include <stdlib.h>
#include "deft/abi/ucx_module.h"
static const char* version(void) { return "%(version)s"; }
static deft_ucx_device_t* start(const char* names, char* problem, size_t room) {
    (void)names; (void)problem; (void)room;
    return (deft_ucx_device_t*)1;
}
static size_t devices(const deft_ucx_device_t* device, char* text, size_t room) {
    (void)device; (void)text; (void)room;
    return 0;
}
static const deft_ucx_module_t module = {.abi = %(abi)s, .bytes = sizeof(deft_ucx_module_t),
    .version = version, .open = start, .devices = devices};
const deft_ucx_module_t* deft_ucx_module(void) { %(begin)s return &module; }
"""


@needs_network
class Links(DoctorTest):
    def folder_with(self, name, **changes):
        """A library of deft's, next to a module that was made up."""
        told = {"version": "1.13.1", "abi": "DEFT_UCX_ABI", "begin": "", **changes}
        options = told.pop("options", [])
        self.compile(f"{name}/libdeft-ucx.so", MADE_UP % told, "-shared", "-fPIC", f"-I{HEADERS}",
                     *options)
        return self.library_in(name)

    def library_in(self, name):
        (self.folder / name).mkdir(exist_ok=True)
        shutil.copy(INSTALLED, self.folder / name)
        return str(self.folder / name / "libnccl-net-deft.so")

    def ucx(self, name, *mentions, library=None, **env):
        arguments = () if library is None else ("--library", library)
        return self.first(f"ucx-{name}", "warning", *mentions, arguments=arguments,
                          env={**ON, **env}, inside=two_hosts(OWN_SYSFS))

    def test_an_environment_that_nobody_has_prepared(self):
        preload = {"LD_PRELOAD": INSTALLED, "NCCL_NET_PLUGIN": "deft"}
        if not set(" :;$") & set(INSTALLED):
            self.ucx("unprepared", "UCX_MEM_MMAP_HOOK_MODE=none is not in the environment",
                     "remedy: start the job with deft run", **preload)

    def test_variables_of_ucx_that_contradict(self):
        for variable, value in (("UCX_HANDLE_ERRORS", "bt"), ("UCX_MEM_MMAP_HOOK_MODE", "bistro"),
                                ("UCX_DEBUG_SIGNO", "SIGHUP")):
            with self.subTest(variable=variable):
                self.ucx("unprepared", f"{variable}='{value}' is set", **{variable: value})

    def test_without_the_module(self):
        self.ucx("missing", "libdeft-ucx.so is not next to",
                 library=self.library_in("bare"))

    @needs_cc
    def test_without_ucx(self):
        self.compile("libucp.so.99", "int nothing;", "-shared", "-Wl,-soname,libucp.so.99")
        library = self.folder_with("lonely", options=[f"-L{self.folder}", "-Wl,--no-as-needed",
                                                      "-l:libucp.so.99"])
        self.ucx("missing", "does not find libucp.so.99", "install UCX", library=library)

    @needs_cc
    def test_a_module_of_another_build(self):
        self.ucx("version", "is of another release of deft",
                 library=self.folder_with("other", abi="DEFT_UCX_ABI + 1"))
        library = self.library_in("cut")
        (self.folder / "cut/libdeft-ucx.so").write_bytes(b"no library")
        self.ucx("version", "is no library of this machine", library=library)

    @needs_cc
    def test_an_old_ucx(self):
        self.ucx("version", "UCX here is 1.9.0, and 1.13 is the oldest",
                 library=self.folder_with("old", version="1.9.0"))

    @needs_cc
    def test_a_ucx_that_does_not_come_up(self):
        self.ucx("broken", "UCX ended the process", "ucx_info -d",
                 library=self.folder_with("abort", begin="abort();"))

    @needs_ucx
    def test_names(self):
        said = self.ucx("device", "DEFT_UCX_DEVICES names nosuch0", "none of this name",
                        DEFT_UCX_DEVICES="eth0,nosuch0")
        self.assertIn("tcp/eth1", said)  # what there is stands in the evidence
        self.ucx("device", "its own settings allow", UCX_TLS="self,sm")

    @needs_ucx
    def test_well(self):
        result = self.doctor(env={**ON, "DEFT_UCX_DEVICES": "eth0,eth1"},
                             inside=two_hosts(OWN_SYSFS))
        self.assertTrue(result.stdout.startswith("well: "), result.stdout + result.stderr)

    def test_names_without_the_switch(self):
        self.first("setting-idle", "warning", "no effect without DEFT_UCX=on",
                   env={"DEFT_UCX_DEVICES": "eth0"}, inside=two_hosts())


@needs_network
class Topology(DoctorTest):
    def topo(self, **env):
        return subprocess.run([*two_hosts(OWN_SYSFS), DEFT, "topo"], capture_output=True, text=True,
                              timeout=60, cwd=self.folder,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}).stdout

    @needs_ucx
    def test_links_over_ucx(self):
        said = self.topo(**ON, DEFT_UCX_DEVICES="eth1,nosuch0")
        self.assertRegex(said, r"eth1 +ucx +10G +up .* deft +by tcp, 10\.1\.1\.1")
        self.assertRegex(said, r"nosuch0 +ucx .* nobody .*none of this name")
        self.assertIn("DEFT_UCX=on: under deft run, by UCX ", said)
        self.assertRegex(self.topo(**ON), r"all +ucx .* deft\b")

    def test_off(self):
        self.assertNotIn("ucx", self.topo().lower())

    def test_why_not(self):
        said = self.topo(**ON, UCX_HANDLE_ERRORS="bt")
        self.assertRegex(said, r"all +ucx .* nobody +UCX_HANDLE_ERRORS='bt' is set")
        self.assertIn("DEFT_UCX=on: no link goes over UCX", said)
