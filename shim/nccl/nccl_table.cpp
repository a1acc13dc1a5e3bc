// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/nccl_table.h"

#include <dlfcn.h>
#include <cstdio>
#include <initializer_list>

#include "base/guest.h"

namespace deft {
namespace {

// RTLD_NEXT means behind the hooks that the job's calls meet. Those are the guest's where it has
// opened this library, which then stands in no global scope itself.
void* look_up(void* handle, const char* name) {
    const deft_guest_t* const in_front = handle == RTLD_NEXT ? guest() : nullptr;
    return in_front != nullptr ? in_front->next(name) : ::dlsym(handle, name);
}

// Ours: the library's, and the guest's that would call it again.
bool is_hook(const void* address) {
    const void* const base = object_base(address);
    return base == own_base() || is_guest(base);
}

// NCCL built with its profiling aliases (the default) has every function F a second time as pF,
// strong and at the same address; the plain name may meanwhile belong to any interposer.
void* find(void* handle, const char* alias, const char* plain) {
    for (const char* name : {alias, plain}) {
        void* const address = look_up(handle, name);
        if (address != nullptr && !is_hook(address)) {
            return address;
        }
    }
    return nullptr;
}

}  // namespace

const void* object_base(const void* address) noexcept {
    Dl_info info;
    return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

const void* own_base() noexcept {
    static const void* const base = object_base(reinterpret_cast<const void*>(&load_table));
    return base;
}

bool load_table(void* handle, NcclTable& table) noexcept {
    void* const probe = find(handle, "pncclAllReduce", "ncclAllReduce");
    if (probe == nullptr) {
        return false;
    }
    Dl_info info;
    if (::dladdr(probe, &info) != 0) {
        table.base = info.dli_fbase;
        std::snprintf(table.path, sizeof(table.path), "%s", info.dli_fname);
        // All functions from the one library that was found, and a reference so that it stays.
        if (void* const pinned = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
            if (::dlsym(pinned, "pncclAllReduce") == probe ||
                ::dlsym(pinned, "ncclAllReduce") == probe) {
                handle = pinned;
            }
        }
    }
// NOLINTBEGIN(bugprone-macro-parentheses): types.
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) \
    table.name = reinterpret_cast<result(*) parameters>(find(handle, "pnccl" #name, "nccl" #name));
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    // NOLINTEND(bugprone-macro-parentheses)
    return true;
}

}  // namespace deft
