// SPDX-License-Identifier: Apache-2.0
// What happens to the communicator of a rank of plan_main while the job goes on with it.
#pragma once

#include <arpa/inet.h>
#include <cuda.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/shim/control/plan_endings.h"
#include "tests/system/shim/exchange_id.h"
#include "tests/system/shim/newer_nccl.h"

namespace deft::test {

// Between two iterations, on all ranks alike.
inline void suspend_and_resume(ncclComm_t comm, float* at) {
    check(ncclCommSuspend(comm, kSuspendMemory), "ncclCommSuspend");
    // NCCL refuses it where memory was given up; without virtual memory there is none to give up.
    // Too small for a gradient, or it would end the plan by itself.
    const int result = ncclAllReduce(at, at, 100, ncclFloat, ncclSum, comm, nullptr);
    check(result == ncclInvalidUsage ? 0 : result, "a call on a suspended communicator");
    // One that was taken writes what the next iteration writes, on another stream.
    check(cuStreamSynchronize(nullptr), "the call on a suspended communicator");
    check(ncclCommResume(comm), "ncclCommResume");
    std::printf("resumed\n");
}

// All of the device's memory that is free, but for a `part`-th of the device's, until the end.
inline void take_memory_but(std::size_t part) {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
    CUdeviceptr memory = 0;
    check(cuMemAlloc(&memory, free - total / part), "cuMemAlloc");
}

// The network on which deft's ranks agree fails this one. What connects it with the leader goes to
// a port that stands in the unique id (docs/agreement.md, "Meeting").
inline void cut_off(const std::string& id_file) {
    const ncclUniqueId id = exchange_id(1, id_file);
    const auto* const trailer = reinterpret_cast<const unsigned char*>(id.internal) + 64;
    std::set<int> ports;
    const unsigned char* at = trailer + 24;
    for (int address = 0; address < trailer[5]; ++address) {
        ports.insert(at[1] | at[2] << 8);
        at += at[0] == 6 ? 19 : 7;
    }
    int cut = 0;
    for (int fd = 3; fd < 1024; ++fd) {
        sockaddr_storage peer{};
        socklen_t length = sizeof(peer);
        if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
            (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) &&
            ports.count(ntohs(reinterpret_cast<sockaddr_in*>(&peer)->sin_port)) > 0) {
            cut += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
        }
    }
    check(cut != 1, "the connection with the leader");
}

// NCCL's own network fails this rank: connections with other processes end, but for deft's, whose
// ports are DEFT_PORTS=FIRST-LAST.
inline void cut_lanes() {
    int first = 0;
    int last = 0;
    const char* const ports = std::getenv("DEFT_PORTS");
    check(ports == nullptr || std::sscanf(ports, "%d-%d", &first, &last) != 2, "DEFT_PORTS");
    const auto port_of = [](int fd, auto* ask) {
        sockaddr_storage name{};
        socklen_t length = sizeof(name);
        const bool inet = ask(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
                          (name.ss_family == AF_INET || name.ss_family == AF_INET6);
        return inet ? static_cast<int>(ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port)) : 0;
    };
    constexpr int kMost = 1024;
    std::set<int> own;  // also of this process's connections with itself
    for (int fd = 3; fd < kMost; ++fd) {
        own.insert(port_of(fd, ::getsockname));
    }
    int cut = 0;
    for (int fd = 3; fd < kMost; ++fd) {
        const int here = port_of(fd, ::getsockname);
        const int there = port_of(fd, ::getpeername);
        const auto of_deft = [&](int port) { return first <= port && port <= last; };
        if (there != 0 && own.count(there) == 0 && !of_deft(here) && !of_deft(there)) {
            cut += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
        }
    }
    check(cut == 0, "connections of lanes");
}

// A sum over a communicator of so many ranks, as large as a gradient.
inline void sum_alone(ncclComm_t comm, int ranks) {
    constexpr std::size_t kCount = 50'001;
    CUdeviceptr memory = 0;
    CUstream stream = nullptr;
    std::vector<float> host(kCount, 1);
    check(cuMemAlloc(&memory, kCount * sizeof(float)), "cuMemAlloc");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemcpyHtoD(memory, host.data(), kCount * sizeof(float)), "cuMemcpyHtoD");
    auto* const at = reinterpret_cast<float*>(memory);
    check(ncclAllReduce(at, at, kCount, ncclFloat, ncclSum, comm, stream), "ncclAllReduce");
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check(cuMemcpyDtoH(host.data(), memory, kCount * sizeof(float)), "cuMemcpyDtoH");
    check(same_everywhere(host.data(), kCount, "a grown communicator") != ranks, "its sum");
    check(cuStreamDestroy(stream), "cuStreamDestroy");
    check(cuMemFree(memory), "cuMemFree");
}

// A rank that joins: a thread of rank 0's process, with a device of its own.
inline void join_grown(const ncclUniqueId& id, int ranks) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    check(cuDeviceGet(&device, 1), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    ncclComm_t grown = nullptr;
    check(ncclCommGrow(nullptr, ranks + 1, &id, ranks, &grown, nullptr), "ncclCommGrow");
    sum_alone(grown, ranks + 1);
    check(ncclCommDestroy(grown), "ncclCommDestroy");
}

// A larger communicator is made of the job's, and used; the job goes on with its own.
inline void grow(int rank, int ranks, ncclComm_t comm) {
    ncclUniqueId id{};
    std::thread joining;
    if (rank == 0) {
        check(ncclCommGetUniqueId(comm, &id), "ncclCommGetUniqueId");
        joining = std::thread([&] { join_grown(id, ranks); });
    }
    ncclComm_t grown = nullptr;
    check(ncclCommGrow(comm, ranks + 1, rank == 0 ? &id : nullptr, -1, &grown, nullptr),
          "ncclCommGrow");
    sum_alone(grown, ranks + 1);
    check(ncclCommDestroy(grown), "ncclCommDestroy");
    if (joining.joinable()) {
        joining.join();
    }
    std::printf("grown\n");
}

}  // namespace deft::test
