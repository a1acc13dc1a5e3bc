// SPDX-License-Identifier: Apache-2.0
// What the checking plugin knows of its comms and requests: shared by checker.cpp (life cycle) and
// transfers.cpp (isend, irecv, iflush, test).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "softdev/net/checking/checker.h"

namespace softdev::net::checking {

const deft_net_v12_t& inner();  // Socket

struct Comm;

struct Request {
    enum class Kind { plain, early, flush };
    Comm* comm;
    void* inner;
    Kind kind = Kind::plain;
    size_t bytes = 0;
    bool to_flush = false;  // a receive into device memory that NCCL has to flush
    bool done = false;
    int tests = 0;
};

struct Region {
    const char* data;
    size_t bytes;
    bool device;
};

struct Comm {
    CommKind kind;
    void* inner;
    int number = 0;    // of those of its kind
    std::mutex mutex;  // regMr may come from another thread than isend, irecv and test
    std::set<Region*> regions;
    std::deque<std::unique_ptr<Request>> in_flight;
    std::deque<std::unique_ptr<Request>> background;  // said to be done early, still on their way
    std::deque<std::unique_ptr<Request>> finished;    // the last ones, to notice a second test
    std::deque<const Request*> unconsumed;  // received, and the caller has not said it read them
    std::thread::id progress{};
    size_t to_flush = 0;
    size_t flushed = 0;
    size_t early = 0;
    size_t consumed = 0;
    size_t junk = 0;     // calls that found something in *request
    size_t largest = 0;  // bytes of one request
    size_t deepest = 0;  // requests at a time
    // The call answered "not now", which must come again as it was.
    bool retry = false;
    const void* retry_data = nullptr;
    size_t retry_bytes = 0;
};

// NULL, and a violation, for what is not open.
Comm* known(void* comm, const char* call);
bool not_now();
bool enabled(const char* variable);

// The thread that plays the network card for receives that were said to be done early: it begins
// with the first of them and ends with the last comm.
void start_poller();
void stop_poller();
// One round over all comms; true: something is still on its way.
bool poll_background();

}  // namespace softdev::net::checking
