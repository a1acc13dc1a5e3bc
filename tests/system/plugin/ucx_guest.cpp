// SPDX-License-Identifier: Apache-2.0
// What the plugin leaves of a process in which NCCL has initialised it: signal handlers, the first
// bytes of munmap, threads.
//
// usage: ucx_guest LIBRARY MODULE CASE
//   absent     DEFT_UCX is not set: UCX is not loaded
//   refused    DEFT_UCX=on, and nobody has prepared the environment: the same
//   prepared   as deft run does it: UCX is loaded, and all but its one thread is as before
//   seen       the module by itself, unprepared: what this test looks at does change
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/ucx_environment.h"
#include "deft/abi/net.h"
#include "deft/abi/ucx_module.h"

namespace {

struct State {
    std::vector<void*> handlers;
    std::array<unsigned char, 16> munmap_begins{};
    std::ptrdiff_t threads = 0;
};

State look() {
    State state;
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        if (sigaction(number, nullptr, &action) == 0) {
            state.handlers.push_back(reinterpret_cast<void*>(action.sa_handler));
        }
    }
    std::memcpy(state.munmap_begins.data(), dlsym(RTLD_DEFAULT, "munmap"),
                state.munmap_begins.size());
    namespace fs = std::filesystem;
    state.threads = std::distance(fs::directory_iterator("/proc/self/task"), {});
    return state;
}

bool loaded(const char* library) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(library) != line.npos) {
            return true;
        }
    }
    return false;
}

void require(bool holds, const char* what) {
    if (!holds) {
        std::printf("wrong: %s\n", what);
        std::exit(1);
    }
}

void* opened(const char* file) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::printf("%s\n", dlerror());
        std::exit(1);
    }
    return library;
}

void initialise(void* library) {
    const auto* const net = static_cast<const deft_net_v10_t*>(dlsym(library, "ncclNetPlugin_v10"));
    require(net != nullptr, "no table of version 10");
    int devices = 0;
    require(net->init(nullptr, nullptr) == 0 && net->devices(&devices) == 0 && devices > 0,
            "the plugin has no device");
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) {
        return 2;
    }
    const std::string name = arguments[3];
    const bool prepared = name == "prepared";
    for (const deft::Assignment& needed : deft::kUcxEnvironment) {
        prepared ? setenv(needed.name, needed.value, 1) : unsetenv(needed.name);
    }
    name == "absent" ? unsetenv("DEFT_UCX") : setenv("DEFT_UCX", "on", 1);
    setenv("DEFT_UCX_DEVICES", "lo", 1);
    setenv("UCX_TLS", "tcp", 1);
    setenv("DEFT_INTERFACES", "lo", 1);
    // Not in this program before: dlsym and the file system may take a moment to settle.
    (void)look();
    const State before = look();
    if (name == "seen") {
        char problem[256];
        const auto module = reinterpret_cast<decltype(&deft_ucx_module)>(
            dlsym(opened(arguments[2]), "deft_ucx_module"))();
        require(module->open("lo", problem, sizeof(problem)) != nullptr, problem);
        require(look().munmap_begins != before.munmap_begins, "UCX has changed nothing");
        return 0;
    }
    initialise(opened(arguments[1]));
    const State after = look();
    for (std::size_t i = 0; i < before.handlers.size(); ++i) {
        const std::string what = "handler " + std::to_string(i) + " was changed";
        require(after.handlers[i] == before.handlers[i], what.c_str());
    }
    require(after.munmap_begins == before.munmap_begins, "munmap was changed");
    require(loaded("libucp") == prepared, "UCX is loaded, or is not");
    require(after.threads <= before.threads + (prepared ? 1 : 0), "there is another thread");
    return 0;
}
