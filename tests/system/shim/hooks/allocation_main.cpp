// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of the whole process at the start of main, and in the job's thread during
// the calls of a steady job. Without the C++ run time, which allocates too. With the argument
// `threads`: what is left of the allocations of a thousand threads that have made a group of calls
// each.
#include <nccl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* pointer, std::size_t size);
void __libc_free(void* pointer);

thread_local unsigned long t_allocations = 0;
constinit std::atomic<long> g_alive{0};

void* malloc(std::size_t size) {
    ++t_allocations;
    ++g_alive;
    return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
    ++t_allocations;
    ++g_alive;
    return __libc_calloc(count, size);
}
void* realloc(void* pointer, std::size_t size) {
    ++t_allocations;
    g_alive += pointer == nullptr ? 1 : 0;
    return __libc_realloc(pointer, size);
}
void free(void* pointer) {
    g_alive -= pointer != nullptr ? 1 : 0;
    __libc_free(pointer);
}
}

int main(int argc, char**) {
    const unsigned long at_start = t_allocations;
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    ncclGetUniqueId(&id);
    ncclCommInitRank(&comm, 1, id, 0);
    float buffer[16] = {};
    int result = 0;
    const auto iteration = [&] {
        ncclGroupStart();
        result |= ncclAllReduce(buffer, buffer, 8, ncclFloat, ncclSum, comm, nullptr);
        result |= ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, comm, nullptr);
        ncclGroupEnd();
        result |= ncclAllReduce(buffer, buffer, 4, ncclFloat, ncclSum, comm, nullptr);
    };
    for (int i = 0; i < 10; ++i) {
        iteration();
    }
    if (argc > 1) {
        const long alive = g_alive;
        for (int i = 0; i < 1000; ++i) {
            pthread_t thread{};
            using Iteration = decltype(iteration);
            result |= ::pthread_create(
                &thread, nullptr,
                [](void* run) -> void* {
                    (*static_cast<const Iteration*>(run))();
                    return nullptr;
                },
                const_cast<void*>(static_cast<const void*>(&iteration)));
            result |= ::pthread_join(thread, nullptr);
        }
        // The background thread frees what it has read.
        for (int i = 0; i < 1000 && g_alive - alive >= 200; ++i) {
            ::usleep(10 * 1000);
        }
        std::printf("threads=1000 left=%ld result=%d\n", g_alive - alive, result);
        return 0;
    }
    const unsigned long before = t_allocations;
    for (int i = 0; i < 20000; ++i) {
        iteration();
    }
    const unsigned long during = t_allocations - before;
    std::printf("start=%lu calls=%lu result=%d\n", at_start, during, result);
    return 0;
}
