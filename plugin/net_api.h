// SPDX-License-Identifier: Apache-2.0
// The one inner interface behind all versions of NCCL's plugin table. Only nccl_net_v*.cpp include
// it. All functions return ncclResult_t values, catch everything, and log once, where it happens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deft/abi/net.h"

namespace deft::net::api {

inline constexpr const char* kName = "deft";

// Everything any version's properties say; strings live as long as the process.
struct Properties {
    char* name = nullptr;
    char* pci_path = nullptr;
    std::uint64_t guid = 0;
    int pointer_support = DEFT_NET_PTR_HOST;
    int speed_mbps = 0;
    int port = 0;
    // Microseconds one way, of TCP over Ethernet. A constant: NCCL chooses algorithms by it without
    // comparing between ranks, so all ranks must say the same.
    float latency = 10;
    int max_comms = 65536;
    int max_receives = 1;
    std::size_t max_bytes = 0;
};

// `context` NULL: versions without one per communicator. `communicator` is NCCL's own number of it
// (commHash), equal on all its ranks.
int init(void** context, int traffic_class, deft_net_logger_t logger, int version,
         std::uint64_t communicator = 0) noexcept;
int devices(int* count) noexcept;
int properties(int device, Properties& properties) noexcept;
int listen(void* context, int device, void* handle, void** comm) noexcept;
int connect(void* context, int device, void* handle, void** comm) noexcept;
int accept(void* listener, void** comm) noexcept;
// `memory`: what regMr gave, NULL for none.
int isend(void* comm, void* data, std::size_t size, void* memory, void** request) noexcept;
int irecv(void* comm, int count, void** data, const std::size_t* sizes, void* const* memories,
          void** request) noexcept;

// These have the shape of NCCL's table in every version.
int reg_mr(void* comm, void* data, std::size_t size, int type, void** handle) noexcept;
int reg_mr_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                  void** handle) noexcept;
int dereg_mr(void* comm, void* handle) noexcept;
int iflush(void* comm, int count, void** data, int* sizes, void** handles, void** request) noexcept;
int test(void* request, int* done, int* sizes) noexcept;
int close_send(void* comm) noexcept;
int close_recv(void* comm) noexcept;
int close_listen(void* comm) noexcept;
int finalize(void* context) noexcept;
int set_attributes(void* context, deft_net_attr_t* attributes) noexcept;

}  // namespace deft::net::api
