// SPDX-License-Identifier: Apache-2.0
// The entry points of one loaded NCCL library.
#pragma once

#include "deft/abi/nccl.h"

namespace deft {

// Immutable once published. A pointer is null where the library lacks the function. Never freed:
// the library stays loaded because the table holds a reference on it.
struct NcclTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) result(*name) parameters = nullptr;
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION

    const void* base = nullptr;  // load address of the object that holds the functions
    char path[512] = "";         // its file name, "" if unknown
    int version = 0;             // ncclGetVersion's answer, 22809; 0 if it did not say
};

// Fills `table` from a dlsym handle (RTLD_NEXT allowed): "pncclX" where it exists, else "ncclX".
// Functions of our own library and of the guest are rejected, or the hooks would call themselves.
// False if the library has no ncclAllReduce.
bool load_table(void* handle, NcclTable& table) noexcept;

// Load address of the object that contains `address`, or null.
const void* object_base(const void* address) noexcept;
// That of this very library.
const void* own_base() noexcept;

}  // namespace deft
