// SPDX-License-Identifier: Apache-2.0
// What a plan may do to the job.
#pragma once

#include <cstdint>

namespace deft::planner {

// Who waits for a reduced gradient.
enum class Barrier {
    Update,  // optimizer.step() after backward waits for everything: an unmodified job
    Layer,  // forward of a layer waits for its own gradient only (ByteScheduler, P3, DeAR, US-Byte)
};

// What `best` minimises first, and what a verdict counts; ties go to fewer stale steps and then to
// fewer links.
enum class Objective {
    IterationTime,  // seconds per iteration
    UpdateTime,     // seconds per update: a merged plan pays for the updates it skips
    // Seconds per synchronous update that the plan is worth (progress.h): expected time to the same
    // loss. Ties go to more updates, then to less late bytes.
    Progress,
};

// Of a job of which nothing is known: the gradient noise scale over the batch of one iteration (1:
// half of the steps are lost to noise), and how many more iterations late bytes need for each
// update that they have missed, as a part. Both are at the careful end of what small trainings
// needed to the same loss (perf/results/worth.md, docs/planner.md).
inline constexpr double kNoiseScale = 1;
inline constexpr double kAgePrice = 0.4;

struct Options {
    // Caps on what may happen to accuracy (facts and measurements: docs/planner.md).
    std::uint32_t max_delay = 1;  // updates may lag their newest gradient by this many iterations
    std::uint32_t max_merge = 2;  // iterations summed into one update
    Barrier barrier = Barrier::Update;  // what `best` may assume about the job
    Objective objective = Objective::Progress;
    std::uint32_t max_period = 64;  // longest repeating pattern a policy may return

    bool allow_split = true;            // buckets may be cut
    bool allow_fusion = true;           // buckets may share one message (`best`, `us-byte`, `dear`)
    bool complete_generations = false;  // an update gets a generation whole or not (`best`)
    // An update may get some buckets, or a part of one, an iteration late and the others fresh
    // (`best`).
    bool mixed_ages = false;
    // So much less is fresh in them than fits, as a part: what the links or the job are slower than
    // thought shall not make an update wait.
    double slack = 0;
    // Reduce-scatters and all-gathers apart (`best`): DeAR's. deft carries them out between two
    // ranks, where they are named.
    bool halves = true;
    std::uint64_t grain = 512;             // cuts are multiples of this many bytes
    std::uint64_t least_piece = 1U << 20;  // no piece smaller than this
    double noise = 0.02;                   // gains below this fraction are "do nothing"

    // What merged and late gradients cost where nothing was measured of the job (progress.h).
    double noise_scale = kNoiseScale;
    double age_price = kAgePrice;

    // Policies of others, at the values they publish; 0 lets the policy choose.
    std::uint64_t partition_bytes = 32ULL << 20;  // ByteScheduler, all-reduce: 8 M parameters
    std::uint64_t credit_bytes = 64ULL << 20;     // ByteScheduler, all-reduce: 16 M parameters
    std::uint64_t fusion_bytes = 0;               // DeAR: 0 is tuned; theirs before tuning: 25 MB
    std::uint32_t covap_interval = 0;             // COVAP: 0 is ceil(CCR)
    double startup_seconds = 0;                   // MG-WFBP plans with it: 0 is the link's own
    double target_seconds = 0;                    // fewest-links: 0 is the time all links reach

    // False: a policy leaves the predicted times out (0), for a search that simulates few plans.
    bool predict = true;

    // DeFT
    // Knapsacks so many times as large as the windows (tightening loop); below 1, what stays free.
    double capacity_factor = 1.0;
    // Pieces times links looked at while packing windows: how finely the tightening loop searches.
    std::uint64_t effort = 200000;

    bool operator==(const Options&) const = default;
};

}  // namespace deft::planner
