// SPDX-License-Identifier: Apache-2.0
#include "tools/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

#include "tools/elf_file.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

// Whoever maps such a file gets SIGBUS: nothing can be asked of it.
constexpr const char* kCutOff = "cut off: the file is shorter than its headers say";

// In LD_PRELOAD, to the loader.
constexpr const char* kSpecial = ":;$ \t\n";

std::string own_executable() {
    std::error_code error;
    return fs::read_symlink("/proc/self/exe", error).string();
}

// Empty, or why the file cannot be preloaded into a process of this machine.
std::string unusable(const std::string& path) {
    const ElfFile elf = read_elf(path);
    switch (elf.kind) {
        case ElfFile::Kind::Unreadable:
            return elf.error;
        case ElfFile::Kind::Other:
        case ElfFile::Kind::Script:
            return "not a shared library";
        case ElfFile::Kind::Elf:
            break;
    }
    if (!elf.this_machine) {
        return "built for another machine";
    }
    if (elf.cut_off) {
        return kCutOff;
    }
    // A program, which for the loader may be a shared object too, names the loader it needs.
    return elf.dynamic_object && !elf.needs_loader ? "" : "not a shared library";
}

// A folder only this user can write to, for the symbolic link; made if absent.
std::string private_folder(std::string& error) {
    std::string path = fmt::format("/tmp/deft-{}", ::getuid());
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
        return path;
    }
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != ::getuid() || (status.st_mode & 022) != 0) {
        error = fmt::format("{} is not a folder that only this user can write to; remove it", path);
    }
    return path;
}

// A name for `path` without the characters the loader treats specially.
std::string plain_name(const std::string& path, std::string& error) {
    const std::string folder = private_folder(error);
    if (!error.empty()) {
        return {};
    }
    const std::string subfolder = fmt::format("{}/{:016x}", folder, std::hash<std::string>{}(path));
    if (::mkdir(subfolder.c_str(), 0700) != 0 && errno != EEXIST) {
        error = fmt::format("cannot make {}: {}", subfolder, std::strerror(errno));
        return {};
    }
    // Under its own name: the guest looks for the library next to itself.
    const std::string name = fs::path(path).filename().string();
    const bool plain = name.find_first_of(kSpecial) == name.npos;
    std::string link = fmt::format("{}/{}", subfolder, plain ? name : kLibraryName);
    std::error_code ignored;
    if (fs::read_symlink(link, ignored) == path) {
        return link;
    }
    // Made aside and renamed: ranks start at the same time.
    const std::string fresh = fmt::format("{}.{}", link, ::getpid());
    ::unlink(fresh.c_str());
    if (::symlink(path.c_str(), fresh.c_str()) != 0 || ::rename(fresh.c_str(), link.c_str()) != 0) {
        error = fmt::format("cannot make the link {}: {}", link, std::strerror(errno));
        return {};
    }
    return link;
}

bool preloaded_already(std::string_view list, std::string_view entry) {
    while (!list.empty()) {
        const auto end = list.find_first_of(" :");
        if (list.substr(0, end) == entry) {
            return true;
        }
        list = end == list.npos ? std::string_view() : list.substr(end + 1);
    }
    return false;
}

// True if the list names one library by its absolute path, and that is none of deft's.
bool is_another(const std::string& list) {
    return list.starts_with('/') && list.find_first_of(" \t\n:;$") == list.npos &&
           !list.ends_with(kLibraryName) && !list.ends_with(kGuestName);
}

// A name for `path` such that "NAME:/OTHER" names the file /OTHER too: next to NAME there is a
// folder "NAME:", a link to the root. Empty if it cannot be made.
std::string name_before_another(const std::string& path) {
    std::string error;
    std::string name = plain_name(path, error);
    if (!error.empty()) {
        return {};
    }
    const std::string folder = name + ":";
    std::error_code ignored;
    if (::symlink("/", folder.c_str()) != 0 && fs::read_symlink(folder, ignored) != "/") {
        return {};
    }
    return name;
}

