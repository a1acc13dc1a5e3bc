// SPDX-License-Identifier: Apache-2.0
// How long a plugin's calls take, of those by which connections are made and messages moved: what
// NCCL's progress thread has to wait for them.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdint>

namespace softdev::net {

// Of the calling thread. A call during which the kernel gave the processor to somebody else is left
// out: that time is not the plugin's. A call that waits gives it away itself: for a lock that
// another thread holds, or for more than that.
struct CallTimes {
    struct Longest {
        std::uint64_t calls = 0;
        double seconds = 0;
        const char* call = "";

        void add(const char* name, double took) {
            ++calls;
            if (took > seconds) {
                seconds = took;
                call = name;
            }
        }
    };
    bool wanted = false;
    std::uint64_t interrupted = 0;  // left out
    Longest worked;
    Longest waited;

    static CallTimes& mine() {
        static thread_local CallTimes times;
        return times;
    }
};

template <class Call>
int timed(const char* name, Call&& call) {
    CallTimes& times = CallTimes::mine();
    if (!times.wanted) {
        return call();
    }
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_THREAD, &before);
    const auto begin = std::chrono::steady_clock::now();
    const int result = call();
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ::getrusage(RUSAGE_THREAD, &after);
    if (after.ru_nivcsw != before.ru_nivcsw) {
        ++times.interrupted;
    } else {
        (after.ru_nvcsw != before.ru_nvcsw ? times.waited : times.worked).add(name, took);
    }
    return result;
}

}  // namespace softdev::net
