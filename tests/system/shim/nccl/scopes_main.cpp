// SPDX-License-Identifier: Apache-2.0
// A program with several copies of NCCL in its process, which come one after the other. usage:
// scopes_main STEP...
//   LETTER=FLAGS:PATH  opens a library or module and calls it LETTER; flags are l(ocal), g(lobal),
//                      z (lazy: its calls are bound at their first use)
//   make:M             module M makes a communicator
//   group:M            module M makes one call on its communicator in a group
//   foreign:MN         module M makes a call on the communicator of module N
//   thread:M           as group:M, on a thread of its own
//   pointers           as group, with functions looked up in the global scope
//   end:M              module M destroys its communicator
//   close:M            closes module M
//   cd:PATH            changes the working folder
//   place:N            whether module N lies where the last that was closed lay (1)
// Prints the worst result of each step, and for each copy how often it was called.
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

namespace {

struct FakeCalls {
    int made, group_starts, group_ends, all_reduces, destroyed;
};

std::map<char, void*> g_opened;
std::map<char, ncclComm_t> g_communicators;
void* g_place = nullptr;  // of the last that was closed

template <class Function>
Function* look(char module, const char* name) {
    auto* const function = reinterpret_cast<Function*>(::dlsym(g_opened.at(module), name));
    if (function == nullptr) {
        std::printf("%c has no %s\n", module, name);
        std::exit(2);
    }
    return function;
}

void open(char name, const std::string& flags, const char* path) {
    const auto has = [&flags](char flag) { return flags.find(flag) != flags.npos; };
    void* const handle =
        ::dlopen(path, (has('z') ? RTLD_LAZY : RTLD_NOW) | (has('g') ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == nullptr) {
        std::printf("cannot open: %s\n", ::dlerror());
        std::exit(2);
    }
    g_opened[name] = handle;
}

int make(char module) {
    return look<int(ncclComm_t*)>(module, "user_make")(&g_communicators[module]);
}

int group(char module) {
    const int started = look<int()>(module, "user_group_start")();
    const int called = look<int(ncclComm_t)>(module, "user_all_reduce")(g_communicators[module]);
    const int ended = look<int()>(module, "user_group_end")();
    return std::max({started, called, ended});
}

int on_a_thread(char module) {
    int result = 0;
    std::thread([&] { result = group(module); }).join();
    return result;
}

int pointers() {
    g_opened['*'] = ::dlopen(nullptr, RTLD_NOW);
    float buffer[4] = {};
    ncclComm_t comm = nullptr;
    ncclUniqueId id{};
    int worst = look<decltype(ncclGetUniqueId)>('*', "ncclGetUniqueId")(&id);
    const auto note = [&worst](int result) { worst = std::max(worst, result); };
    note(look<decltype(ncclCommInitRank)>('*', "ncclCommInitRank")(&comm, 1, id, 0));
    note(look<decltype(ncclGroupStart)>('*', "ncclGroupStart")());
    note(look<decltype(ncclAllReduce)>('*', "ncclAllReduce")(buffer, buffer, 4, ncclFloat, ncclSum,
                                                             comm, nullptr));
    note(look<decltype(ncclGroupEnd)>('*', "ncclGroupEnd")());
    note(look<decltype(ncclCommDestroy)>('*', "ncclCommDestroy")(comm));
    g_opened.erase('*');
    return worst;
}

int close(char module) {
    g_place = ::dlsym(g_opened.at(module), "user_make");
    const int result = ::dlclose(g_opened.at(module));
    g_opened.erase(module);
    return result;
}

int take(const std::string& step) {
    const std::string what = step.substr(0, step.find(':'));
    const char module = step.back();
    if (what == "make") {
        return make(module);
    }
    if (what == "group") {
        return group(module);
    }
    if (what == "thread") {
        return on_a_thread(module);
    }
    if (what == "foreign") {
        const char maker = step.back();
        return look<int(ncclComm_t)>(step[step.size() - 2],
                                     "user_all_reduce")(g_communicators[maker]);
    }
    if (what == "pointers") {
        return pointers();
    }
    if (what == "end") {
        return look<int(ncclComm_t)>(module, "user_destroy")(g_communicators[module]);
    }
    if (what == "cd") {
        return ::chdir(step.c_str() + what.size() + 1);
    }
    if (what == "close") {
        return close(module);
    }
    if (what == "place") {
        return ::dlsym(g_opened.at(module), "user_make") == g_place ? 1 : 0;
    }
    std::printf("no step %s\n", step.c_str());
    std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string step = argv[i];
        if (step.size() > 2 && step[1] == '=') {
            const std::size_t colon = step.find(':');
            open(step[0], step.substr(2, colon - 2), step.c_str() + colon + 1);
        } else {
            std::printf("%s=%d ", step.c_str(), take(step));
        }
    }
    std::printf("\n");
    for (const auto& [name, handle] : g_opened) {
        if (const auto* calls = static_cast<FakeCalls*>(::dlsym(handle, "fake_calls"))) {
            std::printf("%c: made %d, groups %d/%d, all-reduces %d, destroyed %d\n", name,
                        calls->made, calls->group_starts, calls->group_ends, calls->all_reduces,
                        calls->destroyed);
        }
    }
    return 0;
}
