// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <algorithm>

#include "base/log.h"
#include "base/unique_fd.h"

namespace deft::agreement {
namespace {

constexpr rlim_t kLeftToTheJob = 256;

bool enough(rlim_t soft, int number) {
    return number >= 0 && static_cast<rlim_t>(number) + std::min(kLeftToTheJob, soft / 4) < soft;
}

// The next descriptor's, which is the lowest free one: so it says how many there are. -1: none.
int next_number(int like) {
    const UniqueFd probe(::fcntl(like, F_DUPFD_CLOEXEC, 0));
    return probe ? probe.get() : -1;
}

}  // namespace

bool room_for_one_more(int like) {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || enough(limit.rlim_cur, next_number(like));
}

bool make_room_for_one_more(int like) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return true;
    }
    const int number = next_number(like);
    if (enough(limit.rlim_cur, number)) {
        return true;
    }
    const rlim_t before = limit.rlim_cur;
    // Twice as many leave the job enough, even if it has taken all there were.
    limit.rlim_cur = before > limit.rlim_max / 2 ? limit.rlim_max : 2 * before;
    if (limit.rlim_cur != before && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) {
        DEFT_INFO("this process leads many hosts: it may open %llu files instead of %llu",
                  static_cast<unsigned long long>(limit.rlim_cur),
                  static_cast<unsigned long long>(before));
        return enough(limit.rlim_cur, next_number(like));
    }
    DEFT_WARN_ONCE(
        "not all ranks can connect to this process, which leads them: it may open %llu files, of "
        "which the job needs some; raise the hard limit of open files (ulimit -Hn)",
        static_cast<unsigned long long>(before));
    return false;
}

}  // namespace deft::agreement
