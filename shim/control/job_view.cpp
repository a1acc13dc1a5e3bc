// SPDX-License-Identifier: Apache-2.0
#include "shim/control/job_view.h"

#include <algorithm>
#include <map>

#include "base/hash.h"
#include "planner/model/measured_profile.h"
#include "shim/nccl/call.h"
#include "shim/nccl/sum_mark.h"

namespace deft::director {
namespace {

constexpr std::uint64_t kIterationsToPlanWith = 6;
constexpr std::uint64_t kTimesToPlanWith = 4;  // of each bucket
constexpr std::uint64_t kIterationsUntimed = 50;
constexpr std::uint64_t kStartsToCorrectBy = 8;
// A sum that is both is a small one: in bytes, and so many times smaller than the largest.
constexpr std::uint64_t kDoubtfulBelow = 64 * 1024;
constexpr std::uint64_t kMuchLarger = 16;
// Of the rest between two iterations, against the one before the call learned to be the first, and
// against an iteration.
constexpr double kLongerRest = 4;
constexpr double kLeastRest = 0.1;
constexpr const char* kNothingLearned = "no iteration has been learned yet";
constexpr const char* kUsedMap =
    "DDP looks for unused parameters, and what came late or merged for one that is not used then "
    "would be lost, so nothing is delayed or merged";

planner::Spread seconds(const Samples& milliseconds) {
    const Summary summary = milliseconds.summary();
    return {summary.median * 1e-3, summary.p10 * 1e-3, summary.p90 * 1e-3, summary.n};
}

constexpr const char* kScattered =
    "gradients travel by reduce-scatter (FSDP or a distributed optimizer)";
constexpr const char* kOtherCommunicators = "gradients travel over several communicators";

const char* obstacle(const CallRecord& call) {
    if (call.op >= DEFT_NCCL_NUM_OPS) {
        return "gradients are reduced by an operation of the job's own";
    }
    if (call.group != 0 && series_of(call.function) == Series::Sums) {
        return "gradients travel in groups of calls";
    }
    if (call.nranks < 2) {
        return "the communicator has one rank";
    }
    return nullptr;
}

// What a communicator does in the cycle.
struct Uses {
    bool sums = false;
    bool scatters = false;
    bool gathers = false;
    bool others_scatter = false;  // another communicator
    bool others_sum = false;

