// SPDX-License-Identifier: Apache-2.0
// How long a plugin's calls take: those by which connections are made, for which NCCL's service
// thread waits, and those that move messages, for which its progress thread does.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "base/unique_fd.h"

namespace softdev::net {

// Of the calling thread. A call during which the kernel gave the processor to somebody else is left
// out: that time is not the plugin's. A call that waits gives it away itself: for a lock that
// another thread holds, or for more than that. What it then waits for a processor, once it may go
// on, is told apart: where threads share few processors that is most of it.
struct CallTimes {
    struct Longest {
        std::uint64_t calls = 0;
        double seconds = 0;
        double queued = 0;  // of these, for a processor
        const char* call = "";

        void add(const char* name, double took, double of_these) {
            ++calls;
            if (took > seconds) {
                seconds = took;
                queued = of_these;
                call = name;
            }
        }
    };
    struct Calls {
        Longest worked;
        Longest waited;
    };
    bool wanted = false;
    std::uint64_t interrupted = 0;  // left out
    Calls making;                   // connect, accept
    Calls moving;                   // isend, irecv, test
    deft::UniqueFd schedstat;       // of this thread

    static CallTimes& mine() {
        static thread_local CallTimes times;
        return times;
    }
};

// Seconds that this thread has waited for a processor.
inline double queued_seconds(CallTimes& times) {
    if (!times.schedstat) {
        times.schedstat.reset(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
    }
    char text[80] = "";
    if (::pread(times.schedstat.get(), text, sizeof text - 1, 0) <= 0) {
        return 0;
    }
    char* rest = text;
    (void)std::strtoull(text, &rest, 10);  // on one
    return static_cast<double>(std::strtoull(rest, nullptr, 10)) * 1e-9;
}

template <class Call>
int timed(const char* name, CallTimes::Calls CallTimes::*kind, Call&& call) {
    CallTimes& times = CallTimes::mine();
    if (!times.wanted) {
        return call();
    }
    rusage before{};
    rusage after{};
    const double queued_before = queued_seconds(times);
    ::getrusage(RUSAGE_THREAD, &before);
    const auto begin = std::chrono::steady_clock::now();
    const int result = call();
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ::getrusage(RUSAGE_THREAD, &after);
    if (after.ru_nivcsw != before.ru_nivcsw) {
        ++times.interrupted;
    } else {
        const bool waited = after.ru_nvcsw != before.ru_nvcsw;
        const double queued = waited ? queued_seconds(times) - queued_before : 0;
        (waited ? (times.*kind).waited : (times.*kind).worked).add(name, took, queued);
    }
    return result;
}

}  // namespace softdev::net
