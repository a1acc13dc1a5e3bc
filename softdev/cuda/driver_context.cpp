// SPDX-License-Identifier: Apache-2.0
// Driver API: primary contexts and the context stack of each thread.
#include "softdev/cuda/capture.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::Context;
using softdev::device;
using softdev::thread_state;

namespace {

Context* primary(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < softdev::settings().devices
               ? softdev::device().primary[static_cast<std::size_t>(ordinal)].get()
               : nullptr;
}

void activate(Context& context) {
    if (!context.active) {
        context.active = true;
        context.sticky = CUDA_SUCCESS;
        if (context.legacy == nullptr) {
            softdev::create_stream(context, softdev::StreamKind::legacy, CU_STREAM_DEFAULT, 0);
        }
    }
}

// Ends the context: its work first, then its streams. Its memory goes when it is used no more, as
// on a GPU.
CUresult deactivate(Call& call, Context& context) {
    const CUresult result = softdev::synchronize_context(call.lock(), context, call.name());
    const auto streams = context.streams;
    for (const auto& stream : streams) {
        softdev::destroy_stream(stream);
    }
    context.active = false;
    context.references = 0;
    return result;
}

// Creates a context that is not a device's primary one, and makes it current.
CUresult create(const char* name, CUcontext* handle, unsigned flags, CUdevice ordinal) {
    Call call(name, Call::Needs::driver);
    if (call.refused()) {
        return call.result();
    }
    if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (primary(ordinal) == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    auto context = std::make_shared<Context>();
    context->device = ordinal;
    context->flags = flags;
    context->primary = false;
    context->handle = static_cast<CUcontext>(device().contexts.add(context));
    device().primary.push_back(context);  // lives as long as threads may have it on their stacks
    activate(*context);
    thread_state().stack.push_back(context.get());
    *handle = context->handle;
    return CUDA_SUCCESS;
}

Context* context_of(CUcontext handle) {
    return device().contexts.find(handle);
}

}  // namespace

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (handle == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Context* context = primary(ordinal);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    ++context->references;
    activate(*context);
    *handle = context->handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = primary(ordinal);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (context->references == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--context->references == 0) {
        return deactivate(call, *context);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = primary(ordinal);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (context->active) {
        const unsigned references = context->references;
        deactivate(call, *context);
        context->references = references;
        context->sticky = CUDA_SUCCESS;
        // Threads that have it current find it usable again, as with the runtime's cudaDeviceReset.
        if (references > 0) {
            activate(*context);
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = primary(ordinal);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const Context* context = primary(ordinal);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == nullptr || active == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = context->flags;
    *active = context->active ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (handle == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& stack = thread_state().stack;
    *handle = stack.empty() || stack.back() == nullptr ? nullptr : stack.back()->handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    auto& stack = thread_state().stack;
    Context* context = nullptr;
    if (handle != nullptr) {
        context = context_of(handle);
        if (context == nullptr || !context->active) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    // Replaces the top of the stack; NULL pops it.
    if (!stack.empty()) {
        stack.pop_back();
    }
    if (context != nullptr) {
        stack.push_back(context);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = context_of(handle);
    if (context == nullptr || !context->active) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    thread_state().stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    auto& stack = thread_state().stack;
    if (stack.empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (handle != nullptr) {
        *handle = stack.back()->handle;
    }
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* ordinal) {
    SOFTDEV_CALL(call);
    if (ordinal == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ordinal = call.context().device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned* flags) {
    SOFTDEV_CALL(call);
    if (flags == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = call.context().flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (handle != nullptr && context_of(handle) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, std::size_t value) {
    SOFTDEV_CALL(call);
    if (limit < 0 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    call.context().limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(std::size_t* value, CUlimit limit) {
    SOFTDEV_CALL(call);
    if (value == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto set = call.context().limits.find(limit);
    *value = set != call.context().limits.end() ? set->second : 1024;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    SOFTDEV_CALL(call);
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    return softdev::synchronize_context(call.lock(), call.context(), call.name());
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    SOFTDEV_CALL(call);
    if (least != nullptr) {
        *least = 0;
    }
    if (greatest != nullptr) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* ordinal, CUcontext handle) {
    if (handle == nullptr) {
        return cuCtxGetDevice(ordinal);
    }
    SOFTDEV_CALL(call, Call::Needs::driver);
    const Context* context = context_of(handle);
    if (ordinal == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (context == nullptr || !context->active) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *ordinal = context->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
    if (handle == nullptr) {
        return cuCtxSynchronize();
    }
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = context_of(handle);
    if (context == nullptr || !context->active) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    return softdev::synchronize_context(call.lock(), *context, call.name());
}

#undef cuCtxCreate
SOFTDEV_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext* handle, unsigned flags,
                                               CUdevice ordinal) {
    return create(__func__, handle, flags, ordinal);
}
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams* parameters, unsigned flags,
                                CUdevice ordinal) {
    // Execution affinity and CIG contexts do not exist here.
    return parameters != nullptr ? CUDA_ERROR_NOT_SUPPORTED
                                 : create(__func__, handle, flags, ordinal);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Context* context = context_of(handle);
    if (context == nullptr || context->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const CUresult result = deactivate(call, *context);
    auto& stack = thread_state().stack;
    if (!stack.empty() && stack.back() == context) {
        stack.pop_back();
    }
    return result;
}
