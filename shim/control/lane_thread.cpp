// SPDX-License-Identifier: Apache-2.0
// Lanes of several communicators. Making one waits for its ranks. Where a rank made those of one
// communicator after those of another, and another rank the other way round (HSDP: the ranks of a
// shard and those of a replica), they would wait for each other until their time was over.
#include "base/log.h"
#include "base/thread.h"
#include "shim/control/director.h"
#include "shim/cuda/driver.h"

namespace deft::director {

// False: this thread has to do it.
bool Director::open_on_thread() noexcept {
    if (!others_.load(std::memory_order_acquire)) {
        return false;
    }
    const auto open = [](void* self) -> void* {
        static_cast<Director*>(self)->open_lanes();
        return nullptr;
    };
    opening_.store(true, std::memory_order_release);
    if (start_thread("deft-lanes", 0, open, this) != 0) {
        opening_.store(false, std::memory_order_release);
        return false;
    }
    return true;
}

// In the place of a tick(), which leaves the director alone meanwhile.
void Director::open_lanes() noexcept {
    const log::About about(info_.hash, info_.rank);
    {
        const MutexLock lock(work_mutex_);
        try {
            JobView unused;  // its cycle has been learned
            make_ready(unused);
        } catch (const std::exception& error) {
            follower_.say(error.what());
            recover();
        } catch (...) {
            recover();
        }
        remember_facts();
    }
    opening_.store(false, std::memory_order_release);  // the last: the director may be freed now
}

}  // namespace deft::director
