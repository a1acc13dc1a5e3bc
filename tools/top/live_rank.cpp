// SPDX-License-Identifier: Apache-2.0
#include "tools/top/live_rank.h"

namespace deft::tools {
namespace {

using Seconds = std::chrono::duration<double>;

// A process that computes on all cores answers late.
constexpr Seconds kPatience{5};
// Whoever has said nothing for so long, while others have said all, is stopped.
constexpr Seconds kPatienceAlone{2};

}  // namespace

bool enough(const Answers& answers, Seconds waited) {
    const bool nobody = answers.silent + answers.first + answers.complete == 0;
    if (nobody || waited >= kPatience) {
        return true;
    }
    if (answers.complete == 0 || answers.first > 0) {
        return false;
    }
    return answers.silent == 0 || waited >= kPatienceAlone;
}

}  // namespace deft::tools
