// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/process_facts.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include "base/unique_fd.h"
#include "tools/doctor/nccl_search.h"
#include "tools/elf_dynamic.h"
#include "tools/elf_file.h"
#include "tools/foreign.h"

namespace deft::tools::doctor {
namespace {

namespace fs = std::filesystem;

std::string folder(int pid) {
    return fmt::format("/proc/{}", pid);
}

std::string read_all(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::vector<std::string> split_zeros(const std::string& text) {
    std::vector<std::string> parts;
    for (std::size_t start = 0; start < text.size();) {
        const auto end = std::min(text.find('\0', start), text.size());
        parts.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    return parts;
}

// State and parent of /proc/PID/stat; the name before them may hold anything.
bool read_stat(int pid, char& state, int& parent) {
    const std::string text = read_all(folder(pid) + "/stat");
    const auto name_end = text.rfind(')');
    if (name_end == text.npos) {
        return false;
    }
    std::istringstream rest(text.substr(name_end + 1));
    return static_cast<bool>(rest >> state >> parent);
}

std::vector<int> all_pids() {
    std::vector<int> pids;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
        const std::string name = entry.path().filename().string();
        if (!name.empty() && name.find_first_not_of("0123456789") == name.npos) {
            pids.push_back(std::atoi(name.c_str()));
        }
    }
    std::sort(pids.begin(), pids.end());
    return pids;
}

std::vector<int> with_descendants(int pid) {
    constexpr std::size_t kMost = 512;
    std::multimap<int, int> children;
    for (const int each : all_pids()) {
        char state = 0;
        int parent = 0;
        if (read_stat(each, state, parent)) {
            children.emplace(parent, each);
        }
    }
    std::vector<int> found = {pid};
    for (std::size_t i = 0; i < found.size() && found.size() < kMost; ++i) {
        const auto [first, last] = children.equal_range(found[i]);
        for (auto child = first; child != last; ++child) {
            found.push_back(child->second);
        }
    }
    return found;
}

std::string name_of(int pid) {
    std::string name = read_all(folder(pid) + "/comm");
    while (!name.empty() && name.back() == '\n') {
        name.pop_back();
    }
    return name;
}

bool raised(int pid) {
    const std::string vector = read_all(folder(pid) + "/auxv");
    for (std::size_t at = 0; at + sizeof(Elf64_auxv_t) <= vector.size();
         at += sizeof(Elf64_auxv_t)) {
        Elf64_auxv_t entry;
        std::memcpy(&entry, vector.data() + at, sizeof entry);
        if (entry.a_type == AT_SECURE) {
            return entry.a_un.a_val != 0;
        }
    }
    return false;
}

// Files that are mapped, each once, as the process names them.
std::vector<std::string> mapped_files(int pid) {
    std::vector<std::string> files;
    std::set<std::string> seen;
    std::ifstream maps(folder(pid) + "/maps");
    for (std::string line; std::getline(maps, line);) {
        const auto path = line.find('/');
        if (path != line.npos && seen.insert(line.substr(path)).second) {
            files.push_back(line.substr(path));
        }
    }
    return files;
}

bool of_system(const std::string& path) {
    return path.starts_with("/lib") || path.starts_with("/usr/lib");
}

void read_mapped(int pid, ProcessFacts& facts, std::vector<std::string>& started) {
    constexpr std::string_view kDeleted = " (deleted)";
    for (const std::string& entry : mapped_files(pid)) {
        const bool deleted = entry.ends_with(kDeleted);
        const std::string path = entry.substr(0, entry.size() - (deleted ? kDeleted.size() : 0));
        const std::string name = fs::path(path).filename().string();
        // As the process sees it: it may live in a container.
        const std::string here = folder(pid) + "/root" + path;
        if (name.starts_with("libnccl-net-deft")) {
            facts.library = path;
            facts.library_deleted = deleted;
        } else if (name.starts_with("libdeft-preload")) {
            facts.guest = true;
        } else if (name.starts_with("libnccl-net")) {
            facts.other_plugins.push_back(path);
        } else if (name.starts_with("nccl-") && path.starts_with("/dev/shm/")) {
            facts.communicates = true;
        } else if (name.find(".so") != name.npos &&
                   (name.starts_with("libnccl.so") || !of_system(path)) &&
                   read_elf_dynamic(here, false).exports_nccl) {
            NcclCopy copy = read_nccl_file(here, "its memory map", started);
            copy.path = path;
            copy.is_static = !name.starts_with("libnccl.so");
            facts.nccl.push_back(std::move(copy));
        }
    }
}

void read_program_of(int pid, ProcessFacts& facts, std::vector<std::string>& started) {
    const std::string exe = folder(pid) + "/exe";
    const ElfFile elf = read_elf(exe);
    facts.is_static = elf.kind == ElfFile::Kind::Elf && elf.this_machine && !elf.needs_loader;
    if (elf.needs_loader) {
        facts.c_library = c_library_of_loader(folder(pid) + "/root" + elf.interpreter);
    }
    const ElfDynamic dynamic = read_elf_dynamic(exe, true);
    if (dynamic.holds_nccl) {
        NcclCopy copy = read_nccl_file(exe, "the program itself", started);
        std::error_code error;
        const fs::path path = fs::read_symlink(exe, error);
        copy.path = error ? exe : path.string();
        copy.is_static = true;
        facts.nccl.push_back(std::move(copy));
    }
}

void read_threads(int pid, ProcessFacts& facts) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder(pid) + "/task", ignored)) {
        const std::string name = read_all(entry.path().string() + "/comm");
        if (name.starts_with("deft-observe") || name.starts_with("deft-agree")) {
            facts.hooks_active = true;
        } else if (name.starts_with("deft-care") || name.starts_with("deft-io")) {
            facts.plugin_active = true;
        } else if (name.starts_with("NCCL ")) {
            facts.communicates = true;
        }
    }
    if (facts.plugin_active) {
        facts.communicates = true;
    }
}

