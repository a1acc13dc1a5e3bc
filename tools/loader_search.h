// SPDX-License-Identifier: Apache-2.0
// Where the dynamic loader finds a library (ld.so(8)), without starting anything.
#pragma once

#include <string>
#include <vector>

#include "tools/elf_dynamic.h"
#include "tools/environment.h"

namespace deft::tools {

class LoaderSearch {
public:
    // Of a process with this environment; reads the loader's cache of this host.
    explicit LoaderSearch(const Environment& environment);
    // The same with what decides, for tests.
    LoaderSearch(const Environment& environment, std::string cache,
                 std::vector<std::string> folders);

    struct Found {
        std::string path;  // empty: not found
        std::string by;    // "LD_LIBRARY_PATH", "RUNPATH of ./train", "the loader's cache"
        // A file of that name that is no library: the loader ends the program there, rather than
        // look further.
        std::string broken = {};
    };
    // `asker` and its file: who needs the library.
    Found find(const std::string& name, const ElfDynamic& asker,
               const std::string& asker_path) const;
    Found find(const std::string& name) const { return find(name, {}, ""); }

    // A file and all libraries that the loader brings with it, in the order in which it searches
    // them for symbols.
    struct Object {
        std::string path;
        ElfDynamic elf;
        std::string by;
    };
    struct Closure {
        std::vector<Object> objects;
        std::vector<std::string> missing;  // names that are not found
        std::vector<std::string> broken;   // Found::broken of each
    };
    Closure closure(const std::string& path) const;

private:
    std::string search_path_;
    std::string cache_;
    std::vector<std::string> folders_;
};

}  // namespace deft::tools
