// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library, opened where the host has it. Numbers and layouts are those of
// NVIDIA's NVML API reference (release 580); the header comes with no package that a build needs.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "topology/discovery/machine.h"

namespace deft::discovery {
namespace {

constexpr int kSuccess = 0;
constexpr unsigned kMostLinks = 36;
constexpr int kCanPeer = 0;            // capability: access to the other GPU's memory
constexpr unsigned kCommonSpeed = 90;  // field: MB/s of each link
constexpr unsigned kSpeed = 164;       // field: MB/s of one link
constexpr unsigned kState = 165;       // field: 1 if the link is up
constexpr int kRemoteGpu = 0;
constexpr int kRemoteSwitch = 2;
constexpr unsigned char kFabricCompleted = 3;

using Device = void*;

// Both forms of the structure begin so; the longer one has 68 bytes.
struct Pci {
    char legacy_id[16];
    unsigned domain, bus, device, pci_device_id, subsystem_id;
    char rest[64];
};

struct Field {
    unsigned field;
    unsigned scope;  // the link
    long long timestamp_us, latency_us;
    int value_type;
    int result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

struct Fabric {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};
constexpr unsigned kFabricVersion = sizeof(Fabric) | 2U << 24;

struct Library {
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    const char* (*error_text)(int) = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*by_index)(unsigned, Device*) = nullptr;
    int (*pci)(Device, Pci*) = nullptr;
    // May be missing.
    int (*name)(Device, char*, unsigned) = nullptr;
    int (*uuid)(Device, char*, unsigned) = nullptr;
    int (*capability)(Device, int*, int*) = nullptr;
    int (*link_state)(Device, unsigned, int*) = nullptr;
    int (*link_capability)(Device, unsigned, int, unsigned*) = nullptr;
    int (*link_remote)(Device, unsigned, Pci*) = nullptr;
    int (*link_remote_type)(Device, unsigned, int*) = nullptr;
    int (*fields)(Device, int, Field*) = nullptr;
    int (*fabric)(Device, Fabric*) = nullptr;
};

template <class Function>
bool look_up(void* file, Function& function, const char* name, const char* older = nullptr) {
    void* found = ::dlsym(file, name);
    if (found == nullptr && older != nullptr) {
        found = ::dlsym(file, older);
    }
    function = reinterpret_cast<Function>(found);
    return found != nullptr;
}

// Nothing, and why, where there is no such library, or one that cannot be used. Never closed.
std::optional<Library> load(std::string& problem) {
    void* const file = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
        const char* const why = ::dlerror();
        problem = why != nullptr ? why : "libnvidia-ml.so.1 cannot be opened";
        return std::nullopt;
    }
    Library nvml;
    if (!look_up(file, nvml.init, "nvmlInit_v2", "nvmlInit") ||
        !look_up(file, nvml.shutdown, "nvmlShutdown") ||
        !look_up(file, nvml.error_text, "nvmlErrorString") ||
        !look_up(file, nvml.count, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount") ||
        !look_up(file, nvml.by_index, "nvmlDeviceGetHandleByIndex_v2",
                 "nvmlDeviceGetHandleByIndex") ||
        !look_up(file, nvml.pci, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2")) {
        problem = "libnvidia-ml.so.1 lacks functions";
        return std::nullopt;
    }
    look_up(file, nvml.name, "nvmlDeviceGetName");
    look_up(file, nvml.uuid, "nvmlDeviceGetUUID");
    look_up(file, nvml.capability, "nvmlDeviceGetCudaComputeCapability");
    look_up(file, nvml.link_state, "nvmlDeviceGetNvLinkState");
    look_up(file, nvml.link_capability, "nvmlDeviceGetNvLinkCapability");
    look_up(file, nvml.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            "nvmlDeviceGetNvLinkRemotePciInfo");
    look_up(file, nvml.link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
    look_up(file, nvml.fields, "nvmlDeviceGetFieldValues");
    look_up(file, nvml.fabric, "nvmlDeviceGetGpuFabricInfoV");
    return nvml;
}

std::string address_of(const Pci& pci) {
    return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

std::optional<unsigned> field(const Library& nvml, Device device, unsigned number, unsigned scope) {
    Field field{};
    field.field = number;
    field.scope = scope;
    if (nvml.fields == nullptr || nvml.fields(device, 1, &field) != kSuccess ||
        field.result != kSuccess) {
        return std::nullopt;
    }
    return field.value.u;
}

bool link_up(const Library& nvml, Device device, unsigned link) {
    unsigned able = 1;
    if (nvml.link_capability != nullptr &&
        nvml.link_capability(device, link, kCanPeer, &able) == kSuccess && able == 0) {
        return false;
    }
    int up = 0;
    if (nvml.link_state != nullptr && nvml.link_state(device, link, &up) == kSuccess) {
        return up == 1;
    }
    return field(nvml, device, kState, link) == 1U;
}

// GPUs are recognised by their addresses later; what is neither is a switch, as for NCCL, of which
// a virtual machine sees nothing.
NvLinks other_end(const Library& nvml, Device device, unsigned link) {
    NvLinks links;
    links.end = NvLinkEnd::Switch;
    links.count = 1;
    Pci pci{};
    if (nvml.link_remote != nullptr && nvml.link_remote(device, link, &pci) == kSuccess) {
        links.target = address_of(pci);
        std::string text;
        if (read_sysfs("/sys/bus/pci/devices/" + links.target + "/class", text)) {
            links.end =
                nvlink_end(static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 16)));
        }
    }
    int type = -1;
    if (nvml.link_remote_type != nullptr &&
        nvml.link_remote_type(device, link, &type) == kSuccess) {
        links.end = type == kRemoteGpu      ? NvLinkEnd::Gpu
                    : type == kRemoteSwitch ? NvLinkEnd::Switch
                                            : links.end;
    }
    return links;
}

void read_links(const Library& nvml, Device device, Gpu& gpu) {
    std::vector<NvLinks> found;
    for (unsigned link = 0; link < kMostLinks; ++link) {
        if (!link_up(nvml, device, link)) {
            continue;
        }
        NvLinks one = other_end(nvml, device, link);
        const std::optional<unsigned> speed = field(nvml, device, kSpeed, link);
        one.gbytes = speed.value_or(field(nvml, device, kCommonSpeed, 0).value_or(0)) / 1000.0;
        const auto same = std::find_if(found.begin(), found.end(), [&](const NvLinks& other) {
            return other.end == one.end && other.target == one.target;
        });
        if (same == found.end()) {
            found.push_back(std::move(one));
        } else {
            ++same->count;
            same->gbytes += one.gbytes;
        }
    }
    if (!found.empty()) {
        gpu.nvlinks = std::move(found);  // newer than hwloc's
        gpu.nvlink_source = "nvml";
    }
}

void read_fabric(const Library& nvml, Device device, Gpu& gpu) {
    Fabric fabric{};
    fabric.version = kFabricVersion;
    if (nvml.fabric == nullptr || nvml.fabric(device, &fabric) != kSuccess ||
        fabric.state != kFabricCompleted || fabric.status != kSuccess) {
        return;
    }
    std::string uuid;
    for (std::size_t i = 0; i < sizeof fabric.cluster; ++i) {
        uuid += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                            fabric.cluster[i]);
    }
    if (uuid.find_first_not_of("0-") != uuid.npos) {
        gpu.cluster = uuid;
        gpu.clique = fabric.clique;
    }
}

std::string text_of(int (*ask)(Device, char*, unsigned), Device device) {
    std::array<char, 128> text{};
    const bool told =
        ask != nullptr && ask(device, text.data(), static_cast<unsigned>(text.size())) == kSuccess;
    return told ? std::string(text.data(), ::strnlen(text.data(), text.size())) : "";
}

void read_gpu(const Library& nvml, Device device, Gpu& gpu) {
    const std::string name = text_of(nvml.name, device);
    gpu.model = name.empty() ? gpu.model : name;
    gpu.uuid = text_of(nvml.uuid, device);
    int major = 0;
    int minor = 0;
    if (nvml.capability != nullptr && nvml.capability(device, &major, &minor) == kSuccess) {
        gpu.sm = major * 10 + minor;
    }
    read_links(nvml, device, gpu);
    read_fabric(nvml, device, gpu);
}

// The GPU at this place; made where neither hwloc nor sysfs shows it.
Gpu& gpu_at(Machine& machine, const std::string& address) {
    for (Gpu& gpu : machine.gpus) {
        if (gpu.pci.address == address) {
            return gpu;
        }
    }
    Gpu& made = machine.gpus.emplace_back();
    made.pci.address = address;
    return made;
}

}  // namespace

void read_nvml(Machine& machine) {
    std::string problem;
    const std::optional<Library> nvml = load(problem);
    if (!nvml) {
        // A host without GPUs needs none.
        if (!machine.gpus.empty() || !problem.ends_with("No such file or directory")) {
            machine.notes.push_back("NVML: " + problem + ": NVLinks are not known");
        }
        return;
    }
    if (const int result = nvml->init(); result != kSuccess) {
        const char* const text = nvml->error_text(result);
        machine.notes.push_back(fmt::format("NVML: {}: NVLinks are not known",
                                            text != nullptr ? text : std::to_string(result)));
        return;
    }
    unsigned count = 0;
    nvml->count(&count);
    std::set<std::string> seen;
    for (unsigned i = 0; i < std::min<std::size_t>(count, kMostGpus); ++i) {
        Device device = nullptr;
        Pci pci{};
        if (nvml->by_index(i, &device) == kSuccess && nvml->pci(device, &pci) == kSuccess) {
            const std::string address = address_of(pci);
            seen.insert(address);
            read_gpu(*nvml, device, gpu_at(machine, address));
        }
    }
    nvml->shutdown();
    for (Gpu& gpu : machine.gpus) {
        gpu.hidden = !seen.contains(gpu.pci.address);
    }
    recognise_gpus(machine);
}

}  // namespace deft::discovery