ProcessFacts read_process(int pid, std::vector<std::string>& started) {
    ProcessFacts facts;
    facts.pid = pid;
    int parent = 0;
    if (!read_stat(pid, facts.state, parent)) {
        facts.missing = true;
        return facts;
    }
    facts.name = name_of(pid);
    const UniqueFd maps(::open((folder(pid) + "/maps").c_str(), O_RDONLY | O_CLOEXEC));
    char byte = 0;
    if (!maps || ::read(maps.get(), &byte, 1) < 0) {
        facts.problem = std::strerror(errno);
        return facts;
    }
    facts.preload = environment_of(pid).get("LD_PRELOAD");
    facts.parent = fmt::format("process {} ({})", parent, name_of(parent));
    facts.parent_preload = environment_of(parent).get("LD_PRELOAD");
    facts.raised = raised(pid);
    read_program_of(pid, facts, started);
    read_mapped(pid, facts, started);
    read_threads(pid, facts);
    return facts;
}

}  // namespace

std::vector<ProcessFacts> read_processes(int pid, std::vector<std::string>& started) {
    std::vector<ProcessFacts> processes;
    for (const int each : with_descendants(pid)) {
        looking_at(fmt::format("process {}", each));
        ProcessFacts facts = read_process(each, started);
        if (each == pid || !facts.missing) {
            processes.push_back(std::move(facts));
        }
    }
    return processes;
}

int speaker(const std::vector<ProcessFacts>& processes) {
    for (const ProcessFacts& each : processes) {
        if (!each.nccl.empty()) {
            return each.pid;
        }
    }
    const bool readable =
        !processes.empty() && !processes.front().missing && processes.front().problem.empty();
    return readable ? processes.front().pid : 0;
}

Environment environment_of(int pid) {
    const std::vector<std::string> parts = split_zeros(read_all(folder(pid) + "/environ"));
    std::vector<const char*> entries;
    for (const std::string& part : parts) {
        entries.push_back(part.c_str());
    }
    entries.push_back(nullptr);
    return Environment(entries.data());
}

std::vector<std::string> words_of(int pid) {
    return split_zeros(read_all(folder(pid) + "/cmdline"));
}

bool enter_network(int pid) {
    std::error_code ignored;
    const fs::path theirs = fs::read_symlink(folder(pid) + "/ns/net", ignored);
    const fs::path ours = fs::read_symlink("/proc/self/ns/net", ignored);
    if (theirs == ours) {
        return true;
    }
    const UniqueFd fd(::open((folder(pid) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    return fd && ::setns(fd.get(), CLONE_NEWNET) == 0;
}

}  // namespace deft::tools::doctor
