// SPDX-License-Identifier: Apache-2.0
// What the leader does where nothing comes of a staging.
#include <algorithm>
#include <limits>

#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// What failed for a reason that may pass is tried again, seldom and not for ever.
constexpr std::int64_t kFirstRetry = 1'000'000'000;  // nanoseconds
constexpr std::uint32_t kStageTries = 6;
// Memory that a card lacks may come free when the job's next phase begins.
constexpr std::int64_t kMemoryRetry = 60'000'000'000;
constexpr std::uint32_t kMostDoublings = 6;

}  // namespace

// Nothing comes of this staging. Drop: not every rank makes its lanes, so nobody waits for them.
// Discard: all do; only what is staged goes.
void Director::give_up_staging(Kind how) {
    given_up_ = {};
    given_up_.kind = how;
    given_up_.stage = stage_serial_;
    tell_given_up();
}

// The plan in force has ended while another was to take its place.
void Director::leave_staging() {
    if (course_ == Course::Staging || course_ == Course::Arming) {
        give_up_staging(open_proposed_ ? Kind::Discard : Kind::Drop);
    }
}

// False: the council is busy, and the others have to be told later.
bool Director::tell_given_up() {
    if (given_up_.stage == 0) {
        return true;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_;
    proposal.switch_call = kNever;
    proposal.body = encode(given_up_);
    if (!council_.propose(std::move(proposal))) {
        return false;
    }
    ++next_serial_;
    given_up_.stage = 0;
    return true;
}

// A rank has its lanes and cannot carry out a plan that delays or merges, most likely for want of
// memory. One that every call delivers itself needs none: that is looked for, and after 1, 2, 4 ...
// minutes, where no plan is in force then and it may have passed, the other again. False: it was no
// such plan.
bool Director::plan_without_memory(const Problem& problem) {
    if (current_ != nullptr || networks_only_ || !plan_.predicted.late_or_merged()) {
        return false;
    }
    DEFT_INFO("rank %d: the plan cannot be carried out: %s", info_.rank, problem.why.c_str());
    unfit_why_ = problem.why;
    unfit_signature_ = staged_signature_;
    const std::int64_t wait_ns = kMemoryRetry << std::min(unfit_times_++, kMostDoublings);
    unfit_until_ns_ =
        problem.may_pass ? cuda::host_now() + wait_ns : std::numeric_limits<std::int64_t>::max();
    plans_.erase(staged_signature_);
    profile_stale_ = profile_stale_ || facts_.switched > 0;  // taken under that plan, maybe
    planned_signature_ = 0;
    enter(Course::Watching);
    return true;
}

// Nothing comes of this staging. What may pass is tried again: 1, 2, 4 ... seconds later.
void Director::refuse(const Problem& problem) {
    if (networks_only_ && open_proposed_) {
        networks_refused(problem);
        return;
    }
    networks_only_ = false;
    say(problem.why.c_str());
    if (current_ != nullptr) {  // it was to replace a plan, which goes on
        plan_ = in_force_;
        const auto known = plans_.find(planned_signature_);
        if (known != plans_.end() && !tightening_) {
            known->second.plan = in_force_;  // taken up again after an interruption
        }
        enter(Course::Running);
        return;
    }
    enter(Course::Watching);
    if (!problem.may_pass) {
        return;
    }
    if (++stage_tries_ == kStageTries) {
        say(("given up after " + std::to_string(kStageTries) +
             " attempts; the last: " + problem.why)
                .c_str());
        enter(Course::Resting);
        return;
    }
    planned_signature_ = 0;
    retry_at_ns_ = cuda::host_now() + (kFirstRetry << (stage_tries_ - 1));
}

}  // namespace deft::director