// The first of the places, named from the folder of this command, that has the file.
std::string folder_of(const char* file, std::initializer_list<const char*> places) {
    const fs::path folder = fs::path(own_executable()).parent_path();
    for (const char* place : places) {
        const fs::path path = (folder / place).lexically_normal();
        std::error_code ignored;
        if (fs::exists(path / file, ignored)) {
            return path.string();
        }
    }
    return {};
}

}  // namespace

Library find_library(const std::string& wanted) {
    return find_library(wanted, own_executable());
}

Library find_library(const std::string& wanted, const std::string& executable) {
    std::error_code ignored;
    if (!wanted.empty()) {
        const std::string path = fs::absolute(wanted, ignored).lexically_normal().string();
        const std::string why = unusable(path);
        return why.empty() ? Library{path, ""}
                           : Library{"", fmt::format("--library {}: {}; name the {} to preload",
                                                     wanted, why, kLibraryName)};
    }
    const fs::path folder = fs::path(executable).parent_path();
    std::string found_but;
    for (const char* place : {DEFT_LIBDIR_FROM_BINDIR, "../lib", "../lib64", "../packaging"}) {
        const std::string path = (folder / place / kLibraryName).lexically_normal().string();
        const std::string why = unusable(path);
        if (why.empty()) {
            return {path, ""};
        }
        if (found_but.empty() && fs::exists(path, ignored)) {
            found_but =
                fmt::format("{}: {}; reinstall it, or name another with --library", path, why);
        }
    }
    if (!found_but.empty()) {
        return {"", found_but};
    }
    return {"", fmt::format("{} is neither in {} nor in the build tree beside {}; name it with "
                            "--library PATH",
                            kLibraryName,
                            (folder / DEFT_LIBDIR_FROM_BINDIR).lexically_normal().string(),
                            executable)};
}

std::string find_companion() {
    return folder_of("sitecustomize.py",
                     {DEFT_DATADIR_FROM_BINDIR "/deft/companion", "../companion"});
}

std::string find_python_module() {
    return folder_of("deft.py", {DEFT_DATADIR_FROM_BINDIR "/deft/python", "python"});
}

std::string library_version(const std::string& path) {
    if (read_elf(path).cut_off) {
        return fmt::format("{}: {}", kNotLoaded, kCutOff);
    }
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        return fmt::format("{}: {}", kNotLoaded, ::dlerror());
    }
    using VersionFunction = const char* (*)();
    const auto version = reinterpret_cast<VersionFunction>(::dlsym(handle, "deft_version"));
    return version != nullptr ? version() : "unknown version (no deft_version in it)";
}

std::string add_preload(Environment& environment, const std::string& path, bool here) {
    std::string entry = path;
    if (path.find_first_of(kSpecial) != path.npos) {
        const fs::path file(path);
        const std::string name = file.filename().string();
        const bool has_name =
            path.find_first_of(":;$") == path.npos && name.find_first_of(kSpecial) == name.npos;
        std::string error;
        if (here || !has_name) {
            entry = plain_name(path, error);
        }
        if (!error.empty() && !has_name) {
            return fmt::format(
                "the loader cannot preload {} because of the blank, ':', ';' or '$' in its path, "
                "and no link to it can be made: {}; install deft in a folder without these",
                path, error);
        }
        if ((!here && has_name) || !error.empty()) {
            entry = name;
            const std::string search = environment.get("LD_LIBRARY_PATH").value_or("");
            const std::string folder = file.parent_path().string();
            environment.set("LD_LIBRARY_PATH", search.empty() ? folder : folder + ":" + search);
        }
    }
    const std::string others = environment.get("LD_PRELOAD").value_or("");
    if (here && is_another(others) && entry.starts_with('/')) {
        const std::string name = name_before_another(path);
        entry = name.empty() ? entry : name;
    }
    if (!preloaded_already(others, entry)) {
        environment.set("LD_PRELOAD", others.empty() ? entry : entry + ":" + others);
    }
    return {};
}

}  // namespace deft::tools
