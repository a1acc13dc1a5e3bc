// SPDX-License-Identifier: Apache-2.0
// libnvidia-ml.so.1 of the software device: what NCCL asks about GPUs, answered for those of
// libcuda. A device's handle is its number plus one.
#include <cuda.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "softdev/nvml/nvml_abi.h"

namespace {

using Device = softdev_nvml_device_t;
using Result = int;

constexpr unsigned kMostLinks = 18;      // of an H100
constexpr unsigned kLinkMbytes = 26562;  // its speed of one link

int device_count() {
    int count = 0;
    return cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

// -1 for a foreign handle.
int ordinal(Device device) {
    const auto number = reinterpret_cast<std::intptr_t>(device);
    return number >= 1 && number <= device_count() ? static_cast<int>(number) - 1 : -1;
}

Device handle(int number) {
    return reinterpret_cast<Device>(static_cast<std::intptr_t>(number) + 1);
}

// SOFTDEV_NVLINK: how many links each GPU has; they are dealt out to the other GPUs in turn.
unsigned links() {
    const char* const text = std::getenv("SOFTDEV_NVLINK");
    unsigned count = 0;
    if (text != nullptr) {
        const std::string_view all = text;
        std::from_chars(all.data(), all.data() + all.size(), count);
    }
    return device_count() > 1 && count <= kMostLinks ? count : 0;
}

// "12@switch": all of them lead to an NVSwitch, which no PCI device stands for, as in a virtual
// machine.
bool switched() {
    const char* const text = std::getenv("SOFTDEV_NVLINK");
    return text != nullptr && std::string_view(text).ends_with("@switch");
}

// SOFTDEV_CLIQUE: the number of the clique in an NVLink domain, the same cluster for all; -1: there
// is no domain.
int clique() {
    const char* const text = std::getenv("SOFTDEV_CLIQUE");
    int number = -1;
    if (text != nullptr) {
        const std::string_view all = text;
        std::from_chars(all.data(), all.data() + all.size(), number);
    }
    return number;
}

int peer_of(int number, unsigned link) {
    const int others = device_count() - 1;
    const int step = static_cast<int>(link) % others + 1;
    return (number + step) % (others + 1);
}

struct Place {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
};

bool place_of(int number, Place& place) {
    char text[32] = {};
    return cuDeviceGetPCIBusId(text, sizeof text, number) == CUDA_SUCCESS &&
           std::sscanf(text, "%x:%x:%x", &place.domain, &place.bus, &place.device) == 3;
}

constexpr unsigned kPciId = 0x233010de;  // NVIDIA's vendor number, and H100's of the device

Result describe(int number, softdev_nvml_pci* out) {
    Place place;
    if (out == nullptr || number < 0 || !place_of(number, place)) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    std::memset(out, 0, sizeof *out);
    static_assert(sizeof *out == 52);
    std::snprintf(out->bus_id, sizeof out->bus_id, "%04X:%02X:%02X.0", place.domain & 0xffff,
                  place.bus & 0xff, place.device & 0x1f);
    out->domain = place.domain;
    out->bus = place.bus;
    out->device = place.device;
    out->pci_device_id = kPciId;
    return SOFTDEV_NVML_SUCCESS;
}

Result known(Device device) {
    return ordinal(device) >= 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_INVALID_ARGUMENT;
}

Result answer(softdev_nvml_field& field) {
    switch (field.field) {
        case SOFTDEV_NVML_FIELD_NVLINK_COUNT:
            field.value.u = links();
            return SOFTDEV_NVML_SUCCESS;
        case SOFTDEV_NVML_FIELD_NVLINK_SPEED:
        case SOFTDEV_NVML_FIELD_NVLINK_GET_SPEED:
            field.value.u = kLinkMbytes;
            return links() > 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_NOT_SUPPORTED;
        case SOFTDEV_NVML_FIELD_NVLINK_GET_STATE:
            field.value.u = field.scope < links() ? 1 : 0;
            return links() > 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_NOT_SUPPORTED;
        case SOFTDEV_NVML_FIELD_C2C_COUNT:
            field.value.u = 0;
            return SOFTDEV_NVML_SUCCESS;
        default:
            return SOFTDEV_NVML_NOT_SUPPORTED;
    }
}

}  // namespace

#define SOFTDEV_NVML_FUNCTION extern "C" SOFTDEV_NVML

SOFTDEV_NVML_FUNCTION Result nvmlInit_v2() {
    return cuInit(0) == CUDA_SUCCESS ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_UNKNOWN;
}
SOFTDEV_NVML_FUNCTION Result nvmlInit() {
    return nvmlInit_v2();
}
SOFTDEV_NVML_FUNCTION Result nvmlShutdown() {
    return SOFTDEV_NVML_SUCCESS;
}

SOFTDEV_NVML_FUNCTION const char* nvmlErrorString(Result result) {
    switch (result) {
        case SOFTDEV_NVML_SUCCESS:
            return "Success";
        case SOFTDEV_NVML_UNINITIALIZED:
            return "Uninitialized";
        case SOFTDEV_NVML_INVALID_ARGUMENT:
            return "Invalid Argument";
        case SOFTDEV_NVML_NOT_SUPPORTED:
            return "Not Supported";
        case SOFTDEV_NVML_NOT_FOUND:
            return "Not Found";
        default:
            return "Unknown Error";
    }
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetCount_v2(unsigned* count) {
    if (count == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *count = static_cast<unsigned>(device_count());
    return SOFTDEV_NVML_SUCCESS;
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetCount(unsigned* count) {
    return nvmlDeviceGetCount_v2(count);
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
    if (device == nullptr || index >= static_cast<unsigned>(device_count())) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *device = handle(static_cast<int>(index));
    return SOFTDEV_NVML_SUCCESS;
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetHandleByIndex(unsigned index, Device* device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
    Place wanted;
    if (device == nullptr || bus_id == nullptr ||
        std::sscanf(bus_id, "%x:%x:%x", &wanted.domain, &wanted.bus, &wanted.device) != 3) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    for (int number = 0; number < device_count(); ++number) {
        Place place;
        if (place_of(number, place) && place.domain == wanted.domain && place.bus == wanted.bus &&
            place.device == wanted.device) {
            *device = handle(number);
            return SOFTDEV_NVML_SUCCESS;
        }
    }
    return SOFTDEV_NVML_NOT_FOUND;
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetHandleByPciBusId(const char* bus_id, Device* device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetIndex(Device device, unsigned* index) {
    if (index == nullptr || ordinal(device) < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *index = static_cast<unsigned>(ordinal(device));
    return SOFTDEV_NVML_SUCCESS;
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetUUID(Device device, char* text, unsigned length) {
    CUuuid uuid;
    if (text == nullptr || ordinal(device) < 0 ||
        cuDeviceGetUuid(&uuid, ordinal(device)) != CUDA_SUCCESS) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
    std::snprintf(text, length,
                  "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                  b[14], b[15]);
    return SOFTDEV_NVML_SUCCESS;
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetPciInfo_v3(Device device, softdev_nvml_pci* out) {
    return describe(ordinal(device), out);
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetCudaComputeCapability(Device device, int* major,
                                                                int* minor) {
    const int number = ordinal(device);
    if (major == nullptr || minor == nullptr || number < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number);
    cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number);
    return SOFTDEV_NVML_SUCCESS;
}

// Every GPU reaches every other: their memory is one process's, or there is no peer at all.
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetP2PStatus(Device one, Device other, int, int* status) {
    if (status == nullptr || ordinal(one) < 0 || ordinal(other) < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *status = 0;
    return SOFTDEV_NVML_SUCCESS;
}

// ---- PCI Express --------------------------------------------------------------------------------

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetPcieLinkMaxSpeed(Device device, unsigned* speed) {
    if (speed == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *speed = 16000;  // Mbit/s of a lane
    return known(device);
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* gen) {
    if (gen == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *gen = 4;
    return known(device);
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned* width) {
    if (width == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *width = 16;
    return known(device);
}

// ---- NVLink -------------------------------------------------------------------------------------

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetNvLinkState(Device device, unsigned link, int* active) {
    if (active == nullptr || ordinal(device) < 0 || link >= kMostLinks) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *active = link < links() ? 1 : 0;
    return links() > 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_NOT_SUPPORTED;
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetNvLinkCapability(Device device, unsigned link, int,
                                                           unsigned* capable) {
    if (capable == nullptr || ordinal(device) < 0 || link >= kMostLinks) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *capable = link < links() ? 1 : 0;
    return links() > 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_NOT_SUPPORTED;
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetNvLinkRemotePciInfo(Device device, unsigned link,
                                                              softdev_nvml_pci* out) {
    const int number = ordinal(device);
    if (out == nullptr || number < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    return link < links() && !switched() ? describe(peer_of(number, link), out)
                                         : static_cast<Result>(SOFTDEV_NVML_NOT_SUPPORTED);
}

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetFieldValues(Device device, int count,
                                                      softdev_nvml_field* fields) {
    if (fields == nullptr || ordinal(device) < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    for (int i = 0; i < count; ++i) {
        fields[i].value_type = SOFTDEV_NVML_VALUE_UNSIGNED;
        fields[i].value.ull = 0;
        fields[i].result = answer(fields[i]);
    }
    return SOFTDEV_NVML_SUCCESS;
}

// ---- fabric, and what is not there
// --------------------------------------------------------------------------

SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetGpuFabricInfoV(Device device, softdev_nvml_fabric* out) {
    if (out == nullptr || ordinal(device) < 0) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    const unsigned version = out->version;
    std::memset(out, 0, sizeof *out);
    out->version = version;
    if (const int number = clique(); number >= 0) {
        std::memset(out->cluster_uuid, 0x5d, sizeof out->cluster_uuid);
        out->clique = static_cast<unsigned>(number);
        out->state = SOFTDEV_NVML_FABRIC_COMPLETED;
    }
    return SOFTDEV_NVML_SUCCESS;
}
SOFTDEV_NVML_FUNCTION Result nvmlDeviceGetPlatformInfo(Device, void*) {
    return SOFTDEV_NVML_NOT_SUPPORTED;
}
SOFTDEV_NVML_FUNCTION Result
nvmlSystemGetConfComputeSettings(softdev_nvml_confidential_settings* settings) {
    if (settings == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *settings = {settings->version, 0, 0, 0, 0};
    return SOFTDEV_NVML_SUCCESS;
}
SOFTDEV_NVML_FUNCTION Result nvmlSystemGetConfComputeState(softdev_nvml_confidential_state* state) {
    if (state == nullptr) {
        return SOFTDEV_NVML_INVALID_ARGUMENT;
    }
    *state = {};
    return SOFTDEV_NVML_SUCCESS;
}
