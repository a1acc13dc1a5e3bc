// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/ucx_environment.h"

namespace deft::net {
namespace {

constexpr const char* kFile = "libdeft-ucx.so";

// Of this library; with a '/' at the end.
std::string own_folder() {
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(&ucx_obstacle), &info) == 0 ||
        info.dli_fname == nullptr) {
        return {};
    }
    const std::string file = info.dli_fname;
    return file.substr(0, file.rfind('/') + 1);
}

void* open_file(std::string& problem) {
    const std::string beside = own_folder() + kFile;
    const bool there = ::access(beside.c_str(), R_OK) == 0;
    void* const file = ::dlopen(there ? beside.c_str() : kFile, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
        const char* const why = ::dlerror();
        problem = std::string("the module cannot be opened: ") + (why != nullptr ? why : kFile);
    }
    return file;
}

const deft_ucx_module_t* open_module(std::string& problem) {
    problem = ucx_obstacle();
    void* const file = problem.empty() ? open_file(problem) : nullptr;
    if (file == nullptr) {
        return nullptr;
    }
    using Entry = const deft_ucx_module_t* (*)();
    const auto entry = reinterpret_cast<Entry>(::dlsym(file, "deft_ucx_module"));
    const deft_ucx_module_t* const module = entry == nullptr ? nullptr : entry();
    if (module == nullptr || module->abi != DEFT_UCX_ABI ||
        module->bytes < sizeof(deft_ucx_module_t)) {
        problem = std::string(kFile) + " is of another release of deft";
        return nullptr;
    }
    return module;
}

}  // namespace

std::string ucx_obstacle() {
    for (const Assignment& needed : kUcxEnvironment) {
        const char* const value = std::getenv(needed.name);
        if (value == nullptr || std::strcmp(value, needed.value) != 0) {
            return std::string(needed.name) + "=" + needed.value +
                   " is not in the environment, without which UCX changes the process that loads "
                   "it; 'deft run' sets it";
        }
    }
    return {};
}

const deft_ucx_module_t* process_ucx_module(std::string& problem) {
    struct Opened {
        std::string problem;
        const deft_ucx_module_t* module = open_module(problem);
    };
    static const Opened* const opened = new Opened;  // the process's threads may outlive main()
    problem = opened->problem;
    return opened->module;
}

}  // namespace deft::net