    bool any() const { return sums || scatters || gathers; }
    // Of a communicator that scatters gradients its sums are a job's smaller part; one that sums
    // them gathers something else.
    Series series() const { return scatters || (gathers && !sums) ? Series::Shards : Series::Sums; }
    // Sums of Series::Sums may be one step of a gradient's several.
    const char* beside() const {
        return scatters || others_scatter ? kScattered : others_sum ? kOtherCommunicators : nullptr;
    }
};

Uses uses_of(const std::vector<CallRecord>& shape, std::uint32_t comm_serial) {
    Uses uses;
    for (const CallRecord& call : shape) {
        if (!is_numbered(call)) {
            continue;
        }
        const bool own = call.comm_serial == comm_serial;
        switch (call.function) {
            case Function::AllReduce:
                (own ? uses.sums : uses.others_sum) = true;
                break;
            case Function::ReduceScatter:
                (own ? uses.scatters : uses.others_scatter) = true;
                break;
            default:
                uses.gathers = uses.gathers || own;
                break;
        }
    }
    return uses;
}

// What the calls of a communicator take in an iteration, by themselves.
struct Carried {
    double ms = 0;
    double bytes = 0;  // that each rank sends
};

std::map<std::uint32_t, Carried> carried_by(const std::vector<CallRecord>& shape,
                                            const CallTimes& times) {
    std::map<std::uint32_t, Carried> carried;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const CallRecord& call = shape[i];
        if (!is_numbered(call) || call.nranks < 2) {
            continue;
        }
        const double rounds = call.function == Function::AllReduce ? 2 : 1;
        Carried& all = carried[call.comm_serial];
        all.ms += times.places()[i].alone_ms.summary().median;
        all.bytes +=
            rounds * static_cast<double>(payload_bytes(call)) * (call.nranks - 1) / call.nranks;
    }
    return carried;
}

// By how much the transfers of a communicator are to be multiplied. A call may end when its last
// bytes are in the buffers of the network, where those of the next call have to wait for them. So
// the times of the communicator that has most to carry are the right ones, for all that go over the
// same links.
double pace_of(std::uint32_t comm_serial, const std::map<std::uint32_t, Carried>& carried) {
    const auto found = carried.find(comm_serial);
    if (found == carried.end() || found->second.ms <= 0 || found->second.bytes <= 0) {
        return 1;
    }
    const Carried& own = found->second;
    const Carried* most = &own;
    for (const auto& [serial, other] : carried) {
        if (other.ms > most->ms && meet(own.bytes, own.ms, other.bytes, other.ms)) {
            most = &other;
        }
    }
    return own.bytes / own.ms * (most->ms / most->bytes);
}

planner::Spread scaled(planner::Spread spread, double factor) {
    spread.median *= factor;
    spread.p10 *= factor;
    spread.p90 *= factor;
    return spread;
}

// Bytes of a gradient, as the executor counts them: of a shard, what each rank has of it.
std::uint64_t planned_bytes(const CallRecord& call) {
    return call.count * element_size(call.type);
}

// DDP's map of the parameters that were used, which goes where its buckets go. One number is a
// metric or a flag.
bool is_used_map(const CallRecord& call, std::uint32_t comm_serial) {
    return call.function == Function::AllReduce && call.type == DEFT_NCCL_INT32 &&
           call.op == DEFT_NCCL_SUM && call.in_place && call.count > 1 &&
           call.comm_serial == comm_serial;
}

std::uint64_t bytes_of(const Gradient& gradient) {
    return gradient.count * element_size(gradient.type);
}

// Between the first gradient and the last: full buckets.
bool full_between(const std::vector<Gradient>& gradients) {
    if (gradients.size() <= 3) {
        return false;
    }
    const auto smaller = [](const Gradient& a, const Gradient& b) {
        return bytes_of(a) < bytes_of(b);
    };
    const auto [least, most] =
        std::minmax_element(gradients.begin() + 1, gradients.end() - 1, smaller);
    return bytes_of(*least) >= bytes_of(*most) / 2;
}

// Small sums in places where DDP leaves no remainder: doubt_about().
bool has_doubtful_sizes(const std::vector<Gradient>& gradients) {
    std::uint64_t largest = 0;
    for (const Gradient& gradient : gradients) {
        largest = std::max(largest, bytes_of(gradient));
    }
    std::vector<std::size_t> small;  // places
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const std::uint64_t size = bytes_of(gradients[i]);
        if (size < kDoubtfulBelow && size < largest / kMuchLarger) {
            small.push_back(i);
        }
    }
    if (small.size() != 1) {
        return small.size() > 1;
    }
    const std::size_t last = gradients.size() - 1;
    const bool remainder = small.front() == last || (small.front() == 0 && full_between(gradients));
    return !remainder;
}

const char* doubt_about_scale(const std::vector<Gradient>& gradients) {
    const auto half = [](const Gradient& g) { return g.type == DEFT_NCCL_FLOAT16; };
    return std::any_of(gradients.begin(), gradients.end(), half)
               ? "float16 gradients are scaled, and the scale may change before they are "
                 "delivered, so nothing is delayed or merged"
               : nullptr;
}

}  // namespace

std::vector<executor::Shape> shapes_of(const JobView& view) {
    std::vector<executor::Shape> shapes;
    for (const Gradient& gradient : view.gradients) {
        shapes.push_back(
            {gradient.count, gradient.type, gradient.op, gradient.in_place, gradient.function});
    }
    return shapes;
}

std::uint64_t signature_of(const std::vector<Gradient>& gradients) {
    std::uint64_t signature = kFnv64Basis;
    for (const Gradient& gradient : gradients) {
        signature = fnv64_mix(signature, gradient.count);
        signature = fnv64_mix(signature, static_cast<std::uint64_t>(gradient.type));
        signature = fnv64_mix(signature, static_cast<std::uint64_t>(gradient.op));
        signature = fnv64_mix(signature, gradient.in_place ? 1 : 0);
        signature = fnv64_mix(signature, static_cast<std::uint64_t>(gradient.function));
    }
    return signature;
}

