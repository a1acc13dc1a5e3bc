// SPDX-License-Identifier: Apache-2.0
// NVLinks of a host's GPUs: where they lead, and what they carry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deft::discovery {

enum class NvLinkEnd { Gpu, Switch, Cpu, Other };
const char* to_string(NvLinkEnd end);

// The NVLinks of one GPU that lead to the same device.
struct NvLinks {
    NvLinkEnd end = NvLinkEnd::Other;
    std::string target;  // PCI address of that device; empty: not told, as of switches in VMs
    int count = 0;
    double gbytes = 0;  // all of them together, one direction, GB/s; 0: not known
};

// What NCCL counts one NVLink of this compute capability ("90": 9.0) with, in GB/s one way; 0 for a
// GPU that has none.
double nccl_nvlink_rate(int sm);

// What a PCI class ("0x068000") makes of the device at the other end. NCCL takes what has no
// class, or one that nobody knows, for a switch.
NvLinkEnd nvlink_end(std::uint32_t pci_class);

// The compute capability of NVIDIA's PCI device number ("0x20b0": 80); 0 if it is not known.
int nvidia_capability(std::uint32_t device);

struct Gpu;
struct Machine;

// NVLinks whose target is a GPU of this host lead to a GPU, whatever class the source gave it.
void recognise_gpus(Machine& machine);

// hwloc's matrix "NVLinkBandwidth".
struct NvLinkMatrix {
    struct Object {
        NvLinkEnd end = NvLinkEnd::Other;
        std::string address;  // of a GPU or a switch
    };
    std::vector<Object> objects;
    std::vector<std::uint64_t> mbytes;  // MB/s from each object to each other, row by row
};
// Adds its links to the GPUs. hwloc counts 20 GB/s for a link of the first release and 25 for
// others, which gives the number of links.
void add_nvlinks(const NvLinkMatrix& matrix, Machine& machine);

}  // namespace deft::discovery
