// SPDX-License-Identifier: Apache-2.0
#include "tools/ucx_links.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/ucx_environment.h"
#include "deft/abi/ucx_module.h"
#include "tools/elf_file.h"
#include "tools/foreign.h"
#include "tools/library.h"
#include "tools/loader_search.h"

namespace deft::tools {

using namespace discovery;

namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libdeft-ucx.so";
constexpr const char* kOldest = "1.13";

std::string missing_assignment(const Environment& environment) {
    for (const Assignment& needed : kUcxEnvironment) {
        if (environment.get(needed.name).value_or("") != needed.value) {
            return fmt::format("{}={} is not in the environment: UCX would change the process",
                               needed.name, needed.value);
        }
    }
    return {};
}

std::vector<std::string> names_of(std::string list) {
    std::vector<std::string> names;
    do {
        const auto comma = list.find(',');
        names.push_back(list.substr(0, comma));
        list = comma == list.npos ? "" : list.substr(comma + 1);
    } while (!list.empty());
    return names;
}

// In a process of its own. UCX's libraries first: the loader of this process has its search path
// from before, and the job may have another.
const deft_ucx_module_t* load(const std::string& module,
                              const std::vector<LoaderSearch::Object>& libraries,
                              std::string& problem) {
    for (auto library = libraries.rbegin(); library != libraries.rend(); ++library) {
        if (fs::path(library->path).filename().string().starts_with("libuc")) {
            (void)::dlopen(library->path.c_str(), RTLD_NOW | RTLD_GLOBAL);
        }
    }
    void* const file = ::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto entry =
        file == nullptr
            ? nullptr
            : reinterpret_cast<decltype(&deft_ucx_module)>(::dlsym(file, "deft_ucx_module"));
    const deft_ucx_module_t* const found = entry == nullptr ? nullptr : entry();
    if (file == nullptr) {
        const char* const why = ::dlerror();
        problem = why == nullptr ? module + " cannot be opened" : why;
    } else if (found == nullptr || found->abi != DEFT_UCX_ABI ||
               found->bytes < sizeof(deft_ucx_module_t)) {
        problem = module + " is of another release of deft";
    }
    return problem.empty() ? found : nullptr;
}

// Lines "WORD REST", one for each thing that was found.
std::string look(const std::string& module, const std::vector<LoaderSearch::Object>& libraries,
                 const std::vector<std::string>& names) {
    for (const Assignment& needed : kUcxEnvironment) {
        (void)::setenv(needed.name, needed.value, 1);
    }
    std::string problem;
    const deft_ucx_module_t* const ucx = load(module, libraries, problem);
    if (ucx == nullptr) {
        return "unusable " + problem + "\n";
    }
    std::string text = fmt::format("version {}\n", ucx->version());
    std::array<char, 65536> devices{};
    std::array<char, 256> why{};
    const auto all = ucx->open("all", why.data(), why.size());
    if (all != nullptr) {
        (void)ucx->devices(all, devices.data(), devices.size());
        std::istringstream lines(devices.data());
        for (std::string line; std::getline(lines, line);) {
            text += "device " + line + "\n";
        }
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (ucx->open(names[i].c_str(), why.data(), why.size()) == nullptr) {
            text += fmt::format("obstacle {} {}\n", i, why.data());
        }
    }
    return text + "end \n";
}

void take_line(const std::string& line, Ucx& ucx) {
    const auto blank = std::min(line.find(' '), line.size());
    const std::string word = line.substr(0, blank);
    const std::string rest = blank < line.size() ? line.substr(blank + 1) : "";
    if (word == "unusable") {
        ucx.obstacle = Ucx::Obstacle::OtherBuild;
        ucx.problem = rest;
    } else if (word == "version") {
        ucx.version = rest;
    } else if (word == "device") {
        ucx.devices.push_back(rest);
    } else if (word == "obstacle") {
        const std::size_t at = std::strtoul(rest.c_str(), nullptr, 10);
        if (at < ucx.links.size()) {
            ucx.links[at].obstacle = rest.substr(std::min(rest.find(' ') + 1, rest.size()));
        }
    }
}

void take_answer(const std::optional<std::string>& answer, Ucx& ucx) {
    if (!answer || (answer->find("unusable ") != 0 && !answer->ends_with("end \n"))) {
        ucx.obstacle = Ucx::Obstacle::NoAnswer;
        ucx.problem = answer ? "UCX ended the process that loaded it" : "UCX does not come up";
    }
    std::istringstream lines(answer.value_or(""));
    for (std::string line; std::getline(lines, line);) {
        take_line(line, ucx);
    }
    for (UcxLink& link : ucx.links) {
        for (const std::string& device : ucx.devices) {
            const auto slash = device.find('/');
            if (slash != device.npos && device.substr(slash + 1) == link.name) {
                link.transports += (link.transports.empty() ? "" : " ") + device.substr(0, slash);
            }
        }
        if (!link.obstacle.empty() && ucx.obstacle == Ucx::Obstacle::None) {
            ucx.obstacle = Ucx::Obstacle::NoDevice;
            ucx.problem = link.obstacle;
        }
    }
    if (!ucx.version.empty() && older_version(ucx.version, kOldest)) {
        ucx.obstacle = Ucx::Obstacle::OtherBuild;
        ucx.problem = fmt::format("UCX here is {}, and {} is the oldest that deft uses",
                                  ucx.version, kOldest);
    }
}

// What is in the way before anything is loaded.
void look_at_files(const Environment& environment, const std::string& library,
                   LoaderSearch::Closure& closure, Ucx& ucx) {
    const std::string beside = library.empty() ? find_library("").path : library;
    const std::string file =
        beside.empty() ? "" : (fs::path(beside).parent_path() / kModule).string();
    const LoaderSearch loader(environment);
    ucx.module =
        !file.empty() && ::access(file.c_str(), R_OK) == 0 ? file : loader.find(kModule).path;
    if (ucx.module.empty()) {
        ucx.obstacle = Ucx::Obstacle::NoModule;
        ucx.problem = fmt::format("{} is not next to {}", kModule,
                                  beside.empty() ? std::string(kLibraryName) : beside);
        return;
    }
    const ElfFile elf = read_elf(ucx.module);
    if (elf.kind != ElfFile::Kind::Elf || !elf.this_machine || elf.cut_off) {
        ucx.obstacle = Ucx::Obstacle::OtherBuild;
        ucx.problem = ucx.module + " is no library of this machine";
        return;
    }
    closure = loader.closure(ucx.module);
    for (const std::string& name : closure.missing) {
        ucx.obstacle = Ucx::Obstacle::NoLibrary;
        ucx.problem = fmt::format("the loader does not find {}, which {} needs", name, ucx.module);
        return;
    }
}

}  // namespace

