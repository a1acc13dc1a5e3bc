// SPDX-License-Identifier: Apache-2.0
// What the loader knows of the module (program or shared library) that a hook was called from.
#pragma once

#include <link.h>
#include <cstdint>
#include <vector>

namespace deft {

// When the loader decides where a module's calls to NCCL go.
enum class Binding : std::uint8_t {
    None,    // the module does not refer to NCCL: it was given a pointer, or looked one up
    AtLoad,  // as the module is loaded (RTLD_NOW, -z now, or an address is taken)
    Lazy,    // each function at its first call, none of which has been made
};

// Facts about one loaded module. The loader's data are read while the module runs, so they stay.
struct CallingModule {
    const link_map* map = nullptr;
    std::uintptr_t low = 0;  // its code and data lie in [low, high)
    std::uintptr_t high = 0;
    Binding binding = Binding::None;

    // The module that has this code; map is null if there is none. Asks the loader.
    static CallingModule of(const void* address) noexcept;

    // An address in each module that uses NCCL and is bound at load; NCCL itself is none of them.
    // May throw std::bad_alloc.
    static std::vector<const void*> bound_at_load();

    bool is_program() const noexcept { return map->l_name == nullptr || map->l_name[0] == '\0'; }
    bool contains(const void* address) const noexcept {
        const auto at = reinterpret_cast<std::uintptr_t>(address);
        return low <= at && at < high;
    }
    // True if the object with this load address was loaded before the module.
    bool loaded_after(const void* base) const noexcept;
    // True if other modules' references are resolved with this one's symbols: it was there at the
    // program's start, or opened with RTLD_GLOBAL.
    bool in_global_scope() const noexcept;
};

}  // namespace deft
