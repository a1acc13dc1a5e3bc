// SPDX-License-Identifier: Apache-2.0
#include "tests/softdev/nccl/progress.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "tests/softdev/nccl/env.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

void Progress::start(net::Net* net) {
    net_ = net;
    optional_completion_ = env_int("NCCL_NET_OPTIONAL_RECV_COMPLETION", 1) != 0;
    thread_ = std::thread([this] { run(); });
}

void Progress::add(Connection* connection, Failure failure) {
    {
        std::lock_guard lock(mutex_);
        entries_.push_back({connection, std::move(failure)});
    }
    work_.ring();
}

void Progress::remove(const std::vector<Connection*>& connections) {
    std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) {
        return std::find(connections.begin(), connections.end(), entry.connection) !=
               connections.end();
    });
}

void Progress::stop() {
    stop_.store(true);
    work_.ring();
    if (thread_.joinable()) {
        thread_.join();
    }
}

bool Progress::drained(const std::vector<Connection*>& connections) {
    return std::all_of(connections.begin(), connections.end(),
                       [](Connection* c) { return c->drained(); });
}

bool Progress::round(bool* worked, bool* blocked) {
    std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
        int error = 0;
        switch (entry.connection->progress(*net_, optional_completion_, &error)) {
            case Connection::Poll::kIdle:
                break;
            case Connection::Poll::kBlocked:
                *blocked = true;
                break;
            case Connection::Poll::kWorked:
                *worked = true;
                moved_.ring();
                break;
            case Connection::Poll::kFailed:
                for (Entry& other : entries_) {
                    other.failure(*entry.connection, error);
                }
                return false;
        }
    }
    return true;
}

void Progress::run() {
    pthread_setname_np(pthread_self(), "NCCL Progress");
    prctl(PR_SET_TIMERSLACK, 1000ul);  // sleeps of some microseconds are meant
    unsigned quiet = 0;
    while (!stop_.load()) {
        const uint64_t seen = work_.seen();
        bool worked = false;
        bool blocked = false;
        if (!round(&worked, &blocked)) {
            // As in NCCL, an error ends the thread; the communicator is dead.
            moved_.ring();
            return;
        }
        if (worked) {
            quiet = 0;
        } else if (!blocked) {
            quiet = 0;
            work_.sleep(seen, 1s);
        } else if (++quiet < 64) {
            sched_yield();
        } else {
            work_.sleep(seen, std::chrono::microseconds(std::min(quiet / 4, 200u)));
        }
    }
}

}  // namespace softdev::nccl
