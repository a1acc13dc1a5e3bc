// SPDX-License-Identifier: Apache-2.0
// Whether NCCL may give a device messages that lie in a GPU's memory (GPUDirect RDMA).
#pragma once

#include <string>

#include "plugin/core/gpu_memory.h"
#include "plugin/verbs/ports.h"

namespace deft::net {

struct GpuSupport {
    int pointers = 0;             // DEFT_NET_PTR_CUDA, DEFT_NET_PTR_DMABUF
    GpuMemory* copies = nullptr;  // NULL exactly if pointers is 0
};

// Of a device that drives these ports. Every port has to take the memory, by the kernel's peer
// memory (`sysfs`: where that says so) or by dmabuf. TCP goes on as the life line: what is sent
// over it then is copied, so there has to be somebody who copies. Asks the drivers.
GpuSupport gpu_support(const VerbsPorts& ports, const std::string& sysfs, GpuMemory* copies);

// Of this process's devices; made at the first call, then constant. Any thread.
const GpuSupport& process_gpu_support();

}  // namespace deft::net