std::size_t beginning_of(const Track& track) {
    const CallTimes* const profile = track.current_profile();
    if (profile == nullptr) {
        return 0;
    }
    // Other calls belong to the gradient behind them; those at the end, to the first.
    const std::vector<CallRecord>& shape = track.current_shape();
    std::size_t place = 0;
    std::size_t longest_at = 0;
    double longest = 0;
    double first = -1;
    double rest = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        rest += profile->places()[i].idle_ms.summary().median;
        if (!carries_gradient(shape[i])) {
            continue;
        }
        if (first < 0) {
            first = rest;
        } else if (rest > longest) {
            longest = rest;
            longest_at = place;
        }
        place = i + 1;
        rest = 0;
    }
    const bool elsewhere = longest >= kLongerRest * (first + rest) &&
                           longest >= kLeastRest * profile->iteration_ms().summary().median;
    return elsewhere ? longest_at : 0;
}

std::size_t beginning_at(const Track& track, std::size_t gradient) {
    const std::vector<CallRecord>& shape = track.current_shape();
    for (std::size_t i = 0; i < shape.size() && gradient > 0; ++i) {
        if (carries_gradient(shape[i]) && --gradient == 0) {
            return (i + 1) % shape.size();
        }
    }
    return 0;
}

bool rotate_to(JobView& view, std::uint64_t signature) {
    if (view.signature == signature) {
        return true;
    }
    std::vector<Gradient> rotated = view.gradients;
    for (std::size_t i = 1; i < rotated.size(); ++i) {
        std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
        if (signature_of(rotated) == signature) {
            view.gradients = std::move(rotated);
            view.signature = signature;
            return true;
        }
    }
    return false;
}

const char* doubt_about(const std::vector<Gradient>& gradients) {
    if (const char* const scaled = doubt_about_scale(gradients)) {
        return scaled;
    }
    return has_doubtful_sizes(gradients) ? "a small sum among much larger ones may be no gradient "
                                           "(SyncBatchNorm), so nothing is delayed or merged"
                                         : nullptr;
}

const char* doubt_about(const JobView& view) {
    if (view.beside != nullptr) {
        return view.beside;
    }
    const char* const small = doubt_about(view.gradients);
    if (small == nullptr && view.used_map) {
        return kUsedMap;
    }
    return small != nullptr || view.whole
               ? small
               : "equal gradient calls change their buffers, so that several of one iteration may "
                 "look like one of several iterations; nothing is delayed or merged";
}

const char* doubt_about_proven(const JobView& view) {
    if (view.beside != nullptr) {
        return view.beside;
    }
    const char* const scaled = doubt_about_scale(view.gradients);
    return scaled == nullptr && view.used_map ? kUsedMap : scaled;
}

bool correct_by_starts(const Track& track, planner::Profile& profile) {
    const CallTimes* const measured = track.current_profile();
    if (measured == nullptr) {
        return false;
    }
    planner::MeasuredJob job;
    job.name = profile.name;
    job.ranks = profile.ranks;
    job.iteration = profile.iteration;
    job.compute.median =
        profile.compute();  // the update too, which starts nothing; seldom too long
    job.compute.n = profile.iteration.n;
    const std::vector<CallRecord>& shape = track.current_shape();
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (!carries_gradient(shape[i])) {
            continue;
        }
        const Samples& starts = measured->places()[i].start_ms;
        if (job.buckets.size() == profile.buckets.size() || starts.count() < kStartsToCorrectBy) {
            return false;  // another cycle's profile, or too early
        }
        planner::Spread earliest = seconds(starts);
        earliest.median = earliest.p10;
        job.buckets.push_back(
            {payload_bytes(shape[i]), earliest, profile.buckets[job.buckets.size()].transfer});
    }
    if (job.buckets.empty() || job.buckets.size() != profile.buckets.size()) {
        return false;
    }
    profile = planner::measured_profile(job);
    return true;
}

