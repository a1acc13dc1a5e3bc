// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/service.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

std::string Service::Batch::waiting_for() const {
    std::string text;
    for (const Attempt& attempt : attempts) {
        if (attempt.done) {
            continue;
        }
        const Connection& c = *attempt.connection;
        const std::string one = format("%s connection %s rank %d", pattern_name(c.key().pattern),
                                       c.sender() ? "to" : "from", c.peer());
        if (text.find(one) == std::string::npos) {
            text += (text.empty() ? "" : ", ") + one;
        }
    }
    return text;
}

void Service::start(net::CommNet* net, NetAttributes* attributes, int device) {
    net_ = net;
    attributes_ = attributes;
    thread_ = std::thread([this] { run(); });
    name_thread(thread_, format("NCCL Service %2d", device));
}

std::shared_ptr<Service::Batch> Service::connect(Control* control, std::vector<Connection*> wanted,
                                                 const std::array<Traffic, kPatterns>& traffic) {
    auto batch = std::make_shared<Batch>();
    batch->control = control;
    batch->traffic = traffic;
    batch->wanted = std::move(wanted);
    {
        std::lock_guard lock(mutex_);
        if (stop_.load()) {
            batch->result = ncclInternalError;
            batch->error = "the communicator is being destroyed";
            batch->finished.store(true);
            return batch;
        }
        batches_.push_back(batch);
    }
    wake_.ring();
    return batch;
}

void Service::cancel(Batch& batch) {
    batch.cancelled.store(true);
    wake_.ring();
}

void Service::close(const std::vector<Connection*>& connections) {
    call([&] {
        for (Connection* connection : connections) {
            if (const int result = connection->close(*net_->net()); result != 0) {
                log_info(kSubsysNet, "closing a connection failed with %d", result);
            }
        }
    });
}

void Service::stop() {
    {
        std::lock_guard lock(mutex_);
        stop_.store(true);
    }
    wake_.ring();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Service::call(const std::function<void()>& fn) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    {
        std::lock_guard lock(mutex_);
        if (stop_.load() || !thread_.joinable()) {
            return;
        }
        calls_.push_back([this, fn, done] {
            fn();
            done->store(true);
            finished_.ring();
        });
    }
    wake_.ring();
    for (uint64_t seen = finished_.seen(); !done->load(); seen = finished_.seen()) {
        if (!done->load()) {
            finished_.sleep(seen, 50ms);
        }
    }
}

void Service::run() {
    for (;;) {
        const uint64_t seen = wake_.seen();
        std::vector<std::shared_ptr<Batch>> batches;
        std::vector<std::function<void()>> calls;
        const bool stopping = stop_.load();
        {
            std::lock_guard lock(mutex_);
            batches = batches_;
            calls.swap(calls_);
        }
        for (auto& fn : calls) {
            fn();
        }
        for (auto& batch : batches) {
            if (stopping) {
                batch->cancelled.store(true);
            }
            if (step(*batch)) {
                {
                    std::lock_guard lock(mutex_);
                    std::erase(batches_, batch);
                }
                batch->finished.store(true);
                finished_.ring();
            }
        }
        if (stopping) {
            break;
        }
        wake_.sleep(seen, batches.empty() ? 1000ms : 1ms);
    }
}

bool Service::step(Batch& batch) {
    using Step = int (Service::*)(Batch&, Batch::Attempt&, std::string*);
    // False: a call failed, and the batch says so.
    const auto each = [&](Step what) {
        for (Batch::Attempt& attempt : batch.attempts) {
            if (attempt.done) {
                continue;
            }
            batch.result = (this->*what)(batch, attempt, &batch.error);
            if (batch.result != 0) {
                const Connection& c = *attempt.connection;
                batch.error =
                    format("%s of the network plugin failed with %d (%s connection %s rank %d)",
                           batch.error.c_str(), batch.result, pattern_name(c.key().pattern),
                           c.sender() ? "to" : "from", c.peer());
                close_listeners(batch);
                return false;
            }
        }
        return true;
    };
    if (batch.cancelled.load()) {
        close_listeners(batch);
        batch.result = ncclInternalError;
        batch.error = "cancelled";
        return true;
    }
    if (!batch.begun) {
        batch.begun = true;
        for (Connection* connection : batch.wanted) {
            batch.attempts.emplace_back().connection = connection;
        }
        if (!each(&Service::set_up)) {
            return true;
        }
    }
    if (!each(&Service::step)) {
        return true;
    }
    return std::all_of(batch.attempts.begin(), batch.attempts.end(),
                       [](const Batch::Attempt& attempt) { return attempt.done; });
}

int Service::set_up(Batch& batch, Batch::Attempt& attempt, std::string* error) {
    Connection& connection = *attempt.connection;
    net::Net& net = *net_->net();
    net::Properties properties;
    *error = "getProperties";
    int result = net.get_properties(connection.device, &properties);
    if (result != 0 || connection.sender()) {
        return result;
    }
    *error = "listen";
    result = net.listen(net_->context(), connection.device, attempt.handle, &attempt.listen_comm);
    if (result == 0) {
        batch.control->send(connection.peer(), Letter::kHandle, connection.key().packed(),
                            std::string(attempt.handle, sizeof attempt.handle));
    }
    return result;
}

int Service::step(Batch& batch, Batch::Attempt& attempt, std::string* error) {
    Connection& connection = *attempt.connection;
    net::Net& net = *net_->net();
    if (connection.sender() && !attempt.have_handle) {
        const auto handle =
            batch.control->take_handle(connection.peer(), connection.key().packed());
        if (!handle || handle->size() != sizeof attempt.handle) {
            return 0;
        }
        std::memcpy(attempt.handle, handle->data(), sizeof attempt.handle);
        attempt.have_handle = true;
    }
    const Pattern pattern = connection.key().pattern;
    *error = "setNetAttr";
    int result = attributes_->tell_connecting(*net_, batch.traffic[static_cast<size_t>(pattern)],
                                              pattern == Pattern::kP2p);
    if (result != 0) {
        return result;
    }
    net::DeviceHandle* device = nullptr;
    if (connection.sender()) {
        *error = "connect";
        result = net.connect(net_->context(), connection.device, attempt.handle, &connection.comm,
                             &device);
    } else {
        *error = "accept";
        result = net.accept(attempt.listen_comm, &connection.comm, &device);
    }
    if (result != 0 || connection.comm == nullptr) {
        return result;
    }
    result = connected(attempt, error);
    attempt.listen_comm = nullptr;
    attempt.done = true;
    return result;
}

int Service::connected(const Batch::Attempt& attempt, std::string* error) {
    Connection& connection = *attempt.connection;
    net::Net& net = *net_->net();
    if (attempt.listen_comm != nullptr) {
        *error = "closeListen";
        if (const int result = net.close_listen(attempt.listen_comm); result != 0) {
            return result;
        }
    }
    *error = "regMr";
    if (const int result = connection.register_buffers(net); result != 0) {
        return result;
    }
    log_info(kSubsysNet, "%s Channel %02d : %d -> %d [%s] via NET/%s/%d",
             pattern_name(connection.key().pattern), connection.key().channel,
             connection.key().from, connection.key().to, connection.sender() ? "send" : "receive",
             net.name(), connection.device);
    return 0;
}

void Service::close_listeners(Batch& batch) {
    for (Batch::Attempt& attempt : batch.attempts) {
        if (attempt.listen_comm != nullptr) {
            net_->net()->close_listen(std::exchange(attempt.listen_comm, nullptr));
        }
    }
}

}  // namespace softdev::nccl
