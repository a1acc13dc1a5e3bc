// SPDX-License-Identifier: Apache-2.0
// Whether every sum of a rank's cycle is proven to be a gradient, by what the job's companion has
// said (include/deft/deft.h). No sum comes late, merged or filtered without that proof on every
// rank, unless the operator vouches for the job (DEFT_GRADIENTS=trust).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shim/control/job_view.h"
#include "shim/control/message.h"

namespace deft::director {

// The mode changes deliveries, and nobody vouches for the job.
bool proof_needed();

// Ranks tell what their companions have proven: where that is needed, or layers may wait.
bool proof_told();

// Of one rank's cycle; `view` can be planned.
Proof prove(const JobView& view);
// The same where the cycle is not known at the moment, and `before` was the last that was.
Proof prove_still(const Proof& before);

// Why the ranks' proofs do not make one; `own` is the leader's companion.
struct Unproven {
    std::string why;       // "": all is proven
    bool pending = false;  // it may be soon
    bool layers = false;   // all is, and on every rank layers wait for their own
};
Unproven find_unproven(const std::map<int, Proof>& proofs, int nranks, const std::string& own);

// The reasons that peers have given, which stay where they are. A peer that names a new one again
// and again does not fill the memory.
class Reasons {
public:
    static constexpr std::size_t kMost = 32;

    // Stays good; null: there is none.
    const char* keep(std::string why);

private:
    std::set<std::string> kept_;
};

// Where the companion says that the iteration begins; npos: it does not say, or there are sums that
// it does not know.
std::size_t first_place(const std::vector<Gradient>& gradients);
// Makes the view begin there.
void begin_at_first_place(JobView& view);
std::vector<std::uint64_t> marks_of(const JobView& view);

}  // namespace deft::director
