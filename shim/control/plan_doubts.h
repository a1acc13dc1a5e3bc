// SPDX-License-Identifier: Apache-2.0
// Why plans for a cycle must neither delay nor merge, as the leader sees it. Says each reason once.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "shim/control/backoff.h"
#include "shim/control/job_view.h"
#include "shim/control/problem.h"
#include "shim/control/proof.h"
#include "shim/settings/optimizer.h"

namespace deft::director {

// Threads: the shim's background thread. Words that it gives away stay good.
class PlanDoubts {
public:
    PlanDoubts();
    PlanDoubts(const PlanDoubts&) = delete;

    // In words, as it stands now; null: plans for this cycle may delay and merge. By the leader's
    // cycle alone: on another rank it may have been found to begin elsewhere, and another gradient
    // to be its last. A plan that the operator names is carried out all the same, where every rank
    // can.
    const char* of(const JobView& view, const executor::Optimizer& optimizer) const;

    // Decides about this cycle: latest() is of() from now on, and is said once for each reason,
    // whichever rank it is that has it first. True: there was a doubt about it, which has passed.
    bool decide(const JobView& view, const executor::Optimizer& optimizer);
    const char* latest() const { return latest_; }
    // It has been decided about in a doubt that is not there any more, or there is one that was not
    // said yet.
    bool changed(const JobView& view, const char* doubt) const;

    // What the ranks' companions have not proven, as it stands now; only where proof is needed.
    void note_unproven(Unproven unproven);
    // In words: nothing may be late or merged, whatever is asked for. Null: it may.
    const char* unproven() const { return unproven_; }

    // A rank cannot carry out late or merged plans for this cycle, for want of memory, most likely.
    void note_unfit(const Problem& problem, std::uint64_t signature);
    // A late or merged plan has come into force.
    void note_fit() { unfit_backoff_.succeeded(); }

private:
    // A rank cannot carry out late or merged plans: why, of which gradients, until when.
    struct Unfit {
        const char* why = nullptr;
        std::uint64_t signature = 0;
        std::int64_t until_ns = 0;
    };

    bool unsaid(const char* doubt) const;
    void say();

    Reasons told_;        // what unproven() was
    Reasons unfit_told_;  // what Unfit::why was
    const char* unproven_ = nullptr;
    bool pending_ = false;                     // it may be proven soon
    std::set<std::string, std::less<>> said_;  // without the rank
    const char* latest_ = nullptr;
    std::uint64_t doubted_signature_ = 0;  // decided about in doubt
    Unfit unfit_;
    Backoff unfit_backoff_;  // of that in a row
};

}  // namespace deft::director
