// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/module/gate.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace deft::ucx {
namespace {

std::atomic<int> inside{0};
std::atomic<bool> shut{false};
const pid_t owner = ::getpid();

// This module needs UCX, so it is taken down before it. A thread that is held up inside of a driver
// for longer is not waited for; in a forked child there are no such threads.
__attribute__((destructor)) void shut_gate() {
    using namespace std::chrono_literals;
    shut.store(true);
    const auto end = std::chrono::steady_clock::now() + 1s;
    while (inside.load() != 0 && ::getpid() == owner && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(100us);
    }
}

// Counted before it looks: whoever is not seen by shut_gate() sees that it is shut.
bool enter() {
    inside.fetch_add(1);
    return !shut.load();
}

}  // namespace

Call::Call() : open_(enter()) {}

Call::~Call() {
    inside.fetch_sub(1);
}

}  // namespace deft::ucx
