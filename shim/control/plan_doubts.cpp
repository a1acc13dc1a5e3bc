// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_doubts.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// Memory that a card lacks may come free when the job's next phase begins.
constexpr std::uint64_t kMemoryRetry = 60'000'000'000;  // nanoseconds
constexpr std::uint32_t kMostDoublings = 6;
constexpr const char* kScaled =
    "the job scales its gradients, and late or merged ones would carry an older scale";
// A job that is well at its learning rate may diverge with gradients that come an iteration late.
// What the companion measures of that only takes away from what the operator allows: it is of the
// warm-up, and of a mean over directions (docs/companion.md).
constexpr const char* kRateUnknown =
    "late or merged gradients bear smaller learning rates, and what this job's bears was not "
    "measured; DEFT_MAX_DELAY=1 or DEFT_MAX_MERGE=2 says that it does";

// Of "rank 1: reason".
std::string_view reason_in(std::string_view unproven) {
    return unproven.substr(std::min(unproven.find(": "), unproven.size()));
}

}  // namespace

PlanDoubts::PlanDoubts() : unfit_backoff_(kMemoryRetry, kMemoryRetry << kMostDoublings) {}

const char* PlanDoubts::of(const JobView& view, const executor::Optimizer& optimizer) const {
    const Settings set = Settings::process();
    if (set.mode < ShimMode::Deft) {
        return nullptr;
    }
    if (view.series == Series::Shards) {
        return nullptr;  // nothing of theirs is ever late or merged
    }
    if (view.beside != nullptr) {
        return view.beside;  // whatever plan the operator names
    }
    if (view.signature == unfit_.signature && cuda::host_now() < unfit_.until_ns) {
        return unfit_.why;
    }
    if (unproven_ != nullptr) {
        return unproven_;
    }
    if (set.forced_merge > 0) {
        return nullptr;
    }
    const char* const doubt = !proof_needed() ? doubt_about(view) : doubt_about_proven(view);
    return optimizer.scaled   ? kScaled
           : doubt != nullptr ? doubt
           : set.rate_unknown ? kRateUnknown
                              : nullptr;
}

bool PlanDoubts::decide(const JobView& view, const executor::Optimizer& optimizer) {
    latest_ = of(view, optimizer);
    const bool passed = latest_ == nullptr && doubted_signature_ == view.signature;
    doubted_signature_ = latest_ != nullptr ? view.signature : 0;
    say();
    return passed;
}

bool PlanDoubts::changed(const JobView& view, const char* doubt) const {
    return (doubted_signature_ == view.signature && doubt == nullptr) || unsaid(doubt);
}

void PlanDoubts::note_unproven(Unproven unproven) {
    pending_ = unproven.pending;
    unproven_ = told_.keep(std::move(unproven.why));
}

// Whoever has asked for more should know why there is none. What is pending may pass; where there
// is no companion, that is said instead.
bool PlanDoubts::unsaid(const char* doubt) const {
    if (doubt == nullptr || !proof_needed() || untrusted() != nullptr ||
        (doubt == unproven_ && pending_)) {
        return false;
    }
    return !said_.contains(doubt == unproven_ ? reason_in(doubt) : std::string_view(doubt));
}

void PlanDoubts::say() {
    if (unsaid(latest_)) {
        said_.emplace(latest_ == unproven_ ? reason_in(latest_) : std::string_view(latest_));
        DEFT_WARN("DEFT_MODE=%s does what exact does: %s (docs/companion.md)",
                  Config::process().text(Key::Mode).c_str(), latest_);
    }
}

// A plan that every call delivers itself needs no memory: it is looked for, and after 1, 2, 4 ...
// minutes, where no plan is in force then and the problem may have passed, the other again.
void PlanDoubts::note_unfit(const Problem& problem, std::uint64_t signature) {
    unfit_.why = unfit_told_.keep(problem.why);
    unfit_.signature = signature;
    const auto wait_ns = static_cast<std::int64_t>(unfit_backoff_.failed());
    unfit_.until_ns =
        problem.may_pass ? cuda::host_now() + wait_ns : std::numeric_limits<std::int64_t>::max();
}

}  // namespace deft::director
