// SPDX-License-Identifier: Apache-2.0
#include "base/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

namespace deft {

ForkGuard& ForkGuard::process() {
    static constinit ForkGuard guard;
    return guard;
}

void ForkGuard::arm() noexcept {
    pid_t none = 0;
    if (!owner_.compare_exchange_strong(none, ::getpid())) {
        return;
    }
    const long size = ::sysconf(_SC_PAGESIZE);
    void* const page = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }
    if (::madvise(page, static_cast<std::size_t>(size), MADV_WIPEONFORK) != 0) {
        ::munmap(page, static_cast<std::size_t>(size));
        return;
    }
    auto* const mark = static_cast<volatile unsigned char*>(page);
    *mark = 1;
    mark_.store(mark, std::memory_order_release);
}

bool ForkGuard::in_child() const noexcept {
    if (const volatile unsigned char* mark = mark_.load(std::memory_order_acquire)) {
        return *mark == 0;
    }
    const pid_t owner = owner_.load(std::memory_order_relaxed);
    return owner != 0 && owner != ::getpid();
}

}  // namespace deft
