// SPDX-License-Identifier: Apache-2.0
#include "tools/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/unique_fd.h"

namespace deft::tools {
namespace {

constexpr int kThisMachine =
#if defined(__x86_64__)
    EM_X86_64;
#elif defined(__aarch64__)
    EM_AARCH64;
#else
    EM_NONE;
#endif

template <typename T>
bool read_at(int fd, std::uint64_t offset, T& value) {
    return ::pread(fd, &value, sizeof(value), static_cast<off_t>(offset)) == sizeof(value);
}

std::string script_interpreter(int fd) {
    char line[256] = "";
    const ssize_t size = ::pread(fd, line, sizeof(line) - 1, 2);
    std::string text(line, size > 0 ? static_cast<std::size_t>(size) : 0);
    text = text.substr(0, text.find('\n'));
    const auto first = text.find_first_not_of(" \t");
    if (first == text.npos) {
        return {};
    }
    // A CR belongs to the name: the kernel looks for "/bin/bash\r".
    return text.substr(first, text.find_first_of(" \t", first) - first);
}

std::string text_at(int fd, std::uint64_t offset, std::uint64_t size) {
    constexpr std::uint64_t kLongest = 4096;  // PATH_MAX
    std::string text(std::min(size, kLongest), '\0');
    if (::pread(fd, text.data(), text.size(), static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(text.size())) {
        return {};
    }
    return text.substr(0, text.find('\0'));
}

}  // namespace

ElfFile read_elf(const std::string& path) {
    ElfFile file;
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
        file.error = std::strerror(errno);
        return file;
    }
    if (!S_ISREG(status.st_mode)) {
        file.error = "not a regular file";
        return file;
    }
    Elf64_Ehdr header{};
    unsigned char start[2] = {};
    if (!read_at(fd.get(), 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        file.kind = ElfFile::Kind::Other;
        if (read_at(fd.get(), 0, start) && start[0] == '#' && start[1] == '!') {
            file.kind = ElfFile::Kind::Script;
            file.interpreter = script_interpreter(fd.get());
        }
        return file;
    }
    file.kind = ElfFile::Kind::Elf;
    file.this_machine = header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == kThisMachine;
    if (!file.this_machine) {
        return file;
    }
    file.dynamic_object = header.e_type == ET_DYN;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        if (!read_at(fd.get(), header.e_phoff + std::uint64_t{i} * sizeof(segment), segment)) {
            break;
        }
        const auto size = static_cast<std::uint64_t>(status.st_size);
        if (segment.p_type == PT_LOAD &&
            (segment.p_offset > size || size - segment.p_offset < segment.p_filesz)) {
            file.cut_off = true;
        }
        if (segment.p_type == PT_INTERP) {
            file.needs_loader = true;
            file.interpreter = text_at(fd.get(), segment.p_offset, segment.p_filesz);
        }
    }
    return file;
}

std::string c_library_of_loader(const std::string& path) {
    constexpr std::size_t kMostRead = std::size_t{8} << 20;
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return {};
    }
    std::string content(std::min(static_cast<std::size_t>(status.st_size), kMostRead), '\0');
    const ssize_t size = ::pread(fd.get(), content.data(), content.size(), 0);
    content.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    // A version that glibc's parts, and nobody else's, give to what they share.
    if (content.find("GLIBC_PRIVATE") != content.npos) {
        return "glibc";
    }
    return content.find("musl libc") != content.npos ? "musl" : "another C library";
}

std::string find_in_path(const std::string& command, const std::string& path) {
    if (command.find('/') != command.npos) {
        return command;
    }
    for (std::size_t start = 0; start <= path.size();) {
        const auto colon = std::min(path.find(':', start), path.size());
        const std::string folder = path.substr(start, colon - start);
        std::string file = (folder.empty() ? "." : folder) + "/" + command;
        struct stat status {};
        if (::access(file.c_str(), X_OK) == 0 && ::stat(file.c_str(), &status) == 0 &&
            S_ISREG(status.st_mode)) {
            return file;
        }
        start = colon + 1;
    }
    return {};
}

}  // namespace deft::tools