std::string ucx_contradiction(const Environment& environment) {
    for (const Assignment& needed : kUcxEnvironment) {
        const std::optional<std::string> value = environment.get(needed.name);
        if (value && *value != needed.value) {
            return fmt::format("{}='{}' is set and is kept, so deft's links do not go over UCX",
                               needed.name, *value);
        }
    }
    return {};
}

Ucx read_ucx(const Config& config, const Environment& environment, bool prepares,
             const std::string& library) {
    Ucx ucx;
    ucx.asked = config.is(Key::Ucx, "on") && !config.is(Key::Mode, "off");
    if (!ucx.asked) {
        return ucx;
    }
    const std::vector<std::string> names = names_of(config.text(Key::UcxDevices));
    for (const std::string& name : names) {
        ucx.links.push_back({name, "", ""});
    }
    LoaderSearch::Closure closure;
    ucx.problem = ucx_contradiction(environment);
    if (ucx.problem.empty() && !prepares) {
        ucx.problem = missing_assignment(environment);
    }
    if (!ucx.problem.empty()) {
        ucx.obstacle = Ucx::Obstacle::Unprepared;
    } else {
        look_at_files(environment, library, closure, ucx);
    }
    if (ucx.obstacle == Ucx::Obstacle::None) {
        take_answer(
            answer_in_time([&] { return look(ucx.module, closure.objects, names); }, kLoadLimit),
            ucx);
    }
    for (UcxLink& link : ucx.links) {
        if (link.obstacle.empty() && ucx.obstacle != Ucx::Obstacle::None &&
            ucx.obstacle != Ucx::Obstacle::NoDevice) {
            link.obstacle = ucx.problem;
        }
    }
    return ucx;
}

Machine this_host() {
    Machine machine = this_machine();
    machine.ucx = read_ucx(Config::process(), Environment(environ), true, "");
    return machine;
}

}  // namespace deft::tools
