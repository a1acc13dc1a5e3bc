#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the product needs, shows and does at load time, read from the file with readelf and nm.

usage: elf_test.py LIBRARY GUEST COMMAND MODULE OPTIMIZED ARCHIVE...
COMMAND, MODULE: deft and libdeft-ucx.so, or - where they are not built; OPTIMIZED: true or false;
ARCHIVE: the static libraries that the library is linked from.
"""
import os
import platform
import re
import shutil
import subprocess
import sys
import unittest

LIBRARY, GUEST, ARCHIVES = sys.argv[1], sys.argv[2], sys.argv[6:]
COMMAND, MODULE = ("" if name == "-" else name for name in sys.argv[3:5])
OPTIMIZED = sys.argv[5] == "true"

# The floor of PyTorch's own wheels (manylinux_2_28): RHEL 8, Debian 10, Ubuntu 20.04 and whatever
# is newer.
NEWEST_GLIBC = (2, 28)
# In 2.28 these functions were in libraries of their own, which a program need not have loaded:
# packaging/glibc.c makes the references weak. The second list is what libc itself had of them.
ELSEWHERE = re.compile(
    r"_*(pthread|sem|mq|aio|timer|shm)_|dl(m?open|v?sym|close|error|addr1?|info)$")
THREADS_IN_LIBC = re.compile(
    r"pthread_(self|equal|exit|attr_(init|destroy|[gs]et(detachstate|sched\w+|scope))|"
                             r"cond_(init|destroy|signal|broadcast|wait|timedwait)|condattr_(init|destroy)|"
                             r"mutex_(init|destroy|lock|unlock)|setcancel(state|type)|[gs]etschedparam)$")

# The reserve of memory for exceptions; the two error categories.
# memory_resource: std::from_chars for doubles brings it along; it sets one pointer.
RUNTIME_CONSTRUCTORS = ("frame_dummy", "_GLOBAL__sub_I_eh_alloc.cc",
                        "_GLOBAL__sub_I_system_error.cc", "_GLOBAL__sub_I_memory_resource.cc")


# A folder with readelf, nm and size for another machine's files.
TOOLS = os.environ["ELF_TEST_TOOLS"] + ":" if "ELF_TEST_TOOLS" in os.environ else ""
BUILD_GLIBC = tuple(map(int, (platform.libc_ver()[1] or "0.0").split(".")[:2]))


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60,
                          env={"PATH": TOOLS + "/usr/bin:/bin", "LC_ALL": "C"}).stdout


def exported(library):
    """(name, nm's letter) of what a library shows."""
    return [(fields[-1], fields[1])
            for fields in map(str.split,
                              output("nm", "-D", "--defined-only", library).splitlines())]


class Guest(unittest.TestCase):
    """libdeft-preload.so asks for nothing, so that no program is refused on its account."""

    @classmethod
    def setUpClass(cls):
        cls.dynamic = output("readelf", "-Wd", GUEST)

    def test_needs_nothing(self):
        self.assertNotIn("NEEDED", self.dynamic)
        self.assertNotIn("VERNEED", self.dynamic)
        undefined = [line.split() for line in output("nm", "-D", "--undefined-only",
                                                     GUEST).splitlines()]
        self.assertEqual(undefined, [["w", "dlsym"]])

    def test_does_nothing_when_it_is_loaded_or_left(self):
        self.assertNotRegex(self.dynamic,
                            r"\((PREINIT_ARRAY|INIT|INIT_ARRAY|FINI|FINI_ARRAY|TEXTREL|STATIC_TLS)\)")
        self.assertNotRegex(output("readelf", "-Wl", GUEST), r"\bTLS\b|RWE")

    def test_shows_the_same_hooks_as_the_library(self):
        hooks = {name for name, letter in exported(LIBRARY) if letter == "T"} - {"deft_opened_by"}
        self.assertEqual({name for name, letter in exported(GUEST) if letter == "T"}, hooks)
        self.assertEqual([name for name, letter in exported(GUEST) if letter != "T"],
                         ["deft_preload_guest"])

    def test_is_small(self):
        self.assertLess(sum(int(size)
                            for size in output("size", GUEST).splitlines()[1].split()[:3]),
                        32 * 1024)


class Hardened(unittest.TestCase):
    """What holds for every file that is shipped."""

    def each(self):
        for name in filter(None, (LIBRARY, GUEST, COMMAND, MODULE)):
            with self.subTest(file=os.path.basename(name)):
                yield name, output("readelf", "-Wl", name), output("readelf", "-Wd", name)

    def test_nothing_is_both_writable_and_executable(self):
        for name, segments, _ in self.each():
            loads = re.findall(r"^ *LOAD .*?(R?W? ?E?) +0x", segments, re.M)
            self.assertGreater(len(loads), 0, name)
            self.assertEqual([flags for flags in loads if "W" in flags and "E" in flags], [])
            # Without such a header the loader makes the process's stack executable.
            self.assertEqual(re.findall(r"GNU_STACK.* (RWE|RW) ", segments), ["RW"])

    def test_relocated_data_is_read_only(self):
        """But in the guest, whose pointers to functions are written at the first NCCL call: a call
        more to the kernel, in every process of a fleet, would guard 96 bytes."""
        for name, segments, dynamic in self.each():
            self.assertNotIn("TEXTREL", dynamic)
            self.assertEqual("GNU_RELRO" in segments, name != GUEST)
            # Else the table of functions of other libraries stays writable.
            if name in (COMMAND, MODULE):
                self.assertRegex(dynamic, r"FLAGS_1\).*\bNOW\b")

    def test_no_search_path_of_its_own(self):
        for _, _, dynamic in self.each():
            self.assertNotRegex(dynamic, r"RPATH|RUNPATH")

    def test_an_overrun_ends_the_process(self):
        """The guest has no buffer: it asks nothing of a C library."""
        for name, _, _ in self.each():
            if name != GUEST:
                self.assertIn("__stack_chk_fail", output("nm", "-D", "--undefined-only", name))


@unittest.skipUnless(COMMAND, "no command was built")
class Command(unittest.TestCase):
    """The `deft` command starts seldom, so all of it is bound at once and read-only then."""

    @classmethod
    def setUpClass(cls):
        cls.dynamic = output("readelf", "-Wd", COMMAND)
        cls.segments = output("readelf", "-Wl", COMMAND)

    def test_is_hardened(self):
        self.assertIn("Elf file type is DYN", self.segments)
        self.assertRegex(self.dynamic, r"FLAGS_1\).*\bPIE\b")


class Product(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dynamic = output("readelf", "-Wd", LIBRARY)

    @staticmethod
    def undefined():
        return [line.strip() for line in
                output("nm", "-D", "--undefined-only", "--with-symbol-versions",
                       LIBRARY).splitlines()]

    def test_needs_only_libc_and_the_loader(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", self.dynamic)
        self.assertIn("libc.so.6", needed)
        # A build host older than glibc 2.34 has two parts of it in libraries of their own.
        allowed = r"libc\.so\.6|ld-linux.*" + (r"|libpthread\.so\.0|libdl\.so\.2"
                                               if BUILD_GLIBC < (2, 34) else "")
        self.assertEqual([name for name in needed if not re.fullmatch(allowed, name)], [])

    def test_loads_where_glibc_is_old(self):
        versions = {}
        for line in self.undefined():
            if match := re.match(r"\w (\S+)@(GLIBC\S*)$", line):
                versions.setdefault(match[2], []).append(match[1])

        def number(version):
            return tuple(map(int, version.removeprefix("GLIBC_").split(".")))

        self.assertGreater(len(versions), 1, "nm -D shows no versions here")
        self.assertNotIn("GLIBC_PRIVATE", versions)
        self.assertEqual({v: names for v, names in versions.items() if number(v) > NEWEST_GLIBC},
                         {}, "see packaging/glibc.c")

    def test_loads_where_libpthread_and_libdl_are_not(self):
        """Before glibc 2.34 a shell has neither, and with LD_BIND_NOW every strong reference
        must be found."""
        if BUILD_GLIBC < (2, 34):
            self.skipTest("it needs both, which brings them")
        strong = [line.split()[1].split("@")[0] for line in self.undefined()
                  if line.startswith("U ")]
        separate = [name for name in strong if ELSEWHERE.match(name)
                    and not THREADS_IN_LIBC.match(name)]
        self.assertEqual(separate, [], "see packaging/glibc.c")

    def test_stays_once_loaded(self):
        self.assertRegex(self.dynamic, r"FLAGS_1\).*NODELETE")

    def test_soname(self):
        """NCCL_NET_PLUGIN=deft finds the preloaded library by this name."""
        self.assertRegex(self.dynamic, r"SONAME\).*\[libnccl-net-deft\.so\]")

    @unittest.skipUnless(OPTIMIZED, "only optimized code is fortified")
    def test_calls_checked_functions(self):
        """Of the C library; a sanitizer's build has its own."""
        undefined = {re.sub(r"@.*", "", line.split()[-1]) for line in self.undefined()}
        fortified = {name for name in undefined if re.fullmatch(r"__\w+_chk", name)}
        self.assertGreaterEqual(fortified, {"__snprintf_chk", "__vsnprintf_chk"})

    def test_exports_only_nccl_and_deft(self):
        symbols = [line.split() for line in output("nm", "-D", "--defined-only",
                                                   LIBRARY).splitlines()]
        self.assertIn("deft_version", [fields[-1] for fields in symbols])
        self.assertEqual([f for f in symbols if not re.match(r"(nccl|deft_)", f[-1])], [])
        # Weak, unique or indirect symbols could replace, or be replaced by, the host's. NCCL looks
        # the tuner's tables up in the library itself, and does not always find them (tuner.md).
        self.assertEqual([f for f in symbols if f[1] not in "TDRB"
                          and not f[-1].startswith("ncclTunerPlugin_v")], [])
        self.assertEqual(sorted((f[-1], f[1]) for f in symbols if "Tuner" in f[-1]),
                         [(f"ncclTunerPlugin_v{version}", "i") for version in range(2, 7)])

    def test_asks_for_no_indirect_function_when_it_is_loaded(self):
        """The loader would call its resolver then, in every preloaded process; musl has none."""
        self.assertNotIn("IRELATIV", output("readelf", "-Wr", LIBRARY))

    def test_has_no_constructors(self):
        """Only the compiler's own start-up entry and what comes with the C++ runtime."""
        sections = output("readelf", "-WS", LIBRARY)
        match = re.search(r"\.init_array\s+INIT_ARRAY\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)",
                          sections)
        self.assertIsNotNone(match)
        start, size = int(match[1], 16), int(match[2], 16)
        functions = {}
        for line in output("nm", LIBRARY).splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[1] in "tT":
                functions.setdefault(int(fields[0], 16), set()).add(fields[2])
        if not functions:
            self.skipTest("stripped")
        names = []
        for line in output("readelf", "-Wr", LIBRARY).splitlines():
            fields = line.split()
            relative = len(fields) >= 4 and fields[2].endswith("_RELATIVE")
            if relative and start <= int(fields[0], 16) < start + size:
                names.append(min(functions.get(int(fields[3], 16), {f"unnamed at {fields[3]}"})))
        self.assertEqual(len(names), size // 8)
        self.assertEqual([n for n in names if n not in RUNTIME_CONSTRUCTORS], [])

    def test_never_ends_the_process_or_prints(self):
        """abort and the stdio behind it come with the C++ runtime; these do not, and must not."""
        undefined = {re.sub(r"@.*", "", line.split()[-1])
                     for line in output("nm", "-D", "--undefined-only", LIBRARY).splitlines()}
        forbidden = {"exit", "_exit", "_Exit", "quick_exit", "printf", "puts", "setenv", "putenv",
                     "unsetenv", "signal", "sigaction", "atexit", "setlocale", "system", "popen"}
        self.assertEqual(undefined & forbidden, set())

    def test_registers_no_destructors(self):
        """A static object with a destructor would be destroyed while NCCL's threads still run."""
        for archive in ARCHIVES:
            undefined = [line for line in output("nm", "--undefined-only", "-A",
                                                 archive).splitlines()
                         if line.endswith(" __cxa_atexit")]
            self.assertEqual(undefined, [], archive)


if __name__ == "__main__":
    if not shutil.which("readelf") or not shutil.which("nm"):
        print("skipped: no readelf or nm here (package binutils)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