bool correct_by_backward(const Track& track, planner::Profile& profile) {
    const CallTimes* const measured = track.current_profile();
    if (measured == nullptr || profile.buckets.size() < 2) {
        return false;
    }
    const std::vector<CallRecord>& shape = track.current_shape();
    std::vector<double> starts;  // seconds
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (carries_gradient(shape[i])) {
            const Samples& start = measured->places()[i].start_ms;
            if (start.count() < kStartsToCorrectBy) {
                return false;
            }
            starts.push_back(seconds(start).median);
        }
    }
    const double first = static_cast<double>(profile.buckets.front().bytes);
    const double rest = static_cast<double>(profile.bytes()) - first;
    if (starts.size() != profile.buckets.size() || starts.back() <= starts.front() || rest <= 0) {
        return false;
    }
    const double shown = starts.back() - starts.front();
    const double hidden = shown * first / rest;  // backward of what the first bucket is of
    planner::MeasuredJob job;
    job.name = profile.name;
    job.ranks = profile.ranks;
    job.iteration = profile.iteration;
    job.compute.median = (shown + hidden) * 3 / 2;
    job.compute.n = starts.size();
    for (std::size_t i = 0; i < starts.size(); ++i) {
        planner::Spread ready;
        ready.median = job.compute.median / 3 + hidden + starts[i] - starts.front();
        ready.n = 1;
        job.buckets.push_back({profile.buckets[i].bytes, ready, profile.buckets[i].transfer});
    }
    profile = planner::measured_profile(job);
    return true;
}

JobView view_job(const Track& track, std::uint32_t comm_serial, bool times) {
    JobView view;
    const CallTimes* const profile = track.current_profile();
    if (profile == nullptr) {
        view.reason = kNothingLearned;
        return view;
    }
    view.learned = true;
    const std::vector<CallRecord>& shape = track.current_shape();
    const Uses uses = uses_of(shape, comm_serial);
    if (!uses.any()) {
        view.reason = uses.others_sum || uses.others_scatter
                          ? "the gradients travel over another communicator"
                          : "the iteration has no gradients";
        return view;
    }
    view.series = uses.series();
    view.beside = uses.beside();
    const Track::Numbered numbered = track.numbered(comm_serial, view.series);
    if (numbered.iteration_start == CallRecord::kNoOrdinal) {
        view.learned = false;
        view.reason = kNothingLearned;
        return view;
    }
    planner::MeasuredJob job;
    // Nothing of these is ever late: what counts is what the links can do, whatever else the job
    // sends at the same time.
    const bool cut = view.series == Series::Shards || view.beside != nullptr;
    const double pace = cut && times ? pace_of(comm_serial, carried_by(shape, *profile)) : 1;
    view.measured = profile->exposed_ms().count() >= kIterationsToPlanWith;
    view.untimed = profile->iteration_ms().count() >= kIterationsUntimed;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const CallRecord& call = shape[i];
        if (is_bucket(call.mark)) {
            view.buckets.push_back(call.mark);
        }
        view.used_map = view.used_map || is_used_map(call, comm_serial);
        if (call.comm_serial != comm_serial || !is_numbered(call) ||
            series_of(call.function) != view.series) {
            continue;
        }
        if (const char* reason = obstacle(call)) {
            view.reason = reason;
            return view;
        }
        view.nranks = call.nranks;
        view.gradients.push_back(
            {call.count, call.type, call.op, call.in_place, call.mark, call.function});
        const CallTimes::Place& place = profile->places()[i];
        view.measured = view.measured && place.ready_ms.count() >= kTimesToPlanWith;
        view.untimed = view.untimed && place.ready_ms.count() == 0;
        if (times) {
            job.buckets.push_back(
                {planned_bytes(call), seconds(place.ready_ms),
                 cut ? scaled(seconds(place.alone_ms), pace) : seconds(place.transfer_ms)});
        }
    }
    view.signature = signature_of(view.gradients);
    view.whole = track.whole();
    view.start = numbered.iteration_start;
    view.next = numbered.latest + 1;
    if (!times || !(view.measured || view.untimed)) {
        return view;
    }
    job.name = "job";
    job.ranks = static_cast<std::uint32_t>(view.nranks);
    job.compute = seconds(profile->compute_ms());
    job.iteration = seconds(profile->iteration_ms());
    view.profile = planner::measured_profile(job);
    return view;
}

}  // namespace deft::director
