// SPDX-License-Identifier: Apache-2.0
// The little of an executable's header that decides whether a library can be preloaded into it.
#pragma once

#include <string>

namespace deft::tools {

struct ElfFile {
    enum class Kind { Unreadable, Elf, Script, Other };
    Kind kind = Kind::Unreadable;
    std::string error;  // Unreadable: why
    // Script: the program behind "#!". Elf: the dynamic loader that runs it (PT_INTERP). Else
    // empty.
    std::string interpreter;
    bool this_machine = false;    // Elf: 64-bit and of the architecture deft is built for
    bool dynamic_object = false;  // Elf: ET_DYN (shared library or position-independent program)
    bool needs_loader = false;    // Elf: has PT_INTERP
    bool cut_off = false;         // Elf: what the loader maps reaches beyond the file's end
};

ElfFile read_elf(const std::string& path);

// The C library that the dynamic loader at `path` is part of: "glibc", "musl", or "another C
// library"; empty if the file cannot be read. Told by what is in it, because anybody can name it
// anything.
std::string c_library_of_loader(const std::string& path);

// The file execvp() would start for `command` with this PATH, or an empty string.
std::string find_in_path(const std::string& command, const std::string& path);

}  // namespace deft::tools
