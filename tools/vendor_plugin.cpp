// SPDX-License-Identifier: Apache-2.0
#include "tools/vendor_plugin.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/elf_file.h"
#include "tools/library.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDefaultPlugin = "libnccl-net.so";  // NCCL's, where nothing is named

// The file, if NCCL in this job could load it and it is not deft.
bool loadable(const std::string& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error || real.filename().string().starts_with(kLibraryName)) {
        return false;
    }
    const ElfFile elf = read_elf(path);
    return elf.kind == ElfFile::Kind::Elf && elf.this_machine && elf.dynamic_object;
}

}  // namespace

std::vector<std::string> cached_paths(std::string_view cache, std::string_view name) {
    // dl-cache.h: a header of 48 bytes, entries of 24, then strings; offsets count from the header,
    // before which an older form may stand.
    constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
    constexpr std::size_t kHeader = 48;
    constexpr std::size_t kEntry = 24;
    std::vector<std::string> paths;
    const std::size_t start = cache.find(kMagic);
    if (start == cache.npos || cache.size() - start < kHeader) {
        return paths;
    }
    cache.remove_prefix(start);
    const auto word = [&](std::size_t at) {
        std::uint32_t value = 0;
        std::memcpy(&value, cache.data() + at, sizeof value);
        return static_cast<std::size_t>(value);
    };
    const auto text = [&](std::size_t at) {
        const std::string_view rest = at < cache.size() ? cache.substr(at) : std::string_view();
        return rest.substr(0, rest.find('\0'));
    };
    const std::size_t count = word(kMagic.size());
    for (std::size_t i = 0; i < count && kHeader + (i + 1) * kEntry <= cache.size(); ++i) {
        const std::size_t entry = kHeader + i * kEntry;
        if (text(word(entry + 4)) == name) {
            paths.emplace_back(text(word(entry + 8)));
        }
    }
    return paths;
}

std::string vendor_plugin(const Environment& environment, std::string_view cache,
                          const std::vector<std::string>& folders) {
    std::vector<std::string> paths;
    std::string list = environment.get("LD_LIBRARY_PATH").value_or("");
    while (!list.empty()) {
        const auto end = list.find_first_of(":;");
        const std::string folder = list.substr(0, end);
        paths.push_back((folder.empty() ? "." : folder) + "/" + std::string(kDefaultPlugin));
        list.erase(0, end == list.npos ? end : end + 1);
    }
    for (std::string& path : cached_paths(cache, kDefaultPlugin)) {
        paths.push_back(std::move(path));
    }
    for (const std::string& folder : folders) {
        paths.push_back(folder + "/" + std::string(kDefaultPlugin));
    }
    for (const std::string& path : paths) {
        if (loadable(path)) {
            return path;
        }
    }
    return {};
}

std::string vendor_plugin(const Environment& environment) {
    std::ifstream file("/etc/ld.so.cache", std::ios::binary);
    std::stringstream cache;
    cache << file.rdbuf();
    return vendor_plugin(environment, cache.str(), {"/lib64", "/usr/lib64", "/lib", "/usr/lib"});
}

}  // namespace deft::tools
