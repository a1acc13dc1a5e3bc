// SPDX-License-Identifier: Apache-2.0
#include "plugin/gpu_support.h"

#include <unistd.h>

#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "deft/abi/net.h"
#include "plugin/cuda_memory.h"
#include "topology/rdma.h"

namespace deft::net {
namespace {

// Modules that let ibv_reg_mr() take a GPU's addresses, where NCCL's own transport looks for them.
constexpr const char* kPeerMemory[] = {"/module/nvidia_peermem/version",
                                       "/kernel/mm/memory_peers/nv_mem/version",
                                       "/kernel/mm/memory_peers/nv_mem_nc/version"};

}  // namespace

GpuSupport gpu_support(const VerbsPorts& ports, const std::string& sysfs, GpuMemory* copies) {
    GpuSupport support;
    if (ports.empty() || copies == nullptr) {
        return support;
    }
    if (std::any_of(std::begin(kPeerMemory), std::end(kPeerMemory), [&](const char* file) {
            return ::access((sysfs + file).c_str(), R_OK) == 0;
        })) {
        support.pointers |= DEFT_NET_PTR_CUDA;
    }
    if (std::all_of(ports.begin(), ports.end(),
                    [](const auto& port) { return port->domain->takes_dmabuf(); })) {
        support.pointers |= DEFT_NET_PTR_DMABUF;
    }
    support.copies = support.pointers == 0 ? nullptr : copies;
    return support;
}

const GpuSupport& process_gpu_support() {
    static const GpuSupport support = [] {
        const VerbsPorts& ports = first_verbs_ports();
        // Paths over UCX take host memory alone.
        const GpuSupport made =
            ports.empty() || Config::process().is(Key::Ucx, "on")
                ? GpuSupport{}
                : gpu_support(ports, sysfs_root(Config::process().text(Key::Sysfs)),
                              CudaMemory::process());
        if (!ports.empty()) {
            DEFT_INFO("GPU memory over RDMA: %s%s%s", made.pointers == 0 ? "no" : "",
                      (made.pointers & DEFT_NET_PTR_CUDA) != 0 ? "peer memory " : "",
                      (made.pointers & DEFT_NET_PTR_DMABUF) != 0 ? "dmabuf" : "");
        }
        return made;
    }();
    return support;
}

}  // namespace deft::net
