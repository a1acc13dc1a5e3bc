// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "softdev/nccl/connection.h"
#include "softdev/nccl/gate.h"
#include "softdev/nccl/net_attributes.h"
#include "softdev/net/plugin_loader.h"

namespace softdev::nccl {

// The progress thread of one communicator: the only one that calls isend, irecv and test. As
// NCCL's it never sleeps while an operation is open, from its launch until its last slice is sent
// or consumed: it looks around and yields. Otherwise it sleeps. Communicators split with splitShare
// use their parent's.
class Progress {
public:
    using Failure = std::function<void(const Connection&, int result)>;

    ~Progress() { stop(); }
    void start(net::CommNet* net, NetAttributes* attributes, int device);
    void add(Connection* connection, Failure failure);
    void remove(
        const std::vector<Connection*>& connections);  // afterwards the thread does not use them
    void stop();                                       // joins

    // Rung by kernels and launches when there is work for this thread.
    Gate& work() { return work_; }
    // Rung by this thread when a slice came or was freed.
    Gate& moved() { return moved_; }
    // Everything the kernels posted is sent.
    static bool drained(const std::vector<Connection*>& connections);

private:
    struct Entry {
        Connection* connection;
        Failure failure;
    };
    void run();
    bool round(bool* worked, bool* open);  // false: a call failed
    int tell_attributes(Entry& entry);

    net::CommNet* net_ = nullptr;
    NetAttributes* attributes_ = nullptr;
    bool optional_completion_ = true;
    std::mutex mutex_;             // held during a round
    std::atomic<int> waiting_{0};  // for the mutex, which a spinning thread would not let go
    std::vector<Entry> entries_;
    Gate work_;
    Gate moved_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace softdev::nccl
