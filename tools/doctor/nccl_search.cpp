// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/nccl_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "tools/foreign.h"
#include "tools/library.h"
#include "tools/loader_search.h"

namespace deft::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libnccl.so.2";

bool is_file(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
}

std::string real(const std::string& path) {
    std::error_code error;
    const fs::path found = fs::canonical(path, error);
    return error ? path : found.string();
}

// ncclGetVersion's answer, in a process of its own: the library's constructors are not ours.
int ask_library(const std::string& path, std::vector<std::string>& started) {
    started.push_back(fmt::format("ncclGetVersion() of {}, in a process of its own", path));
    const auto answer = answer_in_time(
        [&] {
            int version = 0;
            void* const handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
            using Function = int (*)(int*);
            const auto ask = handle == nullptr
                                 ? nullptr
                                 : reinterpret_cast<Function>(::dlsym(handle, "ncclGetVersion"));
            const bool told = ask != nullptr && ask(&version) == 0;
            return told ? std::to_string(version) : std::string();
        },
        kLoadLimit);
    if (!answer) {
        started.back() += ": no answer";
    }
    return std::atoi(answer.value_or("").c_str());
}

// "/opt/venv" of "/opt/venv/bin/python".
fs::path prefix_of(const std::string& interpreter) {
    return fs::path(interpreter).parent_path().parent_path();
}

// Of "python3.11" "python3.11"; of another name empty.
std::string versioned_name(const std::string& interpreter) {
    const std::string name = fs::path(real(interpreter)).filename().string();
    return name.find('.') == name.npos ? "" : name;
}

void add_packages(const fs::path& lib, const std::string& version,
                  std::vector<std::string>& folders) {
    std::error_code ignored;
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(lib, ignored)) {
        const std::string name = entry.path().filename().string();
        const bool fits = version.empty() ? name.starts_with("python3") : name == version;
        if (!fits && name != "python3") {
            continue;
        }
        for (const char* packages : {"site-packages", "dist-packages"}) {
            if (fs::is_directory(entry.path() / packages, ignored)) {
                found.push_back((entry.path() / packages).string());
            }
        }
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    folders.insert(folders.end(), found.begin(), found.end());
}

// NCCL is linked into it, and no symbol says so.
bool holds_hidden_nccl(const LoaderSearch::Object& object) {
    const bool system = object.path.starts_with("/lib") || object.path.starts_with("/usr/lib");
    return !system && !object.elf.imports_nccl && read_elf_dynamic(object.path, true).holds_nccl;
}

class Search {
public:
    Search(const Job& job, std::vector<std::string>& started)
        : job_(job), started_(started), loader_(job.environment) {}

    NcclFacts run() {
        look_override();
        look_preloads();
        for (const ProgramFacts& program : job_.command.programs) {
            if (program.elf && program.this_machine) {
                look_closure(program.file);
            }
        }
        look_vllm();
        const bool python = !job_.python.empty() || job_.command.words.empty();
        if (python) {
            look_python();
        }
        look_by_name();
        return std::move(facts_);
    }

private:
    const Job& job_;
    std::vector<std::string>& started_;
    LoaderSearch loader_;
    NcclFacts facts_;

    void add(const std::string& path, const std::string& by) {
        const std::string file = real(path);
        for (const NcclCopy& copy : facts_.copies) {
            if (real(copy.path) == file) {
                return;
            }
        }
        facts_.copies.push_back(read_nccl_file(path, by, started_));
    }

    void look_override() {
        const std::string path = job_.environment.get("DEFT_NCCL_LIB").value_or("");
        if (path.empty()) {
            return;
        }
        const std::string file = loader_.find(path).path;
        if (file.empty() || !read_elf_dynamic(file, false).exports_nccl) {
            facts_.override_problem = fmt::format(
                "DEFT_NCCL_LIB={}: {}", path,
                file.empty() ? "not a library that can be loaded" : "it has no ncclAllReduce");
            return;
        }
        add(file, "DEFT_NCCL_LIB");
    }

    void look_preloads() {
        std::string list = job_.environment.get("LD_PRELOAD").value_or("");
        std::replace(list.begin(), list.end(), ' ', ':');
        while (!list.empty()) {
            const auto end = list.find(':');
            const std::string path = loader_.find(list.substr(0, end)).path;
            const ElfDynamic elf = read_elf_dynamic(path, false);
            const bool named = fs::path(path).filename().string().starts_with("libnccl.so");
            if (named && elf.exports_nccl && !elf.is_deft) {
                add(path, "LD_PRELOAD");
            }
            list = end == list.npos ? "" : list.substr(end + 1);
        }
    }

    void look_closure(const std::string& path) {
        const LoaderSearch::Closure closure = loader_.closure(path);
        for (const LoaderSearch::Object& object : closure.objects) {
            const bool main = object.path == path;
            if (object.elf.is_deft) {
                continue;
            }
            if (object.elf.exports_nccl || holds_hidden_nccl(object)) {
                add(object.path, main ? "linked into it"
                                      : fmt::format("{} needs it; found by {}", path, object.by));
            }
            if (object.elf.imports_nccl) {
                facts_.needed = true;
            }
        }
        for (const std::string& file : closure.broken) {
            if (fs::path(file).filename().string().starts_with("libnccl.so")) {
                facts_.broken = file;
            }
        }
        for (const std::string& name : closure.missing) {
            if (name.starts_with("libnccl.so")) {
                facts_.needed = true;
            }
        }
    }

