// SPDX-License-Identifier: Apache-2.0
// One rank of a job that checks every element NCCL gives it. It says what it found in one line.
//
// usage: job_main SCENARIO RANK RANKS ID_FILE [DEVICE]
#include <cstdlib>

#include "tests/system/realnccl/job.h"

int main(int argc, char** argv) {
    constexpr unsigned kWatchdogSeconds = 400;
    ::alarm(kWatchdogSeconds);
    if (argc < 5) {
        std::fprintf(stderr, "usage: job_main SCENARIO RANK RANKS ID_FILE [DEVICE]\n");
        return 2;
    }
    deft::test::Job job;
    job.rank = std::atoi(argv[2]);
    job.ranks = std::atoi(argv[3]);
    job.id_file = argv[4];
    job.device = argc > 5 ? std::atoi(argv[5]) : 0;
    deft::test::Scenarios all = deft::test::training();
    all.merge(deft::test::every_collective());
    all.merge(deft::test::endings());
    const auto scenario = all.find(argv[1]);
    if (scenario == all.end()) {
        std::fprintf(stderr, "no scenario %s\n", argv[1]);
        return 2;
    }
    job.open();
    scenario->second(job);
    return 0;
}
