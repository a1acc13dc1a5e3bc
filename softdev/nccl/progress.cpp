// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/progress.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "softdev/nccl/env.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

namespace {

uint32_t algorithm_bit(Pattern pattern) {
    switch (pattern) {
        case Pattern::kTree:
            return 1u << 0;
        case Pattern::kRing:
            return 1u << 1;
        case Pattern::kP2p:
            return ~0u;  // messages have no algorithm
    }
    return ~0u;
}

uint32_t protocol_bit(Protocol protocol) {
    switch (protocol) {
        case Protocol::kLL:
            return 1u << 0;
        case Protocol::kLL128:
            return 1u << 1;
        case Protocol::kSimple:
            return 1u << 2;
    }
    return ~0u;
}

}  // namespace

net::Attributes attributes_of(const Connection& connection, const Traffic& traffic,
                              const Shape* shape) {
    constexpr deft_net_comm_attr_t kNothing{-1, -1, -1, -1};
    net::Attributes attributes{kNothing, kNothing, ~0u, ~0u, ~0u};
    (connection.sender() ? attributes.sendCommAttr : attributes.recvCommAttr) = {
        traffic.most_peers, traffic.fewest_peers, traffic.flows, 1};
    attributes.algo = algorithm_bit(connection.key().pattern);
    if (shape != nullptr) {
        attributes.op = 1u << static_cast<unsigned>(shape->op);
        attributes.proto = protocol_bit(shape->protocol);
    }
    return attributes;
}

void Progress::start(net::CommNet* net) {
    net_ = net;
    optional_completion_ = env_int("NCCL_NET_OPTIONAL_RECV_COMPLETION", 1) != 0;
    thread_ = std::thread([this] { run(); });
}

void Progress::add(Connection* connection, const Traffic& traffic, Failure failure) {
    waiting_.fetch_add(1);
    {
        std::lock_guard lock(mutex_);
        entries_.push_back({connection, traffic, std::move(failure)});
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

// NCCL tells the plugin what the next transfers are for, when that changes.
int Progress::tell_attributes(Entry& entry) {
    Shape shape;
    if (!entry.connection->starting(&shape)) {
        return 0;
    }
    net::Attributes now = attributes_of(*entry.connection, entry.traffic, &shape);
    if (told_ && std::memcmp(&*told_, &now, sizeof now) == 0) {
        return 0;
    }
    told_ = now;
    return (*net_)->set_net_attr(net_->context(), &now);
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
    pthread_setname_np(pthread_self(), "NCCL Progress");
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
