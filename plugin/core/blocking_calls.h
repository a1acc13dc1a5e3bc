// SPDX-License-Identifier: Apache-2.0
// A thread for calls that may take a second: ibv_modify_qp to RTR waits for the neighbour's
// address inside of the call.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "base/monitor.h"
#include "base/thread_annotations.h"

namespace deft::net {

// Any thread. Never destroyed: calls of it may be under way when the process ends.
class BlockingCalls {
public:
    explicit BlockingCalls(const char* name) : name_(name) {}
    BlockingCalls(const BlockingCalls&) = delete;
    BlockingCalls& operator=(const BlockingCalls&) = delete;

    // Calls run one after the other, in their order. The thread is started by the first. False: it
    // cannot be, or this is a forked child, to which no queue pair belongs; `call` is then dropped.
    bool run(std::function<void()> call);

private:
    static void* main(void* self);
    [[noreturn]] void work();

    const char* const name_;
    Monitor monitor_;
    std::deque<std::function<void()>> calls_ DEFT_GUARDED_BY(monitor_);
    bool started_ DEFT_GUARDED_BY(monitor_) = false;
};

// Of a device, by its name. Two, as a fence must not wait for a neighbour that does not answer; and
// what waits inside of one card's driver holds up no other card.
BlockingCalls& calls_that_connect(const std::string& device);
BlockingCalls& calls_that_end(const std::string& device);

}  // namespace deft::net
