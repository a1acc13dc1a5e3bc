// SPDX-License-Identifier: Apache-2.0
// A program that does not know NCCL and reaches it at run time. usage: open_main HOW LIBRARY
// [LIBRARY]
//   local | global | deepbind   opens a module linked to NCCL that way and runs its job
//   handle                      opens NCCL and looks its functions up on the handle
//   default-local | default-global | default   opens NCCL (or nothing) and looks up in the global
//   scope two                         opens two modules, each with an NCCL of its own, and mixes
//   their calls
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "tests/system/shim/nccl/user.h"

namespace {

void* open(const char* path, int flags) {
    void* const handle = ::dlopen(path, flags);
    if (handle == nullptr) {
        std::printf("cannot open: %s\n", ::dlerror());
        std::exit(2);
    }
    return handle;
}

template <typename F>
bool find(F& function, void* handle, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle, name));
    return function != nullptr;
}

void run_module(void* handle, int iterations, const char* label) {
    void (*run)(int, const char*) = nullptr;
    if (find(run, handle, "user_run")) {
        run(iterations, label);
    }
}

void run_symbols(void* handle) {
    Api api{};
    if (!find(api.get_version, handle, "ncclGetVersion") ||
        !find(api.get_unique_id, handle, "ncclGetUniqueId") ||
        !find(api.get_error_string, handle, "ncclGetErrorString") ||
        !find(api.init_rank, handle, "ncclCommInitRank") ||
        !find(api.all_reduce, handle, "ncclAllReduce") || !find(api.bcast, handle, "ncclBcast") ||
        !find(api.destroy, handle, "ncclCommDestroy")) {
        std::printf("no ncclX found\n");
        return;
    }
    run_job(api, 20, "");
}

// Each module's calls reach its own copy, and a communicator its maker's, whoever passes it on.
void run_two(const char* one, const char* other) {
    void* const a = open(one, RTLD_NOW | RTLD_LOCAL);
    void* const b = open(other, RTLD_NOW | RTLD_LOCAL);
    run_module(a, 20, "one: ");
    run_module(b, 20, "other: ");
    int (*make_a)(ncclComm_t*) = nullptr;
    int (*make_b)(ncclComm_t*) = nullptr;
    int (*reduce_a)(ncclComm_t) = nullptr;
    int (*reduce_b)(ncclComm_t) = nullptr;
    find(make_a, a, "user_make");
    find(make_b, b, "user_make");
    find(reduce_a, a, "user_all_reduce");
    find(reduce_b, b, "user_all_reduce");
    ncclComm_t comm_a = nullptr;
    ncclComm_t comm_b = nullptr;
    std::printf("make=%d,%d", make_a(&comm_a), make_b(&comm_b));
    std::printf(" own=%d,%d crossed=%d,%d\n", reduce_a(comm_a), reduce_b(comm_b), reduce_b(comm_a),
                reduce_a(comm_b));
}

}  // namespace

int main(int argc, char** argv) {
    const char* how = argc > 1 ? argv[1] : "";
    const char* path = argc > 2 ? argv[2] : nullptr;
    const auto is = [how](const char* word) { return std::strcmp(how, word) == 0; };
    if (is("local")) {
        run_module(open(path, RTLD_NOW | RTLD_LOCAL), 20, "");
    } else if (is("global")) {
        run_module(open(path, RTLD_NOW | RTLD_GLOBAL), 20, "");
    } else if (is("deepbind")) {
        run_module(open(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), 20, "");
    } else if (is("handle")) {
        run_symbols(open(path, RTLD_NOW | RTLD_LOCAL));
    } else if (is("default-local")) {
        open(path, RTLD_NOW | RTLD_LOCAL);
        run_symbols(RTLD_DEFAULT);
    } else if (is("default-global")) {
        open(path, RTLD_NOW | RTLD_GLOBAL);
        run_symbols(RTLD_DEFAULT);
    } else if (is("default")) {
        run_symbols(RTLD_DEFAULT);
    } else if (is("two") && argc > 3) {
        run_two(path, argv[3]);
    } else {
        std::printf("usage: open_main HOW LIBRARY [LIBRARY]\n");
        return 2;
    }
    return 0;
}
