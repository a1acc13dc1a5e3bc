// SPDX-License-Identifier: Apache-2.0
// A training job without a framework: kernels that last as long as its compute, all-reduces of as
// many bytes as its gradients. CUDA driver API and NCCL only.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "perf/jobs/replay/job.h"
#include "perf/jobs/replay/ranks.h"

int main(int argc, char** argv) {
    replay::Options options;
    try {
        if (!replay::parse(argc, argv, options)) {
            return 0;
        }
        const replay::Profile profile =
            replay::read_profile(options.profile).scaled(options.time_scale, options.size_scale);
        std::vector<replay::Piece> schedule;
        if (!options.schedule.empty()) {
            schedule = replay::read_schedule(options.schedule, profile);
        }
        if (options.rank < 0) {
            return replay::start_ranks(options, argc, argv);
        }
        return replay::run_rank(options, profile, schedule);
    } catch (const replay::InputError& error) {
        std::fprintf(stderr, "replay: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "replay: rank %d: %s\n", options.rank, error.what());
        std::fflush(nullptr);
        std::_Exit(1);  // the communicator's threads may still be at work
    }
}
