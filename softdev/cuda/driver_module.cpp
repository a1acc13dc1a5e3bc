// SPDX-License-Identifier: Apache-2.0
// Driver API: modules, libraries, functions and launches. Images are not looked at: a kernel is
// known by its name.
#include <cstring>
#include <map>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/kernels.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;

namespace {

// A CUfunction and a CUkernel are the same thing here.
struct Function {
    std::string name;
    std::shared_ptr<softdev::Kernel> kernel;
    void* owner = nullptr;
};

struct Module {
    std::map<std::string, void*> functions;
    bool library = false;
};

struct Modules {
    softdev::HandleTable<Module, softdev::HandleKind::module> modules;
    softdev::HandleTable<Function, softdev::HandleKind::function> functions;
};

Modules& modules() {
    static Modules* const value = new Modules;
    return *value;
}

CUresult load(const char* name, void** handle, const void* image, bool library) {
    Call call(name, library ? Call::Needs::driver : Call::Needs::context);
    if (call.refused()) {
        return call.result();
    }
    if (handle == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    auto module = std::make_shared<Module>();
    module->library = library;
    *handle = modules().modules.add(module);
    return CUDA_SUCCESS;
}

CUresult unload(const char* name, void* handle) {
    Call call(name, Call::Needs::driver);
    if (call.refused()) {
        return call.result();
    }
    const auto module = modules().modules.remove(handle);
    if (module == nullptr) {
        softdev::report("%s: %p is no module, or unloaded", name, handle);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const auto& [function_name, function] : module->functions) {
        modules().functions.remove(function);
    }
    return CUDA_SUCCESS;
}

CUresult get_function(const char* name, void** out, void* handle, const char* function_name) {
    Call call(name, Call::Needs::driver);
    if (call.refused()) {
        return call.result();
    }
    Module* module = modules().modules.find(handle);
    if (out == nullptr || function_name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = nullptr;
    if (module == nullptr) {
        softdev::report("%s: %p is no module, or unloaded", name, handle);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    auto kernel = softdev::find_kernel(function_name);
    if (kernel == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    void*& known = module->functions[function_name];
    if (known == nullptr) {
        auto function = std::make_shared<Function>();
        function->name = function_name;
        function->owner = handle;
        known = modules().functions.add(function);
    }
    modules().functions.find(known)->kernel = std::move(kernel);
    *out = known;
    return CUDA_SUCCESS;
}

struct Shape {
    unsigned grid[3];
    unsigned block[3];
};

CUresult launch(const char* name, CUfunction handle, const Shape& shape, CUstream stream_handle,
                void** parameters, void** extra) {
    std::shared_ptr<softdev::Arguments> arguments;
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const softdev::StreamPtr stream = call.stream(stream_handle);
    if (stream == nullptr) {
        return call.result();
    }
    const Function* function = modules().functions.find(handle);
    if (function == nullptr) {
        softdev::report("%s: %p is no function, or its module is unloaded", name,
                        static_cast<void*>(handle));
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::shared_ptr<softdev::Kernel> kernel = function->kernel;
    // As cuDeviceGetAttribute says.
    constexpr unsigned kMostBlocks[3] = {2147483647, 65535, 65535};
    constexpr unsigned kMostThreads[3] = {1024, 1024, 64};
    std::size_t threads = 1;
    for (int i = 0; i < 3; ++i) {
        threads *= shape.block[i];
        if (shape.grid[i] == 0 || shape.block[i] == 0 || shape.grid[i] > kMostBlocks[i] ||
            shape.block[i] > kMostThreads[i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (threads > 1024 || (parameters != nullptr && extra != nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (extra != nullptr) {
        const void* buffer = nullptr;
        std::size_t bytes = 0;
        for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
            if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                buffer = item[1];
            } else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                bytes = *static_cast<std::size_t*>(item[1]);
            } else {
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
        arguments = std::make_shared<softdev::Arguments>(*kernel, buffer, bytes);
    } else {
        if (parameters == nullptr && kernel->sizes && !kernel->sizes->empty()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        arguments = std::make_shared<softdev::Arguments>(*kernel, parameters);
    }
    const bool wait = arguments->borrowed() && parameters != nullptr;
    if (wait && stream->capture != nullptr) {
        softdev::report(
            "%s: %s cannot be captured: the sizes of its parameters are unknown "
            "(softdevRegisterKernelSized)",
            name, kernel->name.c_str());
        return softdev::invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    softdev_access_t accesses[16];
    softdev::Work work;
    work.label = "kernel " + kernel->name;
    if (kernel->accesses != nullptr) {
        work.accesses.list = accesses;
        work.accesses.count = std::min<std::size_t>(
            kernel->accesses(shape.grid, shape.block, arguments->pointers(), accesses, 16), 16);
    }
    work.task = softdev::make_task([kernel, arguments, shape] {
        kernel->fn(shape.grid, shape.block, arguments->pointers());
        return CUDA_SUCCESS;
    });
    softdev::OpPtr op;
    const CUresult result = softdev::submit(call, stream, std::move(work), &op);
    return result == CUDA_SUCCESS && wait ? softdev::wait_for(call.lock(), op, name) : result;
}

}  // namespace

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
    return load(__func__, reinterpret_cast<void**>(module), image, false);
}
CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                    void**) {
    return load(__func__, reinterpret_cast<void**>(module), image, false);
}
CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return load(__func__, reinterpret_cast<void**>(module), image, false);
}
CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                                   unsigned, CUlibraryOption*, void**, unsigned) {
    return load(__func__, reinterpret_cast<void**>(library), code, true);
}
CUresult CUDAAPI cuModuleUnload(CUmodule module) {
    return unload(__func__, module);
}
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
    return unload(__func__, library);
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    if (mode == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return get_function(__func__, reinterpret_cast<void**>(function), module, name);
}
CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    return get_function(__func__, reinterpret_cast<void**>(kernel), library, name);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (module == nullptr || modules().modules.find(library) == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *module = reinterpret_cast<CUmodule>(library);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    SOFTDEV_CALL(call);
    if (function == nullptr || modules().functions.find(kernel) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const Function* function = modules().functions.find(handle);
    if (name == nullptr || function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *name = function->name.c_str();
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel kernel) {
    return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (value == nullptr || modules().functions.find(handle) == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute, int) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    return modules().functions.find(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned, CUstream stream, void** parameters,
                                void** extra) {
    return launch(__func__, function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}},
                  stream, parameters, extra);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                  void** parameters, void** extra) {
    if (config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        // Recorded when all blocks have begun: here, when the kernel's turn comes. Other attributes
        // say how fast it should be.
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            const CUresult recorded =
                cuEventRecord(config->attrs[i].value.launchCompletionEvent.event, config->hStream);
            if (recorded != CUDA_SUCCESS) {
                return recorded;
            }
        }
    }
    return launch(__func__, function,
                  {{config->gridDimX, config->gridDimY, config->gridDimZ},
                   {config->blockDimX, config->blockDimY, config->blockDimZ}},
                  config->hStream, parameters, extra);
}
