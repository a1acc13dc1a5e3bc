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
#include "tools/planner/trace_groups.h"

namespace deft::tools {

using planner::Bucket;
using planner::Profile;

namespace {

struct Collective {
    double start = 0;  // microseconds of the trace
    double duration = 0;
    std::uint64_t bytes = 0;
    std::uint64_t external = 0;  // links the kernel to the operator that launched it
    std::size_t group = 0;       // of groups_
};

struct Span {
    double start = 0;
    double end = 0;
};

bool has_args(const Field& event) {
    return event.has("args") && event["args"].is_object();
}

bool tells_size(const Field& event) {
    return has_args(event) && event["args"].has("In msg nelems") && event["args"].has("dtype");
}

// What the kernel says of its group.
TraceGroup group_of(const Field& event) {
    TraceGroup group;
    if (has_args(event)) {
        const Field args = event["args"];
        group.name = args.text_or("Process Group Name", "");
        group.description = args.text_or("Process Group Description", "");
        if (args.has("Group size")) {
            group.ranks = static_cast<std::uint32_t>(args["Group size"].whole(0, 1U << 30));
        }
    }
    return group;
}

// The place of the group in `groups`, which grows by it.
std::size_t place_of(const TraceGroup& group, std::vector<TraceGroup>& groups) {
    const auto known = std::find_if(groups.begin(), groups.end(),
                                    [&](const TraceGroup& other) { return other.is(group); });
    const auto place = static_cast<std::size_t>(known - groups.begin());
    if (known == groups.end()) {
        groups.push_back(group);
    }
    return place;
}

// A kernel that does not tell what it sums.
struct Unsized {
    double start = 0;
    TraceGroup group;  // without a name where the kernel does not tell that either
};

constexpr double kMost = 1e18;  // microseconds: no time stamp is beyond
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 46;

// 0: not a known type.
std::uint64_t element_size(const std::string& type) {
    static const std::pair<const char*, std::uint64_t> kSizes[] = {
        {"Float", 4}, {"Half", 2},  {"BFloat16", 2},   {"Double", 8}, {"Float8_e4m3fn", 1},
        {"Long", 8},  {"Int", 4},   {"Byte", 1},       {"Char", 1},   {"Bool", 1},
        {"Short", 2}, {"float", 4}, {"Float8_e5m2", 1}};
    for (const auto& [name, size] : kSizes) {
        if (type == name) {
            return size;
        }
    }
    return 0;
}

bool is_all_reduce_kernel(const std::string& name) {
    return name.starts_with("nccl") && name.find("Kernel_AllReduce") != std::string::npos;
}

// FSDP and ZeRO sum so.
bool is_reduce_scatter_kernel(const std::string& name) {
    return name.starts_with("nccl") && name.find("Kernel_ReduceScatter") != std::string::npos;
}

class Trace {
public:
    Trace(const std::string& name, const nlohmann::json& json, const TraceOptions& options)
        : name_(name), root_(name, json), options_(options) {
        const Field events = root_["traceEvents"];
        const std::size_t n = events.size();
        for (std::size_t i = 0; i < n; ++i) {
            read(events[i]);
        }
        std::stable_sort(
            kernels_.begin(), kernels_.end(),
            [](const Collective& a, const Collective& b) { return a.start < b.start; });
        std::stable_sort(steps_.begin(), steps_.end(),
                         [](const Span& a, const Span& b) { return a.start < b.start; });
    }

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
    void read(const Field& event);
    void read_kernel(const Field& event);
    void read_scatter(const Field& event);
    void read_annotation(const Field& event, const std::string& name);
    void refuse_unusable() const;
    void measure(const Iteration& one, Measured& all) const;
    std::uint32_t ranks();
    bool in_forward(double at) const;
    void choose_group();
    std::vector<Iteration> iterations() const;
    std::vector<Iteration> iterations_of_steps() const;
    std::vector<Iteration> repeated_iterations() const;
    std::vector<Iteration> usual_iterations() const;
    double backward_start(const Iteration& iteration) const;
    void note(const std::string& text) const;

