// SPDX-License-Identifier: Apache-2.0
// What the files of several ranks say together: who is missing, who contradicts whom, and whether
// deft was really in the path.
#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <set>

#include "tools/report.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

void check_membership(RunReport& run) {
    const ObserveFile& first = run.ranks.front();
    std::set<std::int64_t> present;
    for (const ObserveFile& file : run.ranks) {
        if (file.ranks != first.ranks) {
            run.problems.push_back(fmt::format(
                "{} is of a job with {} ranks, {} of one with {}: name the files of one "
                "run",
                first.path, first.ranks, file.path, file.ranks));
            run.one_run = false;
            return;
        }
        if (!present.insert(file.rank).second) {
            run.problems.push_back(fmt::format(
                "rank {} occurs twice ({}): name the files of one run", file.rank, file.path));
            run.one_run = false;
        }
    }
    std::vector<std::int64_t> missing;
    std::int64_t missing_count = 0;
    constexpr std::size_t kMostNamed = 4096;
    for (std::int64_t rank = 0; rank < first.ranks && missing.size() < kMostNamed; ++rank) {
        if (!present.contains(rank)) {
            missing.push_back(rank);
        }
    }
    missing_count = first.ranks - static_cast<std::int64_t>(present.size());
    if (missing_count > 0 && !missing.empty()) {
        run.notes.push_back(fmt::format("{} of {} ranks are not among the files: rank {}",
                                        missing_count, first.ranks, ranges(missing)));
    }
}

// Ranks of one job have a communicator in common, or one with a third rank of it: the job's first.
void check_one_job(RunReport& run) {
    const ObserveFile& first = run.ranks.front();
    for (const ObserveFile& file : run.ranks) {
        if (file.mode != first.mode) {
            run.problems.push_back(fmt::format(
                "{} is of a job in mode {}, {} of one in mode {}: name the files of one run",
                first.path, first.mode, file.path, file.mode));
            run.one_run = false;
            return;
        }
    }
    for (const ObserveFile& file : run.ranks) {
        if (file.job.id != first.job.id && !file.job.id.empty() && !first.job.id.empty()) {
            run.problems.push_back(
                fmt::format("{} is of job {}, {} of job {}: name the files of one run", first.path,
                            first.job.id, file.path, file.job.id));
            run.one_run = false;
            return;
        }
    }
    std::set<std::string> known(first.communicators.begin(), first.communicators.end());
    std::vector<const ObserveFile*> others;
    for (const ObserveFile& file : run.ranks) {
        if (file.communicators.empty() || known.empty()) {
            return;  // written before any was made, or by a release that did not list them
        }
        others.push_back(&file);
    }
    for (bool found = true; found;) {
        found = false;
        std::erase_if(others, [&](const ObserveFile* file) {
            const bool ours =
                std::any_of(file->communicators.begin(), file->communicators.end(),
                            [&](const std::string& name) { return known.contains(name); });
            if (ours) {
                known.insert(file->communicators.begin(), file->communicators.end());
                found = true;
            }
            return ours;
        });
    }
    if (!others.empty()) {
        run.one_run = false;
        run.problems.push_back(
            fmt::format("{} and {} have no communicator in common: name the files of one run",
                        first.path, others.front()->path));
    }
}

// Every rank must have seen the same sequence of collectives (NCCL itself demands it).
std::string difference(const ObserveFile& a, const ObserveFile& b) {
    if (a.cycle_length != b.cycle_length) {
        return fmt::format("{} and {} calls in an iteration", a.cycle_length, b.cycle_length);
    }
    if (a.buckets.size() != b.buckets.size()) {
        return fmt::format("{} and {} buckets", a.buckets.size(), b.buckets.size());
    }
    for (std::size_t i = 0; i < a.buckets.size(); ++i) {
        const ObservedBucket& x = a.buckets[i];
        const ObservedBucket& y = b.buckets[i];
        if (x.position != y.position || x.bytes != y.bytes || x.type != y.type || x.op != y.op) {
            return fmt::format("bucket {} is {} bytes of {} and {} bytes of {}", i, x.bytes, x.type,
                               y.bytes, y.type);
        }
    }
    return {};
}

