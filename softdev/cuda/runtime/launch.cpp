// SPDX-License-Identifier: Apache-2.0
// Runtime API: kernels. nvcc's host code registers the address of each kernel's stub with the
// mangled name and launches by that address; the CPU twin of that name runs.
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "softdev/cuda/runtime/runtime.h"

using softdev::runtime::finish;
using softdev::runtime::in_context;
using softdev::runtime::stream_of;

namespace {

struct HostKernel {
    std::string name;
};

struct Configuration {
    dim3 grid;
    dim3 block;
    std::size_t shared = 0;
    cudaStream_t stream = nullptr;
};

struct Registry {
    std::mutex mutex;
    std::map<const void*, HostKernel*> kernels;
    CUlibrary library = nullptr;
};

// Static constructors of the job fill it and its exit handlers may still ask: it is never
// destroyed.
Registry& registry() {
    static Registry* const value = new Registry;
    return *value;
}

std::vector<Configuration>& configurations() {
    thread_local std::vector<Configuration> value;
    return value;
}

HostKernel* kernel_at(const void* stub) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    const auto found = r.kernels.find(stub);
    return found != r.kernels.end() ? found->second : nullptr;
}

// Into the caller's own variable: other threads resolve the same kernel meanwhile.
CUresult resolve(const HostKernel& kernel, CUkernel& function) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    if (r.library == nullptr) {
        const CUresult result = cuLibraryLoadData(&r.library, "software device", nullptr, nullptr,
                                                  0, nullptr, nullptr, 0);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    // Each time: the twin may be registered, or replaced, at any moment.
    const CUresult result = cuLibraryGetKernel(&function, r.library, kernel.name.c_str());
    if (result == CUDA_ERROR_NOT_FOUND) {
        softdevReport("kernel %s has no CPU twin: softdevRegisterKernel(\"%s\", ...)",
                      kernel.name.c_str(), kernel.name.c_str());
        return static_cast<CUresult>(cudaErrorInvalidDeviceFunction);
    }
    return result;
}

cudaError_t launch(HostKernel* kernel, const Configuration& c, void** arguments) {
    if (kernel == nullptr) {
        return finish(cudaErrorInvalidDeviceFunction);
    }
    return in_context([&] {
        CUkernel function = nullptr;
        CUresult result = resolve(*kernel, function);
        if (result == CUDA_SUCCESS) {
            result =
                cuLaunchKernel(reinterpret_cast<CUfunction>(function), c.grid.x, c.grid.y, c.grid.z,
                               c.block.x, c.block.y, c.block.z, static_cast<unsigned>(c.shared),
                               stream_of(c.stream), arguments, nullptr);
            if (result == CUDA_ERROR_INVALID_VALUE) {
                result = static_cast<CUresult>(cudaErrorInvalidConfiguration);
            }
        }
        return result;
    });
}

}  // namespace

SOFTDEV_RUNTIME void** CUDARTAPI __cudaRegisterFatBinary(void*) {
    return new void*(nullptr);  // a handle is wanted; the image is not looked at
}
SOFTDEV_RUNTIME void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
SOFTDEV_RUNTIME void CUDARTAPI __cudaUnregisterFatBinary(void** handle) {
    delete handle;
}
SOFTDEV_RUNTIME char CUDARTAPI __cudaInitModule(void**) {
    return 1;
}
SOFTDEV_RUNTIME void CUDARTAPI __cudaRegisterVar(void**, char*, char*, const char*, int,
                                                 std::size_t, int, int) {}
SOFTDEV_RUNTIME void CUDARTAPI __cudaRegisterManagedVar(void**, void**, char*, const char*, int,
                                                        std::size_t, int, int) {}

SOFTDEV_RUNTIME void CUDARTAPI __cudaRegisterFunction(void**, const char* stub, char*,
                                                      const char* name, int, uint3*, uint3*, dim3*,
                                                      dim3*, int*) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    HostKernel*& kernel = r.kernels[stub];
    if (kernel == nullptr) {
        kernel = new HostKernel;
    }
    kernel->name = name;
}

SOFTDEV_RUNTIME unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                                               std::size_t shared,
                                                               cudaStream_t stream) {
    configurations().push_back({grid, block, shared, stream});
    return 0;
}

SOFTDEV_RUNTIME cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                                 std::size_t* shared,
                                                                 void* stream) {
    auto& all = configurations();
    if (all.empty()) {
        return finish(cudaErrorMissingConfiguration);
    }
    *grid = all.back().grid;
    *block = all.back().block;
    *shared = all.back().shared;
    *static_cast<cudaStream_t*>(stream) = all.back().stream;
    all.pop_back();
    return cudaSuccess;
}

SOFTDEV_RUNTIME cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* out, const void* stub) {
    HostKernel* kernel = kernel_at(stub);
    *out = reinterpret_cast<cudaKernel_t>(kernel);
    return kernel != nullptr ? cudaSuccess : finish(cudaErrorInvalidDeviceFunction);
}

SOFTDEV_RUNTIME cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                         void** arguments, std::size_t shared,
                                                         cudaStream_t stream) {
    return launch(reinterpret_cast<HostKernel*>(kernel), {grid, block, shared, stream}, arguments);
}

cudaError_t CUDARTAPI cudaGetFuncBySymbol(cudaFunction_t* function, const void* stub) {
    HostKernel* kernel = kernel_at(stub);
    if (function == nullptr || kernel == nullptr) {
        return finish(function == nullptr ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    }
    return in_context([&] {
        CUkernel resolved = nullptr;
        const CUresult result = resolve(*kernel, resolved);
        *function = reinterpret_cast<cudaFunction_t>(resolved);
        return result;
    });
}

cudaError_t CUDARTAPI cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments,
                                       std::size_t shared, cudaStream_t stream) {
    return launch(kernel_at(stub), {grid, block, shared, stream}, arguments);
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub,
                                          void** arguments) {
    if (config == nullptr) {
        return finish(cudaErrorInvalidValue);
    }
    return launch(kernel_at(stub),
                  {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                  arguments);
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
    if (attributes == nullptr || kernel_at(stub) == nullptr) {
        return finish(cudaErrorInvalidDeviceFunction);
    }
    *attributes = cudaFuncAttributes{};
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* stub, cudaFuncAttribute, int) {
    return kernel_at(stub) != nullptr ? cudaSuccess : finish(cudaErrorInvalidDeviceFunction);
}
