// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/descriptors.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/unique_fd.h"

namespace deft::net {
namespace {

constexpr std::size_t kVerySmall = 256;
constexpr std::size_t kUsual = 1024;
constexpr std::size_t kKept = 512;
constexpr std::size_t kCounted = 4096;  // one by one, in less than a millisecond
constexpr std::size_t kRoom = 4096;     // 33 KiB of the kernel's

std::size_t count_used(std::size_t limit) {
    if (limit > kCounted) {
        // The kernel gives the lowest that is free. A standard descriptor that the job has closed
        // says nothing of the others.
        const UniqueFd any(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        const int lowest = any ? fcntl(any.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
        if (lowest < 0) {
            return errno == EMFILE ? limit : 0;
        }
        close(lowest);
        return static_cast<std::size_t>(lowest);
    }
    std::size_t used = 0;
    for (std::size_t fd = 0; fd < limit; ++fd) {
        used += fcntl(static_cast<int>(fd), F_GETFD) >= 0 ? 1 : 0;
    }
    return used;
}

}  // namespace

Descriptors Descriptors::now() {
    rlimit limit{};
    Descriptors now;
    // More than a million: no limit.
    constexpr rlim_t most = 1 << 20;
    now.limit = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min(limit.rlim_cur, most) : most;
    now.used = count_used(now.limit);
    return now;
}

void Descriptors::make_room() {
    const UniqueFd any(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const std::size_t room = std::min(now().limit, kRoom);
    if (any && room > 0) {
        const UniqueFd last(fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(room - 1)));
    }
}

std::size_t Descriptors::kept() const {
    if (limit < kVerySmall) {
        return limit;
    }
    return limit < kUsual ? limit / 4 * 3 : kKept;
}

std::size_t Descriptors::spare() const {
    const std::size_t usable = limit - kept();
    return usable > used ? usable - used : 0;
}

bool Descriptors::scarce(bool urgent) const {
    return limit - std::min(used, limit) < kept() / (urgent ? 4 : 2);
}

}  // namespace deft::net
