// SPDX-License-Identifier: Apache-2.0
#include "tools/loader_search.h"

#include <sys/stat.h>
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tools/elf_file.h"
#include "tools/vendor_plugin.h"

namespace deft::tools {
namespace {

std::string read_cache() {
    std::ifstream file("/etc/ld.so.cache", std::ios::binary);
    std::stringstream cache;
    cache << file.rdbuf();
    return cache.str();
}

std::string folder_of(const std::string& path) {
    const auto slash = path.rfind('/');
    return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool loadable(const std::string& path) {
    const ElfFile elf = read_elf(path);
    return elf.kind == ElfFile::Kind::Elf && elf.this_machine && elf.dynamic_object;
}

// No ELF file, or not as much as its header. One of another machine is passed over.
bool ends_the_search(const std::string& path) {
    const ElfFile elf = read_elf(path);
    return elf.kind == ElfFile::Kind::Other || elf.kind == ElfFile::Kind::Script;
}

std::string expand_origin(std::string folder, const std::string& origin) {
    for (const char* const name : {"${ORIGIN}", "$ORIGIN"}) {
        const std::string_view what = name;
        for (auto at = folder.find(what); at != folder.npos; at = folder.find(what)) {
            folder.replace(at, what.size(), origin);
        }
    }
    return folder;
}

// The first folder of a list that has the library; empty: none, or what is `broken`.
std::string in_list(const std::string& list, const std::string& name, const std::string& origin,
                    std::string& broken) {
    for (std::size_t start = 0; !list.empty() && start <= list.size();) {
        const auto end = std::min(list.find_first_of(":;", start), list.size());
        std::string folder = expand_origin(list.substr(start, end - start), origin);
        std::string path = (folder.empty() ? "." : folder) + "/" + name;
        if (loadable(path)) {
            return path;
        }
        if (ends_the_search(path)) {
            broken = path;
            return {};
        }
        start = end + 1;
    }
    return {};
}

}  // namespace

LoaderSearch::LoaderSearch(const Environment& environment)
    : LoaderSearch(
          environment, read_cache(),
          {"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu",
           "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}) {}

LoaderSearch::LoaderSearch(const Environment& environment, std::string cache,
                           std::vector<std::string> folders)
    : search_path_(environment.get("LD_LIBRARY_PATH").value_or("")),
      cache_(std::move(cache)),
      folders_(std::move(folders)) {}

LoaderSearch::Found LoaderSearch::find(const std::string& name, const ElfDynamic& asker,
                                       const std::string& asker_path) const {
    if (name.find('/') != name.npos) {
        return {loadable(name) ? name : "", "its path"};
    }
    const std::string origin = folder_of(asker_path);
    std::string broken;
    const auto reached = [&](const std::string& path) { return !path.empty() || !broken.empty(); };
    // An RPATH counts only where there is no RUNPATH, and then before the variable.
    if (asker.runpath.empty()) {
        if (std::string path = in_list(asker.rpath, name, origin, broken); reached(path)) {
            return {path, "RPATH of " + asker_path, broken};
        }
    }
    if (std::string path = in_list(search_path_, name, origin, broken); reached(path)) {
        return {path, "LD_LIBRARY_PATH", broken};
    }
    if (std::string path = in_list(asker.runpath, name, origin, broken); reached(path)) {
        return {path, "RUNPATH of " + asker_path, broken};
    }
    for (const std::string& path : cached_paths(cache_, name)) {
        if (loadable(path)) {
            return {path, "the loader's cache"};
        }
    }
    for (const std::string& folder : folders_) {
        if (const std::string path = folder + "/" + name; loadable(path)) {
            return {path, folder};
        }
    }
    return {};
}

LoaderSearch::Closure LoaderSearch::closure(const std::string& path) const {
    constexpr std::size_t kMost = 1024;
    Closure closure;
    closure.objects.push_back({path, read_elf_dynamic(path, false), "the program itself"});
    std::set<std::string> seen;
    for (std::size_t i = 0; i < closure.objects.size() && i < kMost; ++i) {
        const Object asker = closure.objects[i];  // the list grows
        for (const std::string& name : asker.elf.needed) {
            if (!seen.insert(name).second) {
                continue;
            }
            const Found found = find(name, asker.elf, asker.path);
            if (!found.broken.empty()) {
                closure.broken.push_back(found.broken);
            } else if (found.path.empty()) {
                closure.missing.push_back(name);
            } else {
                closure.objects.push_back(
                    {found.path, read_elf_dynamic(found.path, false), found.by});
            }
        }
    }
    return closure;
}

}  // namespace deft::tools
