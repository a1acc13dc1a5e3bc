// SPDX-License-Identifier: Apache-2.0
// Profiles from PyTorch profiler traces (Kineto, Chrome trace format).
//
// The NCCL kernels tell each all-reduce's size, start and duration on the GPU; ProfilerStep
// annotations cut the trace into iterations (without them the repeating sequence of sizes does).
// Steps without sums accumulate gradients and belong to the next step that has sums. A step of
// which a kernel does not tell its size is left out, if that may be a gradient's.
// A bucket is ready when its all-reduce starts, unless that queued behind the one in front: then
// when the host issued it, at the latest when it started.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"
#include "tools/planner/trace_events.h"
#include "tools/planner/trace_groups.h"

namespace deft::tools {

using planner::Bucket;
using planner::Profile;

namespace {

class Trace {
public:
    Trace(const std::string& name, const nlohmann::json& json, const TraceOptions& options)
        : name_(name), events_(name, json), options_(options) {}

    Profile profile();

private:
    // Seconds, of all usual iterations.
    struct Measured {
        std::vector<std::vector<double>> ready;  // by bucket
        std::vector<std::vector<double>> transfer;
        std::vector<double> lengths;
        std::vector<double> computes;
        std::vector<double> backwards;
    };
    // The collectives of one iteration and where it lies.
    struct Iteration {
        std::vector<Collective> sums;
        Span span;
        double last_step = 0;   // where the step with the sums starts
        std::size_t steps = 1;  // above 1: gradients are accumulated

        // Iterations that are alike in these are the same work.
        std::pair<std::size_t, std::vector<std::uint64_t>> shape() const;
    };
    void refuse_unusable() const;
    void measure(const Iteration& one, Measured& all) const;
    std::uint32_t ranks() const;
    void choose_group();
    std::vector<Iteration> iterations() const;
    std::vector<Iteration> iterations_of_steps() const;
    std::vector<Iteration> repeated_iterations() const;
    std::vector<Iteration> usual_iterations() const;
    double backward_start(const Iteration& iteration) const;
    void note(const std::string& text) const;

