// SPDX-License-Identifier: Apache-2.0
#include "base/presence.h"

#include <dlfcn.h>

#include "base/config.h"
#include "base/guest.h"
#include "base/log.h"

namespace deft {

Presence& Presence::process() noexcept {
    static constinit Presence presence;
    return presence;
}

bool preloaded_as(const char* symbol) noexcept {
    // Not RTLD_DEFAULT: for a caller that was opened RTLD_LOCAL, as NCCL opens plugins, that ends
    // in the caller's own scope, and we would find ourselves.
    void* const program = ::dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
    void* const first = program != nullptr ? ::dlsym(program, symbol) : nullptr;
    Dl_info theirs;
    Dl_info ours;
    return first != nullptr && ::dladdr(first, &theirs) != 0 &&
           ::dladdr(reinterpret_cast<const void*>(&preloaded_as), &ours) != 0 &&
           (theirs.dli_fbase == ours.dli_fbase || is_guest(theirs.dli_fbase));
}

void Presence::plugin_initialised() noexcept {
    plugin_inits.fetch_add(1, std::memory_order_relaxed);
    if (communicators_seen.load(std::memory_order_acquire) != 0) {
        return;
    }
    try {
        const Config& config = Config::process();
        if (preloaded_as("ncclCommInitRank")) {
            DEFT_WARN_ONCE(
                "deft is preloaded, but the job reaches NCCL past it (dlsym on a handle, as "
                "ctypes.CDLL and JAX do, or RTLD_DEEPBIND): only the network plugin is at work. "
                "Let "
                "the job open libnccl-net-deft.so in place of libnccl.so.2 (vLLM: "
                "VLLM_NCCL_SO_PATH)");
        } else if ((config.setting(Key::Mode).source != ValueSource::Default ||
                    config.flag(Key::Require)) &&
                   !config.is(Key::Mode, "off")) {
            DEFT_WARN_ONCE(
                "DEFT_MODE=%s%s no effect: libnccl-net-deft.so is loaded as network plugin only; "
                "name it in LD_PRELOAD too, or start the job with `deft run`",
                config.text(Key::Mode).c_str(),
                config.flag(Key::Require) ? " and DEFT_REQUIRE=1 have" : " has");
        } else {
            static std::atomic_flag said = ATOMIC_FLAG_INIT;
            if (!said.test_and_set(std::memory_order_relaxed)) {
                DEFT_INFO("network plugin only: the library is not preloaded");
            }
        }
    } catch (...) {
        // Nothing to say it with.
    }
}

}  // namespace deft
