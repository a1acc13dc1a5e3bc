// SPDX-License-Identifier: Apache-2.0
// Which NCCL a call goes to. A process may hold several copies; each call must reach the one it
// would have reached without the preload. That depends on the module (program or shared library)
// that calls, and is decided once per module.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/nccl/nccl_table.h"

namespace deft {

// Finds and keeps the tables of the NCCL libraries in this process. Nothing happens before the
// first call. Any thread; no lock is held while the loader is asked, so a hook called from a
// constructor that runs inside dlopen cannot deadlock.
class NcclLibraries {
public:
    static NcclLibraries& process();

    // How sure it is that the call would have gone there.
    enum class Certainty : std::uint8_t {
        Likely,  // the likeliest of those that are there
        Common,  // the caller does not refer to NCCL; all modules that do go there
        Bound,   // the loader resolves the caller's references to it
    };
    struct Answer {
        const NcclTable* table = nullptr;
        Certainty certainty = Certainty::Likely;
    };
    // The library for a call made from the code at `caller` (a return address). DEFT_NCCL_LIB wins.
    // Else, as the loader searches: the global scope, as it was when the module was bound; then
    // what the module itself depends on. Where that gives none: a loaded libnccl.so.2; any loaded
    // object that has the functions; the loader's search path. Null, and one WARN, if there is
    // none.
    Answer for_caller(const void* caller) noexcept;

    // The only library seen so far, or null if there are none or several.
    const NcclTable* sole() const noexcept;

    std::size_t size() const noexcept;
    const NcclTable* at(std::size_t index) const noexcept;
    // True if a DEFT_NCCL_LIB was given that could not be used.
    bool override_failed() const noexcept;
};

}  // namespace deft
