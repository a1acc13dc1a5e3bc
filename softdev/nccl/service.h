// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "softdev/nccl/connection.h"
#include "softdev/nccl/control.h"
#include "softdev/nccl/gate.h"
#include "softdev/nccl/net_attributes.h"
#include "softdev/net/plugin_loader.h"

namespace softdev::nccl {

// The service thread of one communicator: the only one that calls listen, connect, accept,
// regMr, deregMr and close*.
class Service {
public:
    // A set of connections that are being made; poll with finished(), then read result. As in NCCL
    // all of them listen before the first connects or accepts.
    struct Batch {
        std::vector<Connection*> wanted;
        std::array<Traffic, kPatterns> traffic{};  // by Pattern
        std::atomic<bool> finished{false};
        int result = 0;
        std::string error;  // text of the failed call
        std::string waiting_for()
            const;  // who has not come yet, for reports; call only when finished

    private:
        friend class Service;
        struct Attempt {
            Connection* connection = nullptr;
            void* listen_comm = nullptr;
            alignas(16) char handle[DEFT_NET_HANDLE_MAXSIZE] = {};
            bool have_handle = false;
            bool done = false;
        };
        std::vector<Attempt> attempts;
        Control* control = nullptr;
        bool begun = false;
        std::atomic<bool> cancelled{false};
    };

    ~Service() { stop(); }
    void start(net::CommNet* net, NetAttributes* attributes, int device);

    std::shared_ptr<Batch> connect(Control* control, std::vector<Connection*> wanted,
                                   const std::array<Traffic, kPatterns>& traffic);
    void cancel(Batch& batch);  // it finishes soon, with listen comms closed
    Gate& finished() { return finished_; }

    void close(const std::vector<Connection*>& connections);  // deregMr all, then close
    void stop();                                              // joins
    // Runs fn on the service thread and waits for it (user buffer registration).
    void call(const std::function<void()>& fn);

private:
    void run();
    bool step(Batch& batch);  // true: finished
    int set_up(Batch& batch, Batch::Attempt& attempt, std::string* error);
    int step(Batch& batch, Batch::Attempt& attempt, std::string* error);
    int connected(const Batch::Attempt& attempt, std::string* error);
    void close_listeners(Batch& batch);

    net::CommNet* net_ = nullptr;
    NetAttributes* attributes_ = nullptr;
    std::mutex mutex_;
    std::vector<std::shared_ptr<Batch>> batches_;
    std::vector<std::function<void()>> calls_;
    Gate wake_;
    Gate finished_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace softdev::nccl
