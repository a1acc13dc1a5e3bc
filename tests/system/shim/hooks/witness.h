// SPDX-License-Identifier: Apache-2.0
// What deft's library does inside a call of the job's, told apart from what the software device
// does in the same call: stands before the C library and looks who asks.
#pragma once

namespace deft::test {

struct Witnessed {
    unsigned long allocations = 0;
    unsigned long locks = 0;  // mutexes and read-write locks, contended or not
    unsigned long waits = 0;  // sleeps, yields, futexes
    unsigned long threads = 0;
};

// Looks where deft's library and the software device's are: before the first Watch, with all of
// them loaded. False: without deft, or where a sanitizer or another preload stands before this.
bool find_libraries();

// What deft does in the calling thread while one lives is added to `to`. One at a time.
class Watch {
public:
    explicit Watch(Witnessed& to);
    ~Watch();
    Watch(const Watch&) = delete;
};

}  // namespace deft::test
