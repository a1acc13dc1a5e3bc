// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/service.h"

#include <pthread.h>

#include <chrono>
#include <cstring>

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

void Service::start(net::CommNet* net) {
    net_ = net;
    thread_ = std::thread([this] { run(); });
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
    pthread_setname_np(pthread_self(), "NCCL Service");
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
    if (!batch.begun) {
        batch.begun = true;
        for (Connection* connection : batch.wanted) {
            batch.attempts.emplace_back().connection = connection;
        }
    }
    if (batch.cancelled.load()) {
        close_listeners(batch);
        batch.result = ncclInternalError;
        batch.error = "cancelled";
        return true;
    }
    bool all = true;
    for (Batch::Attempt& attempt : batch.attempts) {
        if (attempt.done) {
            continue;
        }
        batch.result = step(batch, attempt, &batch.error);
        if (batch.result != 0) {
            const Connection& c = *attempt.connection;
            batch.error =
                format("%s of the network plugin failed with %d (%s connection %s rank %d)",
                       batch.error.c_str(), batch.result, pattern_name(c.key().pattern),
                       c.sender() ? "to" : "from", c.peer());
            close_listeners(batch);
            return true;
        }
        all &= attempt.done;
    }
    return all;
}

int Service::step(Batch& batch, Batch::Attempt& attempt, std::string* error) {
    Control& control = *batch.control;
    Connection& connection = *attempt.connection;
    net::Net& net = *net_->net();
    const auto failed = [error](const char* call, int result) {
        *error = call;
        return result;
    };
    int result = 0;
    if (!attempt.told) {
        const Traffic& traffic = batch.traffic[static_cast<size_t>(connection.key().pattern)];
        net::Attributes attributes = attributes_of(connection, traffic, nullptr);
        attempt.told = true;
        if ((result = net.set_net_attr(net_->context(), &attributes)) != 0) {
            return failed("setNetAttr", result);
        }
    }
    if (connection.comm == nullptr && connection.sender()) {
        if (!attempt.have_handle) {
            const auto handle = control.take_handle(connection.peer(), connection.key().packed());
            if (!handle || handle->size() != sizeof attempt.handle) {
                return 0;
            }
            std::memcpy(attempt.handle, handle->data(), sizeof attempt.handle);
            attempt.have_handle = true;
        }
        net::DeviceHandle* device = nullptr;
        result = net.connect(net_->context(), connection.device, attempt.handle, &connection.comm,
                             &device);
        if (result != 0) {
            return failed("connect", result);
        }
    } else if (connection.comm == nullptr) {
        if (attempt.listen_comm == nullptr) {
            net::Properties properties;
            if ((result = net.get_properties(connection.device, &properties)) != 0) {
                return failed("getProperties", result);
            }
            if ((result = net.listen(net_->context(), connection.device, attempt.handle,
                                     &attempt.listen_comm)) != 0) {
                return failed("listen", result);
            }
            control.send(connection.peer(), Letter::kHandle, connection.key().packed(),
                         std::string(attempt.handle, sizeof attempt.handle));
        }
        net::DeviceHandle* device = nullptr;
        if ((result = net.accept(attempt.listen_comm, &connection.comm, &device)) != 0) {
            return failed("accept", result);
        }
        if (connection.comm != nullptr) {
            void* listen_comm = std::exchange(attempt.listen_comm, nullptr);
            if ((result = net.close_listen(listen_comm)) != 0) {
                return failed("closeListen", result);
            }
        }
    }
    if (connection.comm != nullptr) {
        if ((result = connection.register_buffers(net)) != 0) {
            return failed("regMr", result);
        }
        attempt.done = true;
        log_info(kSubsysNet, "%s Channel %02d : %d -> %d [%s] via NET/%s/%d",
                 pattern_name(connection.key().pattern), connection.key().channel,
                 connection.key().from, connection.key().to,
                 connection.sender() ? "send" : "receive", net.name(), connection.device);
    }
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
