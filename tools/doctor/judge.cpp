// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/judge.h"

#include <fmt/format.h>

namespace deft::tools::doctor {

std::string nccl_version_text(int version) {
    if (version <= 0) {
        return "of unknown version";
    }
    // NCCL 2.8 and earlier counted in hundreds.
    const int major = version >= 10000 ? version / 10000 : version / 1000;
    const int rest = version >= 10000 ? version % 10000 : version % 1000;
    return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

Diagnoses judge(const Facts& facts) {
    Diagnoses found;
    judge_program(facts, found);
    judge_meeting(facts, found);
    judge_preload(facts, found);
    judge_processes(facts, found);
    judge_nccl(facts, found);
    judge_plugin(facts, found);
    judge_settings(facts, found);
    judge_ucx(facts, found);
    judge_links(facts, found);
    judge_host(facts, found);
    judge_peer(facts, found);
    judge_records(facts, found);
    sort_by_severity(found);
    return found;
}

}  // namespace deft::tools::doctor
