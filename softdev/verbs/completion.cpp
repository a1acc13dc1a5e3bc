// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/completion.h"

#include <algorithm>
#include <cstring>

namespace softdev::verbs {

ibv_wc garbage_completion() {
    ibv_wc wc;
    std::memset(&wc, 0x5b, sizeof wc);
    wc.vendor_err = 0;
    return wc;
}

bool Cq::push(const Completion& completion) {
    bool tell = false;
    {
        const deft::MutexLock lock(mutex_);
        if (overrun_ || entries_.size() >= static_cast<std::size_t>(cqe)) {
            overrun_ = true;
            return false;
        }
        entries_.push_back(completion);
        tell = armed_ == Armed::any || (armed_ == Armed::solicited && completion.solicited);
        if (tell) {
            armed_ = Armed::no;
        }
    }
    if (tell && channel != nullptr) {
        static_cast<Channel*>(channel)->events.push(this);
    }
    return true;
}

int Cq::poll(int most, ibv_wc* out) {
    const deft::MutexLock lock(mutex_);
    int got = 0;
    while (got < most && !entries_.empty()) {
        const Completion& next = entries_.front();
        if (next.not_before.time_since_epoch().count() != 0 &&
            next.not_before > std::chrono::steady_clock::now()) {
            break;
        }
        out[got++] = next.wc;
        next.freed->store(next.up_to, std::memory_order_release);
        entries_.pop_front();
    }
    return got == 0 && overrun_ && entries_.empty() ? -1 : got;
}

void Cq::request_notification(bool solicited_only) {
    const deft::MutexLock lock(mutex_);
    if (armed_ != Armed::any) {
        armed_ = solicited_only ? Armed::solicited : Armed::any;
    }
}

void Cq::drop(const void* owner) {
    const deft::MutexLock lock(mutex_);
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [&](const Completion& one) { return one.owner == owner; }),
                   entries_.end());
}

bool Cq::resize(int entries) {
    const deft::MutexLock lock(mutex_);
    if (static_cast<std::size_t>(entries) < entries_.size()) {
        return false;
    }
    cqe = entries;
    return true;
}

}  // namespace softdev::verbs