    const std::string name_;
    TraceEvents events_;
    const TraceOptions& options_;
    std::size_t group_ = 0;  // of events_.groups.reduced, whose sums are buckets
};

std::pair<std::size_t, std::vector<std::uint64_t>> Trace::Iteration::shape() const {
    std::vector<std::uint64_t> sizes;
    for (const Collective& one : sums) {
        sizes.push_back(one.bytes);
    }
    return {steps, sizes};
}

void Trace::note(const std::string& text) const {
    if (options_.notes != nullptr) {
        options_.notes->push_back(name_ + ": " + text);
    }
}

// Which kernels are gradients. Forgets the others.
void Trace::choose_group() {
    for (const auto& [collectives, groups] :
         {std::pair(&events_.kernels, &events_.groups.reduced),
          std::pair(&events_.scatters, &events_.groups.scattered)}) {
        for (const Collective& one : *collectives) {
            TraceGroup& group = (*groups)[one.group];
            const double* const issued = events_.issue(one);
            ++group.sums;
            group.in_forward += events_.in_forward(issued == nullptr ? one.start : *issued);
            group.bytes += one.bytes;
        }
    }
    group_ = data_parallel_group(name_, events_.groups, options_.group);
    const std::size_t unsized = std::erase_if(events_.unsized, [this](const Unsized& one) {
        return is_beside(one.group, events_.groups, group_, !options_.group.empty());
    });
    if (unsized > 0) {
        note(fmt::format("{} kernels of other process groups say no size and are left out",
                         unsized));
    }
    for (std::size_t i = 0; i < events_.groups.reduced.size(); ++i) {
        if (i != group_) {
            note("process group " + events_.groups.reduced[i].text() +
                 " is left out, it is not the data-parallel one; --group takes another");
        }
    }
    std::erase_if(events_.kernels, [this](const Collective& one) { return one.group != group_; });
}

std::vector<Trace::Iteration> Trace::iterations_of_steps() const {
    std::vector<Iteration> found;
    std::size_t left_out = 0;
    Iteration next;
    next.steps = 0;
    for (std::size_t s = 0; s < events_.steps.size(); ++s) {
        const double start = events_.steps[s].start;
        const double end =
            s + 1 < events_.steps.size() ? events_.steps[s + 1].start : events_.steps[s].end;
        const auto inside = [&](double at) { return at >= start && at < end; };
        next.span = {next.steps == 0 ? start : next.span.start, end};
        next.last_step = start;
        ++next.steps;
        for (const Collective& one : events_.kernels) {
            if (inside(one.start)) {
                next.sums.push_back(one);
            }
        }
        const bool unsized = std::any_of(events_.unsized.begin(), events_.unsized.end(),
                                         [&](const Unsized& one) { return inside(one.start); });
        left_out += unsized ? 1 : 0;
        if (!next.sums.empty() && !unsized) {
            found.push_back(next);
        }
        if (!next.sums.empty() || unsized) {
            next = Iteration();
            next.steps = 0;
        }
    }
    if (left_out > 0) {
        note(fmt::format("{} of {} steps left out: an NCCL kernel in it says neither size nor type",
                         left_out, events_.steps.size()));
    }
    // The trace may have begun in the middle of an accumulation.
    if (found.size() > 1 && found[0].steps < found[1].steps) {
        found.erase(found.begin());
    }
    return found;
}

// The shortest sequence of sizes that the trace repeats from its start to its end.
std::vector<Trace::Iteration> Trace::repeated_iterations() const {
    if (!events_.unsized.empty()) {
        throw InputError(
            name_ +
            ": traceEvents: an NCCL kernel says neither size nor type, and without "
            "ProfilerStep annotations its step cannot be left out; record the trace with "
            "profiler.step() in each iteration");
    }
    const std::size_t n = events_.kernels.size();
    std::size_t period = n;
    for (std::size_t p = 1; p < n && p <= 4096; ++p) {
        bool same = true;
        for (std::size_t i = p; i < n && same; ++i) {
            same = events_.kernels[i].bytes == events_.kernels[i - p].bytes;
        }
        if (same) {
            period = p;
            break;
        }
    }
    std::vector<Iteration> found;
    for (std::size_t i = 0; i + period <= n; i += period) {
        Iteration next;
        next.sums.assign(events_.kernels.begin() + static_cast<std::ptrdiff_t>(i),
                         events_.kernels.begin() + static_cast<std::ptrdiff_t>(i + period));
        found.push_back(std::move(next));
    }
    // An iteration runs from the end of the transfers before it to the end of its own.
    const double length =
        found.size() > 1 ? found[1].sums.front().start - found[0].sums.front().start : 0;
    for (Iteration& one : found) {
        const double end = one.sums.back().start + one.sums.back().duration;
        one.span = {length > 0 ? end - length : one.sums.front().start, end};
        one.last_step = one.span.start;
    }
    return found;
}

std::vector<Trace::Iteration> Trace::iterations() const {
    return events_.steps.empty() ? repeated_iterations() : iterations_of_steps();
}

// Those of the shape that most have; others (first iterations, evaluation) are left.
std::vector<Trace::Iteration> Trace::usual_iterations() const {
    std::vector<Iteration> all = iterations();
    if (all.empty()) {
        throw InputError(name_ +
                         ": traceEvents: no step has sums that say what they are; record "
                         "more steps");
    }
    std::map<std::pair<std::size_t, std::vector<std::uint64_t>>, std::size_t> count;
    auto usual = all.front().shape();
    for (const Iteration& one : all) {
        const auto shape = one.shape();
        if (++count[shape] > count[usual]) {
            usual = shape;
        }
    }
    std::erase_if(all, [&](const Iteration& one) { return one.shape() != usual; });
    return all;
}

// Where the host starts the backward that sums: its annotation, else the end of DDP's forward. 0:
// unknown.
double Trace::backward_start(const Iteration& iteration) const {
    const Collective& first = iteration.sums.front();
    double start = 0;
    for (const Span& span : events_.backwards) {
        if (span.start >= iteration.last_step && span.start <= first.start &&
            span.end <= iteration.span.end + 1) {
            start = start == 0 ? span.start : std::min(start, span.start);
        }
    }
    if (start == 0) {
        for (const Span& forward : events_.forwards) {
            if (forward.end >= iteration.last_step && forward.end <= first.start) {
                start = std::max(start, forward.end);
            }
        }
    }
    return start;
}

// What is read without a way to tell gradients by their size is refused, with what helps.
void Trace::refuse_unusable() const {
    const bool of_others =
        std::all_of(events_.unsized.begin(), events_.unsized.end(),
                    [](const Unsized& one) { return sums_no_gradients(one.group); });
    if (events_.kernels.empty() && of_others && scatters_gradients(events_.groups)) {
        refuse_scattered(name_);
    }
    if (events_.kernels.empty() && !events_.unsized.empty()) {
        throw InputError(
            name_ +
            ": traceEvents: no NCCL kernel says its size; record with PyTorch 2.4 or later "
            "and the activities CPU and CUDA, or run the job with `deft run --mode "
            "observe` and give the file that it writes");
    }
    if (events_.kernels.empty()) {
        throw InputError(name_ + ": traceEvents: no NCCL all-reduce kernel of 1 KiB or more");
    }
}

void Trace::measure(const Iteration& one, Measured& all) const {
    const std::vector<Collective>& group = one.sums;
    const double length = one.span.end - one.span.start;
    double start = backward_start(one);
    if (start == 0) {
        const double step = one.span.end - one.last_step;
        start = std::min(one.last_step + step / 3, group.front().start);
    }
    double last_end = 0;
    double last_ready = 0;
    for (std::size_t i = 0; i < all.ready.size(); ++i) {
        double at = group[i].start;
        const bool queued = i > 0 && at - last_end < 20;  // microseconds
        const double* const issued = events_.issue(group[i]);
        if (queued && issued != nullptr) {
            at = std::min(at, std::max(*issued, last_ready));
        }
        at = std::max(at, last_ready);
        all.ready[i].push_back((at - start) * 1e-6);
        all.transfer[i].push_back(group[i].duration * 1e-6);
        last_end = group[i].start + group[i].duration;
        last_ready = at;
    }
    if (length > 0) {
        all.lengths.push_back(length * 1e-6);
        all.computes.push_back((length - (last_end - last_ready)) * 1e-6);
    }
    all.backwards.push_back((last_ready - start) * 1e-6);
}

std::uint32_t Trace::ranks() const {
    const std::uint32_t told = events_.groups.reduced[group_].ranks;
    return told != 0 ? told : events_.world_size();
}

Profile Trace::profile() {
    refuse_unusable();
    choose_group();
    const std::vector<Iteration> usual = usual_iterations();
    const std::size_t n = usual.front().sums.size();
    Measured all;
    all.ready.resize(n);
    all.transfer.resize(n);
    for (const Iteration& one : usual) {
        measure(one, all);
    }
    Profile profile;
    profile.name = name_;
    profile.source = "trace";
    profile.ranks = ranks();
    profile.iteration = spread_of(all.lengths);
    profile.backward = spread_of(all.backwards).median;
    const double compute =
        all.lengths.empty() ? 1.5 * profile.backward : spread_of(all.computes).median;
    profile.forward = std::max(0.0, compute - profile.backward);
    double before = 0;
    for (std::size_t i = 0; i < n; ++i) {
        Bucket bucket;
        bucket.name = "bucket " + std::to_string(i);
        bucket.bytes = usual.front().sums[i].bytes;
        bucket.ready_spread = spread_of(all.ready[i]);
        bucket.transfer = spread_of(all.transfer[i]);
        bucket.ready = std::min(std::max(before, bucket.ready_spread.median), profile.backward);
        bucket.forward =
            profile.backward > 0 ? profile.forward * (bucket.ready - before) / profile.backward : 0;
        before = bucket.ready;
        profile.buckets.push_back(std::move(bucket));
    }
    if (const std::string why = profile.problem(); !why.empty()) {
        throw InputError(name_ + ": " + why);
    }
    return profile;
}

}  // namespace

Profile profile_from_trace(const std::string& name, const nlohmann::json& trace,
                           const TraceOptions& options) {
    return Trace(name, trace, options).profile();
}

}  // namespace deft::tools
