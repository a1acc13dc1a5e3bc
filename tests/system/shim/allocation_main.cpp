// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of the whole process at the start of main, and in the job's thread during
// the calls of a steady job.
#include <nccl.h>

#include <cstddef>
#include <cstdio>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* pointer, std::size_t size);

thread_local unsigned long t_allocations = 0;

void* malloc(std::size_t size) {
    ++t_allocations;
    return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
    ++t_allocations;
    return __libc_calloc(count, size);
}
void* realloc(void* pointer, std::size_t size) {
    ++t_allocations;
    return __libc_realloc(pointer, size);
}
}

int main() {
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
    const unsigned long before = t_allocations;
    for (int i = 0; i < 20000; ++i) {
        iteration();
    }
    const unsigned long during = t_allocations - before;
    std::printf("start=%lu calls=%lu result=%d\n", at_start, during, result);
    return 0;
}
