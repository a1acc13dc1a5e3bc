// SPDX-License-Identifier: Apache-2.0
#include "base/guest.h"

#include <dlfcn.h>

#include <atomic>

namespace deft {
namespace {

constinit std::atomic<const deft_guest_t*> g_guest{nullptr};

// Understands what this build needs of it.
bool usable(const deft_guest_t* guest) noexcept {
    return guest != nullptr && guest->size >= sizeof(deft_guest_t) && guest->next != nullptr;
}

}  // namespace

const deft_guest_t* guest() noexcept {
    if (const deft_guest_t* known = g_guest.load(std::memory_order_acquire)) {
        return known;
    }
    // The program's scope, not RTLD_DEFAULT: as in preloaded_as().
    void* const program = ::dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
    const auto* const found =
        program != nullptr
            ? static_cast<const deft_guest_t*>(::dlsym(program, "deft_preload_guest"))
            : nullptr;
    if (!usable(found)) {
        return nullptr;
    }
    g_guest.store(found, std::memory_order_release);
    return found;
}

bool is_guest(const void* base) noexcept {
    const deft_guest_t* const known = guest();
    Dl_info info;
    return known != nullptr && ::dladdr(known, &info) != 0 && info.dli_fbase == base;
}

}  // namespace deft

extern "C" [[gnu::visibility("default")]] void deft_opened_by(const deft_guest_t* guest) {
    if (deft::usable(guest)) {
        deft::g_guest.store(guest, std::memory_order_release);
    }
}
