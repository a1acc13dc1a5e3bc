// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/mixed_ages.h"

#include <algorithm>

#include "planner/policies/builder.h"
#include "planner/solver/closed_forms.h"

namespace deft::planner {
namespace {

constexpr double kTie = 1 + 1e-5;
constexpr int kCuts = 6;  // halvings of the bucket that is cut

// Where the bucket that begins `before` bytes after the first may be cut.
std::uint64_t cut_at(std::uint64_t fresh, std::uint64_t before, std::uint64_t bytes) {
    return fresh <= before ? 0 : std::min(fresh - before, bytes);
}

// So many fresh bytes or fewer: neither part of a bucket that is cut is too small to be sent on its
// own.
std::uint64_t rounded(const Profile& profile, const Options& options, std::uint64_t fresh) {
    const std::uint64_t least = std::max(options.least_piece, options.grain);
    std::uint64_t before = 0;
    for (const Bucket& bucket : profile.buckets) {
        if (fresh < before + bucket.bytes) {
            const std::uint64_t in_time = (fresh - before) / options.grain * options.grain;
            const std::uint64_t cut =
                std::min(in_time, bucket.bytes - std::min(bucket.bytes, least));
            return before + (options.allow_split && cut >= least ? cut : 0);
        }
        before += bucket.bytes;
    }
    return before;
}

}  // namespace

Plan mixed_ages(const Profile& profile, const Fabric& fabric, const Options& options,
                std::uint64_t fresh, const std::vector<std::uint32_t>& whole, Shares& cut) {
    PlanBuilder builder("mixed-ages", Barrier::Update);
    std::uint64_t before = 0;
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        const std::uint64_t bytes = profile.buckets[i].bytes;
        const std::uint64_t in_time = cut_at(fresh, before, bytes);
        const auto send = [&](std::uint64_t begin, std::uint64_t end, std::int32_t late) {
            if (begin == end) {
                return;
            }
            if (!whole.empty()) {
                builder.add(i, begin, end, whole[i]);
            } else {
                std::uint64_t at = begin;
                const auto& shares = cut.of(end - begin);
                for (std::uint32_t j = 0; j < shares.size(); ++j) {
                    if (shares[j] > 0) {
                        builder.add(i, at, at + shares[j], j);
                        at += shares[j];
                    }
                }
            }
            builder.deliver(0, i, begin, end, {-late, 1});
        };
        send(0, in_time, 0);
        send(in_time, bytes, 1);
        before += bytes;
    }
    return builder.finish(profile, fabric, options);
}

double mixed_ages_floor(const Profile& profile, double rate, std::uint64_t fresh) {
    std::vector<double> costs;
    std::uint64_t before = 0;
    for (const Bucket& bucket : profile.buckets) {
        costs.push_back(static_cast<double>(cut_at(fresh, before, bucket.bytes)) / rate);
        before += bucket.bytes;
    }
    return std::max(
        {profile.compute(), static_cast<double>(profile.bytes()) / rate, time_ddp(profile, costs)});
}

std::uint64_t most_fresh(const Profile& profile, const Fabric& fabric, const Options& with,
                         double seconds, const std::vector<std::uint32_t>& whole, Shares& cut) {
    Options options = with;
    options.predict = true;
    const double rate = fabric.best_rate();
    const auto fits = [&](std::uint64_t fresh) {
        return mixed_ages_floor(profile, rate, fresh) <= seconds &&
               mixed_ages(profile, fabric, options, fresh, whole, cut).predicted.iteration <=
                   seconds;
    };
    std::vector<std::uint64_t> ends{0};  // bytes up to the end of each bucket
    for (const Bucket& bucket : profile.buckets) {
        ends.push_back(ends.back() + bucket.bytes);
    }
    std::size_t good = 0;
    std::size_t bad = ends.size();
    while (bad - good > 1) {
        const std::size_t middle = (good + bad) / 2;
        (fits(ends[middle]) ? good : bad) = middle;
    }
    const auto less_slack = [&](std::uint64_t fresh) {
        const auto kept =
            static_cast<std::uint64_t>(static_cast<double>(fresh) * (1 - options.slack));
        return options.slack > 0 ? rounded(profile, options, kept) : fresh;
    };
    if (!options.allow_split || bad == ends.size()) {
        return less_slack(ends[good]);
    }
    // Neither part of the bucket that is cut is too small to be sent on its own.
    const std::uint64_t bytes = ends[bad] - ends[good];
    const std::uint64_t least = std::max(options.least_piece, options.grain);
    std::uint64_t taken = 0;
    std::uint64_t refused = bytes;
    for (int i = 0; i < kCuts; ++i) {
        const std::uint64_t at = (taken + refused) / 2 / options.grain * options.grain;
        if (at < least || bytes - at < least || at <= taken) {
            break;
        }
        (fits(ends[good] + at) ? taken : refused) = at;
    }
    return less_slack(ends[good] + taken);
}

Plan least_late(const Profile& profile, const Fabric& fabric, const Options& options) {
    Options simulated = options;
    simulated.predict = true;
    Shares cut(fabric, options);
    const std::vector<std::uint32_t> whole(fabric.links.size() == 1 ? profile.size() : 0, 0);
    const double late = mixed_ages(profile, fabric, simulated, 0, whole, cut).predicted.iteration;
    const std::uint64_t fresh = most_fresh(profile, fabric, options, late * kTie, whole, cut);
    return mixed_ages(profile, fabric, simulated, fresh, whole, cut);
}

}  // namespace deft::planner
