// SPDX-License-Identifier: Apache-2.0
// Driver API: initialisation and devices.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "softdev/cuda/kernels.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/thread.h"

using softdev::Call;

namespace {

bool known(CUdevice device) {
    return device >= 0 && device < softdev::settings().devices;
}

const std::string& place_of(CUdevice device) {
    return softdev::settings().places[static_cast<std::size_t>(device)];
}

// One of the hexadecimal numbers of "0000:01:00.0".
int pci_number(CUdevice device, std::size_t at) {
    return static_cast<int>(std::strtol(place_of(device).c_str() + at, nullptr, 16));
}

int attribute(CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
            return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
            return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            return 49152;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            return 101376;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            return 1536;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return 16;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
            return 1000000;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
            return 256;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return softdev::settings().compute / 10;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            return softdev::settings().compute % 10;
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
            return attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
                       ? (softdev::settings().pageable ? 1 : 0)
                       : 1;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
            return 2;
        case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
            return pci_number(device, 0);
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
            return pci_number(device, 5);
        case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
            return pci_number(device, 8);
        default:
            // About 150 attributes, most of them of features that are absent here: dma-buf,
            // multicast, NUMA.
            return 0;
    }
}

CUresult uuid_of(CUuuid* uuid, CUdevice device) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (uuid == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::memcpy(uuid->bytes, "softdev\0device\0", 16);
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuInit(unsigned flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    {
        SOFTDEV_CALL(call, Call::Needs::nothing);
        result = softdev::initialise();
    }
    if (result == CUDA_SUCCESS && !softdev::open_kernel_libraries()) {
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    }
    return result;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = softdev::settings().devices;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (device == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (name == nullptr || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(name, static_cast<std::size_t>(length), "Software device %d", device);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return uuid_of(uuid, device);
}
#undef cuDeviceGetUuid
SOFTDEV_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return uuid_of(uuid, device);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (bytes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = softdev::settings().memory_bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (value == nullptr || name <= 0 || name >= CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute(name, device);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (text == nullptr || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(text, static_cast<std::size_t>(length), "%s", place_of(device).c_str());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (device == nullptr || text == nullptr ||
        std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char place[32];
    std::snprintf(place, sizeof place, "%04x:%02x:%02x.0", domain, bus, slot);
    const auto& places = softdev::settings().places;
    const auto found = std::find(places.begin(), places.end(), place);
    if (found == places.end()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = static_cast<CUdevice>(found - places.begin());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (can == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!known(device) || !known(peer)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *can = device != peer ? 1 : 0;
    return CUDA_SUCCESS;
}
