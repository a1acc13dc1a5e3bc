// SPDX-License-Identifier: Apache-2.0
// What is left to do once the council has closed: a rank has left or was lost, and nothing can be
// agreed on any more. A switch that was named before is made all the same.
#include <algorithm>

#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// Whoever leaves finishes the lane he is making; torn down here it would look to him like a link
// that died.
constexpr std::int64_t kLanesGrace = 3'000'000'000;
// Under a plan, behind the close. A rank whose end has closed it is a few iterations ahead at most.
constexpr std::uint64_t kMissedIterations = 64;

}  // namespace

void Director::wind_up() {
    std::unique_ptr<executor::Executor> unused;  // freed when the lock is not held any more
    {
        const std::lock_guard lock(inbox_mutex_);
        if (!no_more_) {
            return;
        }
        if (staged_ != nullptr && !armed_committed_ && !switch_.uses(staged_.get())) {
            staged_ready_ = 0;
            staged_pointer_ = nullptr;
            unused = std::move(staged_);
        }
    }
    if (closed_ns_ == 0) {
        closed_ns_ = cuda::host_now();
        closed_at_ = switch_.calls();
    }
    if (staging_ != nullptr) {
        staging_->discarded = true;  // lanes that others are making already are made with them
    }
    if (course_ == Course::Staging || course_ == Course::Arming) {
        recover();
    }
    // Those that have been in a plan in force may be at its last transfers, here or with others.
    if (staged_ == nullptr && staging_ == nullptr && cuda::host_now() - closed_ns_ > kLanesGrace) {
        keep_lanes_ = std::max(switch_.used_lanes(), current_ != nullptr ? current_->lanes() : 0);
    }
    miss_guard();
}

// The leader's guard hears nothing of the other ranks and cannot end the plan; nor can any rank by
// itself. A job that goes on like that should know; one that merely ends has nothing to be told.
void Director::miss_guard() {
    const bool guarded = guard_ != nullptr && current_ != nullptr && !current_->broken() &&
                         in_force_.predicted.late_or_merged();
    const std::uint64_t calls = switch_.calls() - closed_at_;
    if (guard_missed_ || !guarded || calls < kMissedIterations * in_force_.bucket_bytes.size()) {
        return;
    }
    guard_missed_ = true;
    DEFT_WARN("accuracy guard: it cannot act any more (%s); the plan in force goes on",
              council_.reason().c_str());
}

}  // namespace deft::director
