// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/context.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"

namespace deft::net {

std::shared_ptr<VerbsContext> VerbsContext::open(const VerbsLibrary& library,
                                                 const std::string& device, std::string& problem) {
    int count = 0;
    deft_verbs_device_t** const list = library.get_device_list(&count);
    if (list == nullptr) {
        problem = std::string("no RDMA devices: ") + std::strerror(errno);
        return nullptr;
    }
    problem = "libibverbs knows no device " + device;
    deft_verbs_context_t* context = nullptr;
    for (int i = 0; i < count && context == nullptr; ++i) {
        if (device == library.get_device_name(list[i])) {
            context = library.open_device(list[i]);
            problem = "cannot open " + device + ": " + std::strerror(errno);
        }
    }
    library.free_device_list(list);
    if (context == nullptr) {
        return nullptr;
    }
    problem.clear();
    return std::shared_ptr<VerbsContext>(new VerbsContext(library, context, device));
}

VerbsContext::VerbsContext(const VerbsLibrary& library, deft_verbs_context_t* context,
                           std::string device)
    : library_(library), context_(context), device_(std::move(device)) {
    ForkGuard::process().arm();
    // So that look() never waits: ibv_get_async_event(3).
    const int flags = ::fcntl(context_->async_fd, F_GETFL);
    ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
}

VerbsContext::~VerbsContext() {
    if (ForkGuard::process().in_child()) {
        return;  // the parent's, as all that was made of it
    }
    if (const int error = library_.close_device(context_); error != 0) {
        DEFT_WARN("%s: ibv_close_device: %s", device_.c_str(), std::strerror(error));
    }
}

bool VerbsContext::query_port(int number, deft_verbs_port_attr_t& attributes,
                              std::string& problem) const {
    attributes = {};
    const int error = library_.query_port(context_, static_cast<std::uint8_t>(number), &attributes);
    if (error != 0) {
        problem = device_ + ":" + std::to_string(number) + ": " + std::strerror(error);
    }
    return error == 0;
}

void VerbsContext::look() {
    if (!mutex_.try_lock()) {
        return;  // somebody is at it
    }
    const MutexLock lock(mutex_, std::adopt_lock);
    deft_verbs_async_event_t event{};
    while (library_.get_async_event(context_, &event) == 0) {
        take(event);
        library_.ack_async_event(&event);  // or what it is of could not be destroyed
    }
}

void VerbsContext::look_soon(Nanos now) {
    if (now - looked_.load(std::memory_order_relaxed) >= kMillisecond) {
        looked_.store(now, std::memory_order_relaxed);
        look();
    }
}

void VerbsContext::take(const deft_verbs_async_event_t& event) {
    switch (event.event_type) {
        case DEFT_VERBS_EVENT_PORT_ACTIVE:
        case DEFT_VERBS_EVENT_PORT_ERR:
            // Nobody has asked of others, nor is this the time to ask the driver.
            if (port(event.element.port_num).known.load(std::memory_order_relaxed)) {
                change(port(event.element.port_num), event.event_type == DEFT_VERBS_EVENT_PORT_ERR);
            }
            return;
        case DEFT_VERBS_EVENT_DEVICE_FATAL:
            fatal_.store(true, std::memory_order_relaxed);
            for (Port& each : ports_) {
                if (each.known.load(std::memory_order_relaxed)) {
                    change(each, true);
                }
            }
            for (const auto& [qp, lost] : watched_) {
                lost->store(true, std::memory_order_relaxed);
            }
            return;
        case DEFT_VERBS_EVENT_QP_FATAL:
        case DEFT_VERBS_EVENT_QP_REQ_ERR:
        case DEFT_VERBS_EVENT_QP_ACCESS_ERR: {
            const auto found = watched_.find(event.element.qp);
            if (found != watched_.end()) {
                found->second->store(true, std::memory_order_relaxed);
            }
            return;
        }
        default:
            return;
    }
}

void VerbsContext::get_to_know(int number) {
    Port& one = port(number);
    if (one.known.load(std::memory_order_relaxed)) {
        return;
    }
    deft_verbs_port_attr_t attributes{};
    std::string problem;
    one.down.store(
        !query_port(number, attributes, problem) || attributes.state != DEFT_VERBS_PORT_ACTIVE,
        std::memory_order_relaxed);
    one.known.store(true, std::memory_order_release);
}

void VerbsContext::change(Port& port, bool down) {
    port.down.store(down, std::memory_order_relaxed);
    (down ? port.lost : port.gained).fetch_add(1, std::memory_order_relaxed);
}

Carrier VerbsContext::carrier(int number) {
    look_soon(steady_now());
    const Port& one = port(number);
    if (!one.known.load(std::memory_order_acquire)) {
        const MutexLock lock(mutex_);
        get_to_know(number);
    }
    Carrier carrier;
    carrier.lost = one.lost.load(std::memory_order_relaxed);
    carrier.gained = one.gained.load(std::memory_order_relaxed);
    carrier.down = one.down.load(std::memory_order_relaxed);
    return carrier;
}

void VerbsContext::watch(const deft_verbs_qp_t* qp, std::atomic<bool>& lost) {
    const MutexLock lock(mutex_);
    watched_[qp] = &lost;
}

void VerbsContext::forget(const deft_verbs_qp_t* qp) {
    const MutexLock lock(mutex_);
    watched_.erase(qp);
}

}  // namespace deft::net
