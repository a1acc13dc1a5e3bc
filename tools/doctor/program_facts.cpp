// SPDX-License-Identifier: Apache-2.0
// One program's file.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/command_words.h"
#include "tools/elf_file.h"
#include "tools/loader_search.h"

namespace deft::tools::doctor {
namespace {

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

bool is_file(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// A file that execvp() hands to the shell, as it begins like a text.
bool is_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    char start[256] = "";
    file.read(start, sizeof start);
    return std::find(start, start + file.gcount(), '\0') == start + file.gcount();
}

// "#!/usr/bin/env -S NAME": what env starts, if PATH does not have it.
std::string missing_behind_env(const std::string& path, const std::string& search) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    const auto env = std::min(line.find("/env "), line.find("/env\t"));
    if (env == line.npos) {
        return {};
    }
    std::string rest = line.substr(env + 5);
    rest = rest.substr(std::min(rest.find_first_not_of(" \t"), rest.size()));
    if (rest.starts_with("-")) {
        return {};
    }
    const std::string name = rest.substr(0, rest.find_first_of(" \t"));
    return find_in_path(name, search).empty() ? name : "";
}

// "/usr/bin/python3 -u\r": the interpreter is there, and gets an option that it does not know.
std::string argument_with_cr(const std::string& path, const std::string& interpreter) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    // `env -S` takes a CR for a blank, and Perl reads its options without it.
    const std::string_view name = base_name(interpreter);
    const auto option = line.find_first_not_of(" \t", line.find(interpreter) + interpreter.size());
    const bool bears =
        (name == "env" && option != line.npos && line.compare(option, 2, "-S") == 0) ||
        name.starts_with("perl");
    return line.ends_with('\r') && !bears ? line.substr(line.find(interpreter)) : "";
}

std::string raised_by(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return {};
    }
    if ((status.st_mode & S_ISUID) != 0 && status.st_uid != ::geteuid()) {
        return "setuid";
    }
    if ((status.st_mode & S_ISGID) != 0 && status.st_gid != ::getegid()) {
        return "setgid";
    }
    return ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0 ? "capabilities" : "";
}

bool of_system(const std::string& path) {
    return path.starts_with("/lib") || path.starts_with("/usr/lib");
}

void read_libraries(ProgramFacts& program, const Environment& environment) {
    const LoaderSearch::Closure closure = LoaderSearch(environment).closure(program.file);
    for (const LoaderSearch::Object& object : closure.objects) {
        if (object.elf.soname.starts_with("libasan.so") ||
            object.elf.soname.starts_with("libclang_rt.asan")) {
            program.sanitizer = object.elf.soname;
        }
        if (object.elf.soname == "libc.so.6") {
            program.glibc = object.elf.glibc_offered;
        }
        if (object.elf.imports_nccl) {
            program.needs_nccl = true;
        }
        if (of_system(object.path) || object.elf.imports_nccl || object.elf.is_deft) {
            continue;
        }
        const ElfDynamic texts = read_elf_dynamic(object.path, true);
        if (texts.names_nccl && texts.imports_dlsym && !texts.holds_nccl) {
            program.nccl_by_handle = true;
        }
    }
}

void read_elf_program(ProgramFacts& program, const ElfFile& elf, const Environment& environment) {
    program.elf = true;
    program.this_machine = elf.this_machine;
    program.dynamic = elf.needs_loader;
    program.loader = elf.interpreter;
    if (!elf.this_machine || !elf.needs_loader) {
        return;
    }
    if (!exists(elf.interpreter)) {
        program.missing_interpreter = elf.interpreter;
        return;
    }
    program.c_library = c_library_of_loader(elf.interpreter);
    program.raised = raised_by(program.file);
    read_libraries(program, environment);
    const std::string options = environment.get("ASAN_OPTIONS").value_or("");
    if (options.find("verify_asan_link_order=0") != options.npos ||
        environment.get("LD_PRELOAD").value_or("").find("asan") != std::string::npos) {
        program.sanitizer.clear();
    }
}

}  // namespace

ProgramFacts read_program(const std::string& word, const Environment& environment) {
    ProgramFacts program;
    program.word = word;
    const std::string search = environment.get("PATH").value_or("");
    const std::string file = find_in_path(word, search);
    if (file.empty() || !exists(file)) {
        return program;
    }
    program.file = file;
    const ElfFile elf = read_elf(file);
    program.executable = is_file(file) && ::access(file.c_str(), X_OK) == 0;
    switch (elf.kind) {
        case ElfFile::Kind::Unreadable:
            break;
        case ElfFile::Kind::Other:
            program.executable = program.executable && is_text(file);
            break;
        case ElfFile::Kind::Script:
            program.missing_interpreter =
                exists(elf.interpreter) ? missing_behind_env(file, search) : elf.interpreter;
            if (program.missing_interpreter.empty()) {
                program.missing_interpreter = argument_with_cr(file, elf.interpreter);
            }
            break;
        case ElfFile::Kind::Elf:
            read_elf_program(program, elf, environment);
            break;
    }
    return program;
}

}  // namespace deft::tools::doctor
