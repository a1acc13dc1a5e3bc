// SPDX-License-Identifier: Apache-2.0
// Runtime API: devices, versions, the implicit context.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "softdev/cuda/runtime/runtime.h"

namespace softdev::runtime {

ThreadState& thread_state() {
    thread_local ThreadState state;
    return state;
}

cudaError_t finish(cudaError_t result) {
    if (result != cudaSuccess) {
        thread_state().last_error = result;
    }
    return result;
}
cudaError_t finish(CUresult result) {
    return finish(static_cast<cudaError_t>(result));
}

namespace {

// The primary context of a device, kept from its first use on, as the runtime does.
CUresult primary(int device, CUcontext* context) {
    static std::mutex mutex;
    static auto* const kept = new std::map<int, CUcontext>;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kept->find(device);
    if (found != kept->end()) {
        *context = found->second;
        return CUDA_SUCCESS;
    }
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS) {
        result = cuDevicePrimaryCtxRetain(context, device);
    }
    if (result == CUDA_SUCCESS) {
        (*kept)[device] = *context;
    }
    return result;
}

CUresult make_current(int device) {
    CUcontext context = nullptr;
    const CUresult result = primary(device, &context);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

int attribute(CUdevice_attribute name, int device) {
    int value = 0;
    cuDeviceGetAttribute(&value, name, device);
    return value;
}

}  // namespace

CUresult ensure_context() {
    CUcontext current = nullptr;
    const CUresult result = cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current != nullptr) {
        return CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_INITIALIZED) {
        return result;
    }
    return make_current(thread_state().device);
}

CUstream stream_of(cudaStream_t stream) {
    return stream == nullptr && thread_state().per_thread_default ? CU_STREAM_PER_THREAD : stream;
}

}  // namespace softdev::runtime

using softdev::runtime::ensure_context;
using softdev::runtime::finish;
using softdev::runtime::in_context;
using softdev::runtime::thread_state;

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
    const CUresult ready = cuInit(0);
    return finish(ready != CUDA_SUCCESS ? ready : cuDeviceGetCount(count));
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
    const CUresult result = softdev::runtime::make_current(device);
    if (result == CUDA_SUCCESS) {
        thread_state().device = device;
    }
    return finish(result);
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned, unsigned) {
    CUcontext context = nullptr;
    return finish(softdev::runtime::primary(device, &context));
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
    if (device == nullptr) {
        return finish(cudaErrorInvalidValue);
    }
    CUcontext current = nullptr;
    CUdevice ordinal = thread_state().device;
    if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) {
        cuCtxGetDevice(&ordinal);
    }
    *device = ordinal;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
    const CUresult ready = cuInit(0);
    // The two enumerations have the same numbers.
    return finish(ready != CUDA_SUCCESS
                      ? ready
                      : cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(name), device));
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (p == nullptr) {
        return finish(cudaErrorInvalidValue);
    }
    std::memset(p, 0, sizeof *p);
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS) {
        result = cuDeviceGetName(p->name, sizeof p->name, device);
    }
    if (result != CUDA_SUCCESS) {
        return finish(result);
    }
    using softdev::runtime::attribute;
    CUuuid uuid;
    cuDeviceGetUuid(&uuid, device);
    std::memcpy(&p->uuid, &uuid, sizeof uuid);
    cuDeviceTotalMem(&p->totalGlobalMem, device);
    p->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    p->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    p->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    p->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    p->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    p->maxThreadsPerMultiProcessor =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    p->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
    p->sharedMemPerBlock = static_cast<std::size_t>(
        attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device));
    p->totalConstMem =
        static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, device));
    const CUdevice_attribute block[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                                        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
    const CUdevice_attribute grid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                                       CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                       CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
    for (int i = 0; i < 3; ++i) {
        p->maxThreadsDim[i] = attribute(block[i], device);
        p->maxGridSize[i] = attribute(grid[i], device);
    }
    p->pciDomainID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
    p->pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    p->pciDeviceID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
    p->asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
    p->unifiedAddressing = 1;
    p->canMapHostMemory = 1;
    p->concurrentKernels = 1;
    p->streamPrioritiesSupported = 1;
    p->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* text, int length, int device) {
    const CUresult ready = cuInit(0);
    return finish(ready != CUDA_SUCCESS ? ready : cuDeviceGetPCIBusId(text, length, device));
}

cudaError_t CUDARTAPI cudaDeviceGetByPCIBusId(int* device, const char* text) {
    const CUresult ready = cuInit(0);
    return finish(ready != CUDA_SUCCESS ? ready : cuDeviceGetByPCIBusId(device, text));
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    const CUresult ready = cuInit(0);
    return finish(ready != CUDA_SUCCESS ? ready : cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int, unsigned) {
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void) {
    return in_context([] { return cuCtxSynchronize(); });
}

cudaError_t CUDARTAPI cudaDeviceSetLimit(cudaLimit limit, std::size_t value) {
    return in_context([&] { return cuCtxSetLimit(static_cast<CUlimit>(limit), value); });
}

cudaError_t CUDARTAPI cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
    return in_context([&] { return cuCtxGetLimit(value, static_cast<CUlimit>(limit)); });
}

cudaError_t CUDARTAPI cudaDeviceReset(void) {
    int device = 0;
    cudaGetDevice(&device);
    const CUresult ready = cuInit(0);
    return finish(ready != CUDA_SUCCESS ? ready : cuDevicePrimaryCtxReset(device));
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
    if (version == nullptr) {
        return finish(cudaErrorInvalidValue);
    }
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
    return finish(cuDriverGetVersion(version));
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return in_context([&] { return cuCtxGetStreamPriorityRange(least, greatest); });
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                       unsigned version, unsigned long long flags,
                                                       cudaDriverEntryPointQueryResult* status) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result =
        cuGetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
    if (status != nullptr) {
        *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    }
    // Not found is told by the status and a null pointer.
    return finish(result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result);
}

cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** function,
                                              unsigned long long flags,
                                              cudaDriverEntryPointQueryResult* status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
