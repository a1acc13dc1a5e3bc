// SPDX-License-Identifier: Apache-2.0
// libibverbs, opened when RDMA ports are to be driven and never linked to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "deft/abi/verbs.h"

namespace deft::net {

// The functions that libibverbs exports, as deft/abi/verbs.h declares their arguments. Constant
// once opened.
struct VerbsLibrary {
    int (*is_fork_initialized)() = nullptr;  // may be NULL: rdma-core before 35
    int (*fork_init)() = nullptr;
    deft_verbs_device_t** (*get_device_list)(int* count) = nullptr;
    void (*free_device_list)(deft_verbs_device_t** list) = nullptr;
    const char* (*get_device_name)(deft_verbs_device_t* device) = nullptr;
    deft_verbs_context_t* (*open_device)(deft_verbs_device_t* device) = nullptr;
    int (*close_device)(deft_verbs_context_t* context) = nullptr;
    int (*query_port)(deft_verbs_context_t* context, std::uint8_t port,
                      deft_verbs_port_attr_t* attributes) = nullptr;
    int (*query_gid)(deft_verbs_context_t* context, std::uint8_t port, int index,
                     deft_verbs_gid_t* gid) = nullptr;
    int (*get_async_event)(deft_verbs_context_t* context,
                           deft_verbs_async_event_t* event) = nullptr;
    void (*ack_async_event)(deft_verbs_async_event_t* event) = nullptr;
    deft_verbs_pd_t* (*alloc_pd)(deft_verbs_context_t* context) = nullptr;
    int (*dealloc_pd)(deft_verbs_pd_t* domain) = nullptr;
    deft_verbs_mr_t* (*reg_mr)(deft_verbs_pd_t* domain, void* data, std::size_t size,
                               int access) = nullptr;
    // May be NULL, as relaxed ordering and dmabuf are then not known.
    deft_verbs_mr_t* (*reg_mr_iova2)(deft_verbs_pd_t* domain, void* data, std::size_t size,
                                     std::uint64_t iova, unsigned access) = nullptr;
    deft_verbs_mr_t* (*reg_dmabuf_mr)(deft_verbs_pd_t* domain, std::uint64_t offset,
                                      std::size_t size, std::uint64_t iova, int fd,
                                      int access) = nullptr;
    int (*dereg_mr)(deft_verbs_mr_t* region) = nullptr;
    deft_verbs_cq_t* (*create_cq)(deft_verbs_context_t* context, int entries, void* argument,
                                  void* channel, int vector) = nullptr;
    int (*destroy_cq)(deft_verbs_cq_t* queue) = nullptr;
    deft_verbs_qp_t* (*create_qp)(deft_verbs_pd_t* domain,
                                  deft_verbs_qp_init_attr_t* attributes) = nullptr;
    int (*modify_qp)(deft_verbs_qp_t* qp, deft_verbs_qp_attr_t* attributes, int mask) = nullptr;
    int (*destroy_qp)(deft_verbs_qp_t* qp) = nullptr;
    // May be NULL: rdma-core before 31.
    int (*query_ece)(deft_verbs_qp_t* qp, deft_verbs_ece_t* ece) = nullptr;
    int (*set_ece)(deft_verbs_qp_t* qp, deft_verbs_ece_t* ece) = nullptr;
};

// Opens the library that NCCL would: the file `named` (NCCL_IBVERBS_LIB; empty: none), else the
// system's; RTLD_LOCAL, and it stays loaded. False and the cause if there is none, or one that
// lacks something. Marks pages for fork() where the kernel needs it (ibv_fork_init), so before
// anything is registered.
bool open_verbs_library(const std::string& named, VerbsLibrary& library, std::string& problem);

// That of this process: opened at the first call, constant from then on; NULL and the cause. Any
// thread.
const VerbsLibrary* process_verbs_library(std::string& problem);

}  // namespace deft::net
