// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/preload_facts.h"

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/build_version.h"
#include "tools/library.h"
#include "tools/loader_search.h"
#include "tools/vendor_plugin.h"
#include "topology/nccl_settings.h"

namespace deft::tools::doctor {
namespace {

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::vector<std::string> split(const std::string& list, const char* separators) {
    std::vector<std::string> parts;
    for (std::size_t start = 0; start < list.size();) {
        const auto end = std::min(list.find_first_of(separators, start), list.size());
        if (end > start) {
            parts.push_back(list.substr(start, end - start));
        }
        start = end + 1;
    }
    return parts;
}

// Deft's own name for what lies in this folder; empty: it is none, or holds nothing of deft's.
std::string_view held_by(const std::string& folder) {
    for (const std::string_view file : {kLibraryName, kGuestName}) {
        const std::string path = folder + "/" + std::string(file);
        if (::access(path.c_str(), F_OK) == 0) {
            return file;
        }
    }
    return {};
}

PreloadEntry read_entry(const std::string& name, const char* from, const LoaderSearch& loader) {
    PreloadEntry entry;
    entry.name = name;
    entry.from = from;
    if (const std::string_view file = held_by(name); !file.empty()) {
        entry.library = true;
        entry.problem = "it is a folder; name the file in it, " + std::string(file);
        return entry;
    }
    entry.library = name.find("libnccl-net-deft") != name.npos;
    entry.guest = name.find("libdeft-preload") != name.npos;
    entry.ucx_module = name.find("libdeft-ucx") != name.npos;
    if (!entry.library && !entry.guest) {
        const std::string path = loader.find(name).path;
        const bool nccl = path.substr(path.rfind('/') + 1).starts_with("libnccl.so");
        entry.hooks_nccl = !nccl && read_elf_dynamic(path, false).exports_nccl;
        return entry;
    }
    entry.path = loader.find(name).path;
    if (entry.path.empty()) {
        const bool there = ::access(name.c_str(), F_OK) == 0;
        if (there) {
            entry.path = name;
        }
        entry.problem = !there                              ? "no such file"
                        : ::access(name.c_str(), R_OK) != 0 ? "it cannot be read"
                                                            : "not a library of this machine";
        return entry;
    }
    const std::string folder = entry.path.substr(0, entry.path.rfind('/') + 1);
    const std::string opened = entry.library ? entry.path : folder + std::string(kLibraryName);
    if (::access(opened.c_str(), R_OK) == 0) {
        entry.version = library_version(opened);
        if (entry.version.starts_with(kNotLoaded)) {
            entry.problem = std::exchange(entry.version, "");
        }
    }
    return entry;
}

// The whole variable, or the part from the last '/...' on, is a path of deft's with characters at
// which the loader splits it.
std::string split_path(const std::string& list) {
    for (const std::string_view name : {kLibraryName, kGuestName}) {
        const auto at = list.find(name);
        if (at == list.npos) {
            continue;
        }
        std::string path = list.substr(0, at + name.size());
        const bool special = path.find_first_of(" :;$") != path.npos;
        if (special && ::access(path.c_str(), F_OK) == 0) {
            return path;
        }
    }
    return {};
}

std::map<std::string, NcclValue> nccl_settings(const Job& job) {
    std::map<std::string, NcclValue> settings;
    const auto add_text = [&](const std::string& path) {
        std::istringstream text(read_file(path));
        for (std::string line; std::getline(text, line);) {
            const auto equals = line.find('=');
            if (!line.starts_with('#') && equals != line.npos) {
                const std::string name = line.substr(0, equals);
                const std::string value = nccl_setting_in(line, name).value_or("");
                settings.try_emplace(name, NcclValue{value, path});
            }
        }
    };
    for (const char* entry : job.environment.entries()) {
        const std::string_view pair(entry);
        const std::string name(pair.substr(0, pair.find('=')));
        if (!name.starts_with("NCCL_")) {
            continue;
        }
        const auto origin = job.origins.find(name);
        settings[name] = {job.environment.get(name).value_or(""),
                          origin == job.origins.end() ? "environment" : origin->second};
    }
    const std::string named = job.environment.get("NCCL_CONF_FILE").value_or("");
    const std::string home = job.environment.get("HOME").value_or("");
    add_text(!named.empty() ? named : home + "/.nccl.conf");
    add_text("/etc/nccl.conf");
    return settings;
}

}  // namespace

PreloadFacts read_preload(const Job& job) {
    PreloadFacts facts;
    const LoaderSearch loader(job.environment);
    const std::string list = job.environment.get("LD_PRELOAD").value_or("");
    facts.split_path = split_path(list);
    if (facts.split_path.empty()) {
        for (const std::string& name : split(list, " :")) {
            facts.entries.push_back(read_entry(name, "LD_PRELOAD", loader));
        }
    }
    for (const std::string& name : split(read_file("/etc/ld.so.preload"), " :\t\n")) {
        facts.entries.push_back(read_entry(name, "/etc/ld.so.preload", loader));
    }
    facts.command_version = build_version();
    const Library library = find_library(job.library);
    facts.library = library.path;
    facts.library_problem = library.error;
    if (!library.path.empty()) {
        facts.library_version = library_version(library.path);
    }
    const PreloadEntry* const ours = facts.ours();
    const std::string& preloaded = ours == nullptr ? facts.library : ours->path;
    facts.glibc_needed = read_elf_dynamic(preloaded, false).glibc_needed;
    return facts;
}

PluginFacts read_plugin(const Job& job) {
    PluginFacts facts;
    facts.settings = nccl_settings(job);
    facts.replace_vendor = job.replace_vendor;
    facts.vendor = vendor_plugin(job.environment);
    facts.findable = !LoaderSearch(job.environment).find(std::string(kLibraryName)).path.empty();
    if (const NcclValue* const named = facts.setting("NCCL_NET_PLUGIN")) {
        for (const std::string& name : split(named->value, ",")) {
            if (name.find('/') != name.npos && names_deft(name, false) &&
                ::access(name.c_str(), R_OK) != 0) {
                facts.named_path_exists = false;
            }
        }
    }
    return facts;
}

}  // namespace deft::tools::doctor