void check_cycles(RunReport& run) {
    const ObserveFile* reference = nullptr;
    std::vector<std::int64_t> learning;
    for (const ObserveFile& file : run.ranks) {
        if (!file.stable) {
            learning.push_back(file.rank);
            continue;
        }
        if (reference == nullptr) {
            reference = &file;
            continue;
        }
        const std::string what = difference(*reference, file);
        if (!what.empty()) {
            run.problems.push_back(
                fmt::format("ranks {} and {} learned different iterations: {}; are they of one run "
                            "and one job step?",
                            reference->rank, file.rank, what));
            return;
        }
    }
    if (!learning.empty()) {
        run.notes.push_back(fmt::format(
            "rank {}: no stable iteration was learned; let the job run longer, or its sequence of "
            "collectives changes all the time",
            ranges(learning)));
    }
}

// What the ranks say about their own measurements.
void check_measurements(RunReport& run) {
    std::vector<std::int64_t> unfinished;
    std::set<std::string> notes;
    std::int64_t captured = 0, lost = 0;
    for (const ObserveFile& file : run.ranks) {
        if (!file.final_report) {
            unfinished.push_back(file.rank);
        }
        if (!file.events_note.empty()) {
            notes.insert(file.events_note);
        }
        captured = add_counts(captured, file.captured_calls);
        lost = add_counts(lost, file.lost_calls);
    }
    if (!unfinished.empty()) {
        run.notes.push_back(
            fmt::format("rank {}: written while the job ran; it still runs, or was killed",
                        ranges(unfinished)));
    }
    for (const std::string& note : notes) {
        run.notes.push_back(fmt::format("no times: {}", note));
    }
    if (captured > 0) {
        run.notes.push_back(
            fmt::format("{} calls were captured into CUDA graphs and are not timed", captured));
    }
    if (lost > 0) {
        run.notes.push_back(fmt::format("{} calls came too fast and were not timed", lost));
    }
}

void check_path(RunReport& run) {
    std::vector<std::int64_t> no_hooks, no_plugin;
    std::set<std::string> versions;
    for (const ObserveFile& file : run.ranks) {
        versions.insert(file.library_version);
        if (file.all_calls() == 0) {
            no_hooks.push_back(file.rank);
        }
        if (!file.plugin_loaded && file.ranks > 1) {
            no_plugin.push_back(file.rank);
        }
    }
    if (!no_hooks.empty()) {
        run.problems.push_back(fmt::format(
            "rank {}: the hooks were never reached; start the job with `deft run`, and know that a "
            "program that looks NCCL up by handle (dlopen and dlsym, ctypes, JAX) or carries its "
            "own "
            "copy bypasses a preload",
            ranges(no_hooks)));
    }
    if (!no_plugin.empty()) {
        run.notes.push_back(fmt::format(
            "rank {}: NCCL did not load the plugin; it has no need of it where all ranks share "
            "memory on one host, else set NCCL_NET_PLUGIN=deft, unset NCCL_NET, and look for "
            "NET/Plugin under NCCL_DEBUG=INFO",
            ranges(no_plugin)));
    }
    if (versions.size() > 1) {
        run.problems.push_back(
            fmt::format("the ranks ran different releases of deft: {}; install one everywhere",
                        fmt::format("{}", fmt::join(versions, ", "))));
    }
}

}  // namespace

RunReport compare_ranks(std::vector<ObserveFile> files) {
    RunReport run;
    run.ranks = std::move(files);
    if (run.ranks.empty()) {
        return run;
    }
    std::stable_sort(run.ranks.begin(), run.ranks.end(),
                     [](const ObserveFile& a, const ObserveFile& b) { return a.rank < b.rank; });
    check_membership(run);
    check_one_job(run);
    check_path(run);
    check_measurements(run);
    check_cycles(run);
    return run;
}

}  // namespace deft::tools
