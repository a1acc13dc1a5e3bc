// SPDX-License-Identifier: Apache-2.0
// Tells a forked child from the process that started the library's threads. In a child there are
// none and a lock may be held for ever: the shim only forwards, the plugin goes without threads.
#pragma once

#include <sys/types.h>
#include <atomic>

namespace deft {

class ForkGuard {
public:
    static ForkGuard& process();

    // Marks this process as the one that has the threads. Idempotent.
    void arm() noexcept;

    // True in a child forked after arm(). One load: the mark lives in a page that the kernel
    // empties in a child (MADV_WIPEONFORK, Linux 4.14); on older kernels a getpid comparison. fork
    // handlers (pthread_atfork) are no way: a guest must not add any, and raw clone() skips them.
    bool in_child() const noexcept;

private:
    std::atomic<const volatile unsigned char*> mark_{nullptr};
    std::atomic<pid_t> owner_{0};  // 0: not armed
};

}  // namespace deft