    void look_vllm() {
        const std::string path = job_.environment.get("VLLM_NCCL_SO_PATH").value_or("");
        const ElfDynamic elf = read_elf_dynamic(path, false);
        if (elf.exports_nccl && !elf.is_deft) {
            add(path, "VLLM_NCCL_SO_PATH");
        }
    }

    void look_python() {
        const std::string interpreter = job_.python.empty() ? "/usr/bin/python3" : job_.python;
        for (const std::string& folder : python_folders(interpreter, job_.environment)) {
            if (const std::string torch = folder + "/torch/lib/libtorch_cuda.so"; is_file(torch)) {
                look_closure(torch);
            }
            const std::string package = folder + "/nvidia/nccl/lib/" + kName;
            if (is_file(package)) {
                add(package, "Python's package nvidia-nccl");
            }
        }
    }

    // Folders of the variable behind the one that counts: whoever changes the order gets those.
    void look_behind(const LoaderSearch::Found& first) {
        std::string list = job_.environment.get("LD_LIBRARY_PATH").value_or("");
        while (first.by == "LD_LIBRARY_PATH" && !list.empty()) {
            const auto end = list.find_first_of(":;");
            const std::string path = list.substr(0, end) + "/" + kName;
            if (read_elf_dynamic(path, false).exports_nccl) {
                add(path, "LD_LIBRARY_PATH, further behind");
            }
            list = end == list.npos ? "" : list.substr(end + 1);
        }
    }

    // What the job would find at run time; where something is found already, only what the user
    // has put into its way.
    void look_by_name() {
        const LoaderSearch::Found found = loader_.find(kName);
        const bool relevant =
            facts_.copies.empty() ? !facts_.needed : found.by == "LD_LIBRARY_PATH";
        if (!found.path.empty() && relevant) {
            add(found.path, found.by);
        }
        // dlopen() ends there, too.
        if (!found.broken.empty() && facts_.copies.empty()) {
            facts_.broken = found.broken;
        }
        look_behind(found);
    }
};

}  // namespace

NcclFacts find_nccl(const Job& job, std::vector<std::string>& started) {
    return Search(job, started).run();
}

int nccl_version_in(const std::string& text) {
    const auto digit = [](char letter) { return letter >= '0' && letter <= '9'; };
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (!digit(text[at]) || (at > 0 && (digit(text[at - 1]) || text[at - 1] == '.') &&
                                 !text.substr(0, at).ends_with("so."))) {
            continue;
        }
        int part[3] = {0, 0, 0};
        int end = 0;
        if (std::sscanf(text.c_str() + at, "%3d.%3d.%3d%n", &part[0], &part[1], &part[2], &end) ==
                3 &&
            part[0] < 10 && part[1] < 100 && part[2] < 100) {
            return part[0] == 2 && part[1] <= 8 ? part[0] * 1000 + part[1] * 100 + part[2]
                                                : part[0] * 10000 + part[1] * 100 + part[2];
        }
    }
    return 0;
}

NcclCopy read_nccl_file(const std::string& path, const std::string& found_by,
                        std::vector<std::string>& started) {
    NcclCopy copy;
    copy.path = path;
    copy.found_by = found_by;
    const std::string name = fs::path(path).filename().string();
    copy.is_static = !name.starts_with("libnccl.so");
    const ElfDynamic elf = read_elf_dynamic(path, true);
    const auto cuda = elf.nccl_version.find("+cuda");
    if (cuda != std::string::npos) {
        copy.cuda = elf.nccl_version.substr(cuda + 5);
    }
    copy.version = nccl_version_in(elf.nccl_version);
    if (copy.version == 0) {
        const std::string file = fs::path(real(path)).filename().string();
        const auto so = file.find(".so.");
        copy.version = so == file.npos ? 0 : nccl_version_in(file.substr(so + 4));
    }
    if (copy.version == 0 && elf.exports_nccl && !elf.soname.empty()) {
        copy.version = ask_library(path, started);
    }
    return copy;
}

std::vector<std::string> python_folders(const std::string& interpreter,
                                        const Environment& environment) {
    std::vector<std::string> folders;
    std::string list = environment.get("PYTHONPATH").value_or("");
    while (!list.empty()) {
        const auto end = list.find(':');
        folders.push_back(list.substr(0, end));
        list = end == list.npos ? "" : list.substr(end + 1);
    }
    const std::string version = versioned_name(interpreter);
    const fs::path prefix = prefix_of(interpreter);
    const bool isolated = is_file((prefix / "pyvenv.cfg").string());
    const std::string home = environment.get("HOME").value_or("");
    if (!isolated && !home.empty()) {
        add_packages(fs::path(home) / ".local/lib", version, folders);
    }
    if (prefix == "/usr") {
        add_packages("/usr/local/lib", version, folders);
    }
    add_packages(prefix / "lib", version, folders);
    if (!isolated) {
        const fs::path other = prefix_of(real(interpreter));
        if (other != prefix) {
            add_packages(other / "lib", version, folders);
        }
    }
    return folders;
}

}  // namespace deft::tools::doctor
