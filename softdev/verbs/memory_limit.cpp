// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/memory_limit.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <utility>

namespace softdev::verbs {
namespace {

std::atomic<std::uint64_t> pages_of_process{0};

// The capability counts only there: who is root in a user namespace of its own has the limit.
bool in_first_user_namespace() {
    std::ifstream map("/proc/self/uid_map");
    std::uint64_t inside = 1;
    std::uint64_t outside = 1;
    std::uint64_t count = 0;
    map >> inside >> outside >> count;
    return inside == 0 && outside == 0 && count == UINT32_MAX;
}

bool may_exceed() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> sets{};
    return ::syscall(SYS_capget, &header, sets.data()) == 0 &&
           (sets[0].effective & (1U << CAP_IPC_LOCK)) != 0 && in_first_user_namespace();
}

}  // namespace

LockedPages::LockedPages(LockedPages&& other) noexcept : pages_(std::exchange(other.pages_, 0)) {}

LockedPages& LockedPages::operator=(LockedPages&& other) noexcept {
    std::swap(pages_, other.pages_);
    return *this;
}

LockedPages::~LockedPages() {
    pages_of_process.fetch_sub(pages_);
}

int LockedPages::charge(const void* at, std::size_t length) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uint64_t>(at);
    const std::uint64_t pages = (address + length + page - 1) / page - address / page;
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return errno;
    }
    const std::uint64_t now = pages_of_process.fetch_add(pages) + pages;
    if (now > limit.rlim_cur / page && !may_exceed()) {
        pages_of_process.fetch_sub(pages);
        return limit.rlim_cur == 0 ? EPERM : ENOMEM;
    }
    pages_ += pages;
    return 0;
}

}  // namespace softdev::verbs
