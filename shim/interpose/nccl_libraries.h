// SPDX-License-Identifier: Apache-2.0
// Which NCCL a call goes to. A process may hold several copies; each call must reach the one it
// would have reached without the preload.
#pragma once

#include <cstddef>

#include "shim/interpose/nccl_table.h"

namespace deft {

// Finds and keeps the tables of the NCCL libraries in this process. Nothing happens before the
// first call. Any thread; no lock is held while the loader is asked, so a hook called from a
// constructor that runs inside dlopen cannot deadlock.
class NcclLibraries {
public:
    static NcclLibraries& process();

    // The library for a call made from the code at `caller` (a return address), searched in this
    // order: DEFT_NCCL_LIB; the global scope behind us; what the caller's own module sees; a loaded
    // libnccl.so.2; any loaded object that has the functions; the loader's search path. Null, and
    // one WARN, if there is none.
    const NcclTable* for_caller(const void* caller) noexcept;

    // The only library seen so far, or null if there are none or several.
    const NcclTable* sole() const noexcept;

    std::size_t size() const noexcept;
    const NcclTable* at(std::size_t index) const noexcept;
    // True if a DEFT_NCCL_LIB was given that could not be used.
    bool override_failed() const noexcept;
};

}  // namespace deft
