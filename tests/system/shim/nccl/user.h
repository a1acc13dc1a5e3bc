// SPDX-License-Identifier: Apache-2.0
// What a small job does with NCCL, through whatever functions it is given.
#pragma once

#include <nccl.h>

#include <cstdio>

// NCCL as the job reaches it. Members are function pointers, so that the same job runs with calls
// bound by the loader and with functions it has looked up.
struct Api {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclGetErrorString) get_error_string;
    decltype(&ncclCommInitRank) init_rank;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclBcast) bcast;
    decltype(&ncclCommDestroy) destroy;
};

// Runs `iterations` of two buckets and prints one line:
//   version=V init=R calls=R destroy=R error=TEXT
// where R are result codes, the worst of several.
inline void run_job(const Api& api, int iterations, const char* label) {
    int version = 0;
    const int got = api.get_version(&version);
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    int init = api.get_unique_id(&id);
    if (init == ncclSuccess) {
        init = api.init_rank(&comm, 1, id, 0);
    }
    int calls = 0;
    static float buffer[4096];
    for (int i = 0; init == ncclSuccess && i < iterations; ++i) {
        for (const size_t count : {size_t{1000}, size_t{4000}}) {
            const int result =
                api.all_reduce(buffer, buffer, count, ncclFloat, ncclSum, comm, nullptr);
            calls = result > calls ? result : calls;
        }
    }
    if (init == ncclSuccess) {
        const int result = api.bcast(buffer, 10, ncclFloat, 0, comm, nullptr);
        calls = result > calls ? result : calls;
    }
    const int destroyed = init == ncclSuccess ? api.destroy(comm) : 0;
    std::printf("%sversion=%d init=%d calls=%d destroy=%d error=%s\n", label,
                got == ncclSuccess ? version : -got, init, calls, destroyed,
                api.get_error_string(ncclSystemError));
    std::fflush(stdout);
}
