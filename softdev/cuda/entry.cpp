// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: the entry point that a name means for a CUDA version and a default stream.
#include <cstring>
#include <string>

#include "softdev/cuda/thread.h"

// Only addresses are needed: a name of its own for each, so that cuda.h's macros do not get in the
// way.
#define X(name, version, symbol) extern "C" void entry_##symbol() __asm__("cu" #symbol);
#define P(name, version, symbol) X(name, version, symbol)
#include "softdev/cuda/entry_points.def"
#undef X
#undef P

namespace {

struct Entry {
    const char* name;
    int version;
    void (*function)();
    bool per_thread;
};

constexpr Entry kEntries[] = {
#define X(name, version, symbol) {"cu" #name, version, entry_##symbol, false},
#define P(name, version, symbol) {"cu" #name, version, entry_##symbol, true},
#include "softdev/cuda/entry_points.def"
#undef X
#undef P
};

CUresult look_up(const char* symbol, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
    const cuuint64_t both =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol == nullptr || function == nullptr || *symbol == '\0' || (flags & ~both) != 0 ||
        flags == both) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = nullptr;
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    bool known = false;
    const Entry* best = nullptr;
    const Entry* best_per_thread = nullptr;
    for (const Entry& entry : kEntries) {
        if (std::strcmp(entry.name, symbol) != 0) {
            continue;
        }
        known = true;
        const Entry*& slot = entry.per_thread ? best_per_thread : best;
        if (entry.version <= version && (slot == nullptr || slot->version < entry.version)) {
            slot = &entry;
        }
    }
    // The per-thread form where there is one as new as the plain one's signature allows.
    if (per_thread && best_per_thread != nullptr) {
        best = best_per_thread;
    }
    if (status != nullptr) {
        *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    if (best == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = reinterpret_cast<void*>(best->function);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
    return look_up(symbol, function, version, flags, status);
}

#undef cuGetProcAddress
SOFTDEV_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version,
                                                 cuuint64_t flags) {
    return look_up(symbol, function, version, flags, nullptr);
}
