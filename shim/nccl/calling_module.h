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
    std::uint16_t id_at = 0;  // of the build id in the first page; 0: it is not there

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

// Tells a module from another that is loaded to the same place later. Fits everything where the C
// library cannot tell whose code an address is without a lock (glibc before 2.35).
class ModulePrint {
public:
    ModulePrint() = default;
    explicit ModulePrint(const CallingModule& module) noexcept;

    // False if the code at `address` is another module's. Any thread; takes no lock.
    bool fits(const void* address) const noexcept;

private:
    // What is looked at of a module lies in its first page.
    static std::uint64_t word(std::uintptr_t start, unsigned offset) noexcept {
        return *reinterpret_cast<const volatile std::uint64_t*>(start + offset);
    }

    std::uintptr_t start_ = 0;
    std::uint64_t entry_ = 0;
    std::uint64_t sections_ = 0;  // where the file's section headers are
    std::uint64_t id_ = 0;
    std::uint16_t id_at_ = 0;
};

}  // namespace deft