    const std::string name_;
    const Field root_;
    const TraceOptions& options_;
    TraceGroups groups_;
    std::size_t group_ = 0;  // of groups_.reduced, whose sums are buckets
    std::vector<Collective> kernels_;
    std::vector<Collective> scatters_;
    std::vector<Unsized> unsized_;
    std::vector<Span> steps_;
    std::vector<Span> backwards_;
    std::vector<Span> forwards_;
    std::map<std::uint64_t, double> issued_;  // by external id
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

void Trace::read_kernel(const Field& event) {
    Collective one;
    one.start = event["ts"].number(0, kMost);
    one.duration = event["dur"].number(0, kMost);
    if (!tells_size(event)) {
        unsized_.push_back({one.start, group_of(event)});
        return;
    }
    const Field args = event["args"];
    const std::uint64_t element = element_size(args["dtype"].text());
    if (element == 0) {
        args["dtype"].fail("'" + args["dtype"].text() + "' is not a known type");
    }
    one.bytes = args["In msg nelems"].whole(0, kMostElements) * element;
    if (args.has("External id")) {
        one.external = args["External id"].whole(0, ~std::uint64_t{0});
    }
    if (one.bytes >= 1024) {  // flags, norms, metrics are no buckets
        one.group = place_of(group_of(event), groups_.reduced);
        kernels_.push_back(one);
    }
}

void Trace::read_scatter(const Field& event) {
    Collective one;
    one.start = event["ts"].number(0, kMost);
    if (tells_size(event)) {
        const Field args = event["args"];
        one.bytes =
            args["In msg nelems"].whole(0, kMostElements) * element_size(args["dtype"].text());
    }
    one.group = place_of(group_of(event), groups_.scattered);
    scatters_.push_back(one);
}

void Trace::read(const Field& event) {
    if (!event.is_object() || !event.has("ph") || !event.has("name") || !event.has("dur") ||
        event["ph"].text() != "X") {
        return;
    }
    const std::string name = event["name"].text();
    const std::string category = event.text_or("cat", "");
    if (category == "kernel" && is_all_reduce_kernel(name)) {
        read_kernel(event);
    } else if (category == "kernel" && is_reduce_scatter_kernel(name)) {
        read_scatter(event);
    } else if (category == "cpu_op" && name == "c10d::allreduce_") {
        const Field args = event["args"];
        if (args.has("External id")) {
            issued_[args["External id"].whole(0, ~std::uint64_t{0})] = event["ts"].number(0, kMost);
        }
    } else if (category == "user_annotation") {
        read_annotation(event, name);
    }
}

void Trace::read_annotation(const Field& event, const std::string& name) {
    const double start = event["ts"].number(0, kMost);
    const double end = start + event["dur"].number(0, kMost);
    if (name.starts_with("ProfilerStep#")) {
        steps_.push_back({start, end});
    } else if (name == "DistributedDataParallel.forward") {
        forwards_.push_back({start, end});
    } else if (name.find("backward") != std::string::npos) {
        backwards_.push_back({start, end});
    }
}

bool Trace::in_forward(double at) const {
    return std::any_of(forwards_.begin(), forwards_.end(),
                       [at](const Span& span) { return at >= span.start && at < span.end; });
}

// Which kernels are gradients. Forgets the others.
void Trace::choose_group() {
    for (const auto& [collectives, groups] :
         {std::pair(&kernels_, &groups_.reduced), std::pair(&scatters_, &groups_.scattered)}) {
        for (const Collective& one : *collectives) {
            TraceGroup& group = (*groups)[one.group];
            const auto issue = issued_.find(one.external == 0 ? 0 : one.external - 1);
            ++group.sums;
            group.in_forward += in_forward(issue == issued_.end() ? one.start : issue->second);
            group.bytes += one.bytes;
        }
    }
    group_ = data_parallel_group(name_, groups_, options_.group);
    const std::size_t unsized = std::erase_if(unsized_, [this](const Unsized& one) {
        return is_beside(one.group, groups_, group_, !options_.group.empty());
    });
    if (unsized > 0) {
        note(fmt::format("{} kernels of other process groups say no size and are left out",
                         unsized));
    }
    for (std::size_t i = 0; i < groups_.reduced.size(); ++i) {
        if (i != group_) {
            note("process group " + groups_.reduced[i].text() +
                 " is left out, it is not the data-parallel one; --group takes another");
        }
    }
    std::erase_if(kernels_, [this](const Collective& one) { return one.group != group_; });
}

std::vector<Trace::Iteration> Trace::iterations_of_steps() const {
    std::vector<Iteration> found;
    std::size_t left_out = 0;
    Iteration next;
    next.steps = 0;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const double start = steps_[s].start;
        const double end = s + 1 < steps_.size() ? steps_[s + 1].start : steps_[s].end;
        const auto inside = [&](double at) { return at >= start && at < end; };
        next.span = {next.steps == 0 ? start : next.span.start, end};
        next.last_step = start;
        ++next.steps;
        for (const Collective& one : kernels_) {
            if (inside(one.start)) {
                next.sums.push_back(one);
            }
        }
        const bool unsized = std::any_of(unsized_.begin(), unsized_.end(),
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
                         left_out, steps_.size()));
    }
    // The trace may have begun in the middle of an accumulation.
    if (found.size() > 1 && found[0].steps < found[1].steps) {
        found.erase(found.begin());
    }
    return found;
}

// The shortest sequence of sizes that the trace repeats from its start to its end.
std::vector<Trace::Iteration> Trace::repeated_iterations() const {
    if (!unsized_.empty()) {
        throw InputError(
            name_ +
            ": traceEvents: an NCCL kernel says neither size nor type, and without "
            "ProfilerStep annotations its step cannot be left out; record the trace with "
            "profiler.step() in each iteration");
    }
    const std::size_t n = kernels_.size();
    std::size_t period = n;
    for (std::size_t p = 1; p < n && p <= 4096; ++p) {
        bool same = true;
        for (std::size_t i = p; i < n && same; ++i) {
            same = kernels_[i].bytes == kernels_[i - p].bytes;
        }
        if (same) {
            period = p;
            break;
        }
    }
    std::vector<Iteration> found;
    for (std::size_t i = 0; i + period <= n; i += period) {
        Iteration next;
        next.sums.assign(kernels_.begin() + static_cast<std::ptrdiff_t>(i),
                         kernels_.begin() + static_cast<std::ptrdiff_t>(i + period));
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
    return steps_.empty() ? repeated_iterations() : iterations_of_steps();
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
    for (const Span& span : backwards_) {
        if (span.start >= iteration.last_step && span.start <= first.start &&
            span.end <= iteration.span.end + 1) {
            start = start == 0 ? span.start : std::min(start, span.start);
        }
    }
    if (start == 0) {
        for (const Span& forward : forwards_) {
            if (forward.end >= iteration.last_step && forward.end <= first.start) {
                start = std::max(start, forward.end);
            }
        }
    }
    return start;
}

// What is read without a way to tell gradients by their size is refused, with what helps.
void Trace::refuse_unusable() const {
    const bool of_others = std::all_of(unsized_.begin(), unsized_.end(), [](const Unsized& one) {
        return sums_no_gradients(one.group);
    });
    if (kernels_.empty() && of_others && scatters_gradients(groups_)) {
        refuse_scattered(name_);
    }
    if (kernels_.empty() && !unsized_.empty()) {
        throw InputError(
            name_ +
            ": traceEvents: no NCCL kernel says its size; record with PyTorch 2.4 or later "
            "and the activities CPU and CUDA, or run the job with `deft run --mode "
            "observe` and give the file that it writes");
    }
    if (kernels_.empty()) {
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
        const auto issue = issued_.find(group[i].external == 0 ? 0 : group[i].external - 1);
        if (queued && issue != issued_.end()) {
            at = std::min(at, std::max(issue->second, last_ready));
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

std::uint32_t Trace::ranks() {
    const std::uint32_t told = groups_.reduced[group_].ranks;
    const Field root = root_;
    if (told != 0 || !root.has("distributedInfo") || !root["distributedInfo"].has("world_size")) {
        return told;
    }
    return static_cast<std::uint32_t>(root["distributedInfo"]["world_size"].whole(0, 1U << 30));
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

bool trace_event_matters(const nlohmann::json& event) {
    if (!event.is_object()) {
        return false;
    }
    for (const char* const name : {"ph", "name", "cat"}) {
        const auto found = event.find(name);
        if (found != event.end() && !found->is_null() && !found->is_string()) {
            return true;
        }
    }
    const auto text = [&](const char* name) {
        const auto found = event.find(name);
        return found != event.end() && found->is_string() ? found->get_ref<const std::string&>()
                                                          : std::string();
    };
    const std::string category = text("cat");
    return (category == "kernel" &&
            (is_all_reduce_kernel(text("name")) || is_reduce_scatter_kernel(text("name")))) ||
           (category == "cpu_op" && text("name") == "c10d::allreduce_") ||
           category == "user_annotation";
}

Profile profile_from_trace(const std::string& name, const nlohmann::json& trace,
                           const TraceOptions& options) {
    return Trace(name, trace, options).profile();
}

}  // namespace deft::tools
