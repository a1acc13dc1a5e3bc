// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/progress.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

void Progress::start(net::CommNet* net, NetAttributes* attributes, int device) {
    net_ = net;
    attributes_ = attributes;
    optional_completion_ = env_int("NCCL_NET_OPTIONAL_RECV_COMPLETION", 1) != 0;
    thread_ = std::thread([this] { run(); });
    name_thread(thread_, format("NCCL Progress%2d", device));
}

void Progress::add(Connection* connection, Failure failure) {
    waiting_.fetch_add(1);
    {
        std::lock_guard lock(mutex_);
        entries_.push_back({connection, std::move(failure)});
    }
    waiting_.fetch_sub(1);
    work_.ring();
}

void Progress::remove(const std::vector<Connection*>& connections) {
    waiting_.fetch_add(1);
    {
        std::lock_guard lock(mutex_);
        std::erase_if(entries_, [&](const Entry& entry) {
            return std::find(connections.begin(), connections.end(), entry.connection) !=
                   connections.end();
        });
    }
    waiting_.fetch_sub(1);
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

int Progress::tell_attributes(Entry& entry) {
    Shape shape;
    if (!entry.connection->starting(&shape)) {
        return 0;
    }
    return attributes_->tell_transfer(*net_, *entry.connection, shape);
}

bool Progress::round(bool* worked, bool* open) {
    std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
        int error = tell_attributes(entry);
        switch (error != 0
                    ? Connection::Poll::kFailed
                    : entry.connection->progress(*net_->net(), optional_completion_, &error)) {
            case Connection::Poll::kIdle:
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
        if (entry.connection->is_open()) {
            *open = true;
        }
    }
    return true;
}

void Progress::run() {
    while (!stop_.load()) {
        const uint64_t seen = work_.seen();
        bool worked = false;
        bool open = false;
        while (waiting_.load() > 0) {
            sched_yield();
        }
        if (!round(&worked, &open)) {
            // As in NCCL, an error ends the thread; the communicator is dead.
            moved_.ring();
            return;
        }
        if (worked) {
            continue;
        }
        if (open) {
            sched_yield();
        } else {
            work_.sleep(seen, 1s);
        }
    }
}

}  // namespace softdev::nccl
