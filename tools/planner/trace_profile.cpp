// SPDX-License-Identifier: Apache-2.0
// Profiles from PyTorch profiler traces (Kineto, Chrome trace format).
//
// The NCCL kernels tell each all-reduce's size, start and duration on the GPU; ProfilerStep
// annotations cut the trace into iterations (without them the repeating sequence of sizes does).
// A bucket is ready when its all-reduce starts, unless that queued behind the one in front: then
// when the host issued it, at the latest when it started.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"

namespace deft::tools {

using planner::Bucket;
using planner::Profile;

namespace {

struct Collective {
    double start = 0;  // microseconds of the trace
    double duration = 0;
    std::uint64_t bytes = 0;
    std::uint64_t external = 0;  // links the kernel to the operator that launched it
};

struct Span {
    double start = 0;
    double end = 0;
};

std::uint64_t element_size(const Field& event, const std::string& type) {
    static const std::pair<const char*, std::uint64_t> kSizes[] = {
        {"Float", 4}, {"Half", 2},  {"BFloat16", 2},   {"Double", 8}, {"Float8_e4m3fn", 1},
        {"Long", 8},  {"Int", 4},   {"Byte", 1},       {"Char", 1},   {"Bool", 1},
        {"Short", 2}, {"float", 4}, {"Float8_e5m2", 1}};
    for (const auto& [name, size] : kSizes) {
        if (type == name) {
            return size;
        }
    }
    event["args"]["dtype"].fail("'" + type + "' is not a known type");
}

bool is_all_reduce_kernel(const std::string& name) {
    return name.starts_with("nccl") && name.find("Kernel_AllReduce") != std::string::npos;
}

class Trace {
public:
    Trace(const std::string& name, const nlohmann::json& json) : name_(name), root_(name, json) {
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
    void read(const Field& event);
    std::vector<std::vector<Collective>> iterations();
    double backward_start(const Span& step, const Collective& first) const;

    const std::string name_;
    const Field root_;
    std::vector<Collective> kernels_;
    std::vector<Span> steps_;
    std::vector<Span> cut_;  // the iteration each group of collectives lies in
    std::vector<Span> backwards_;
    std::vector<double> forward_ends_;
    std::map<std::uint64_t, double> issued_;  // by external id
};

void Trace::read(const Field& event) {
    if (!event.is_object() || !event.has("ph") || !event.has("name") || !event.has("dur") ||
        event["ph"].text() != "X") {
        return;
    }
    const std::string name = event["name"].text();
    const std::string category = event.text_or("cat", "");
    constexpr double kMost = 1e18;
    if (category == "kernel" && is_all_reduce_kernel(name)) {
        Collective one;
        one.start = event["ts"].number(0, kMost);
        one.duration = event["dur"].number(0, kMost);
        const Field args = event["args"];
        const std::uint64_t count = args["In msg nelems"].whole(0, std::uint64_t{1} << 46);
        one.bytes = count * element_size(event, args["dtype"].text());
        if (args.has("External id")) {
            one.external = args["External id"].whole(0, ~std::uint64_t{0});
        }
        if (one.bytes >= 1024) {  // flags, norms, metrics are no buckets
            kernels_.push_back(one);
        }
        return;
    }
    if (category == "cpu_op" && name == "c10d::allreduce_") {
        const Field args = event["args"];
        if (args.has("External id")) {
            issued_[args["External id"].whole(0, ~std::uint64_t{0})] = event["ts"].number(0, kMost);
        }
        return;
    }
    if (category != "user_annotation") {
        return;
    }
    const double start = event["ts"].number(0, kMost);
    const double end = start + event["dur"].number(0, kMost);
    if (name.starts_with("ProfilerStep#")) {
        steps_.push_back({start, end});
    } else if (name == "DistributedDataParallel.forward") {
        forward_ends_.push_back(end);
    } else if (name.find("backward") != std::string::npos) {
        backwards_.push_back({start, end});
    }
}

// Groups of collectives, one per iteration, and the span of each.
std::vector<std::vector<Collective>> Trace::iterations() {
    std::vector<std::vector<Collective>> groups;
    if (!steps_.empty()) {
        for (std::size_t s = 0; s < steps_.size(); ++s) {
            const double end = s + 1 < steps_.size() ? steps_[s + 1].start : steps_[s].end;
            std::vector<Collective> group;
            for (const Collective& one : kernels_) {
                if (one.start >= steps_[s].start && one.start < end) {
                    group.push_back(one);
                }
            }
            if (!group.empty()) {
                groups.push_back(std::move(group));
                cut_.push_back({steps_[s].start, end});
            }
        }
        return groups;
    }
    // The shortest sequence of sizes that the trace repeats from its start to its end.
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
    for (std::size_t i = 0; i + period <= n; i += period) {
        groups.emplace_back(kernels_.begin() + static_cast<std::ptrdiff_t>(i),
                            kernels_.begin() + static_cast<std::ptrdiff_t>(i + period));
    }
    // An iteration runs from the end of the transfers before it to the end of its own.
    const double length = groups.size() > 1 ? groups[1].front().start - groups[0].front().start : 0;
    for (const auto& group : groups) {
        const double end = group.back().start + group.back().duration;
        cut_.push_back({length > 0 ? end - length : group.front().start, end});
    }
    return groups;
}

// Where the host starts backward: its annotation, else the end of DDP's forward. 0: unknown.
double Trace::backward_start(const Span& step, const Collective& first) const {
    double start = 0;
    for (const Span& span : backwards_) {
        if (span.start >= step.start && span.start <= first.start && span.end <= step.end + 1) {
            start = start == 0 ? span.start : std::min(start, span.start);
        }
    }
    if (start == 0) {
        for (const double end : forward_ends_) {
            if (end >= step.start && end <= first.start) {
                start = std::max(start, end);
            }
        }
    }
    return start;
}

Profile Trace::profile() {
    if (kernels_.empty()) {
        throw InputError(name_ + ": traceEvents: no NCCL all-reduce kernel of 1 KiB or more");
    }
    const auto groups = iterations();
    // The sequence of sizes most iterations share; others (first iterations, evaluation) are left.
    std::map<std::vector<std::uint64_t>, std::size_t> count;
    const auto sizes = [](const std::vector<Collective>& group) {
        std::vector<std::uint64_t> list;
        for (const Collective& one : group) {
            list.push_back(one.bytes);
        }
        return list;
    };
    std::vector<std::uint64_t> usual;
    for (const auto& group : groups) {
        const std::size_t times = ++count[sizes(group)];
        if (usual.empty() || times > count[usual]) {
            usual = sizes(group);
        }
    }
    const std::size_t n = usual.size();
    std::vector<std::vector<double>> ready(n);
    std::vector<std::vector<double>> transfer(n);
    std::vector<double> lengths;
    std::vector<double> computes;
    std::vector<double> backwards;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto& group = groups[g];
        if (sizes(group) != usual) {
            continue;
        }
        const double length = cut_[g].end - cut_[g].start;
        double start = backward_start(cut_[g], group.front());
        if (start == 0) {
            start = std::min(cut_[g].start + length / 3, group.front().start);
        }
        double last_end = 0;
        double last_ready = 0;
        for (std::size_t i = 0; i < n; ++i) {
            double at = group[i].start;
            const bool queued = i > 0 && at - last_end < 20;  // microseconds
            const auto issue = issued_.find(group[i].external == 0 ? 0 : group[i].external - 1);
            if (queued && issue != issued_.end()) {
                at = std::min(at, std::max(issue->second, last_ready));
            }
            at = std::max(at, last_ready);
            ready[i].push_back((at - start) * 1e-6);
            transfer[i].push_back(group[i].duration * 1e-6);
            last_end = group[i].start + group[i].duration;
            last_ready = at;
        }
        if (length > 0) {
            lengths.push_back(length * 1e-6);
            computes.push_back((length - (last_end - last_ready)) * 1e-6);
        }
        backwards.push_back((last_ready - start) * 1e-6);
    }
    Profile profile;
    profile.name = name_;
    profile.source = "trace";
    const Field root = root_;
    if (root.has("distributedInfo") && root["distributedInfo"].has("world_size")) {
        profile.ranks =
            static_cast<std::uint32_t>(root["distributedInfo"]["world_size"].whole(0, 1U << 30));
    }
    profile.iteration = spread_of(lengths);
    profile.backward = spread_of(backwards).median;
    const double compute = lengths.empty() ? 1.5 * profile.backward : spread_of(computes).median;
    profile.forward = std::max(0.0, compute - profile.backward);
    double before = 0;
    for (std::size_t i = 0; i < n; ++i) {
        Bucket bucket;
        bucket.name = "bucket " + std::to_string(i);
        bucket.bytes = usual[i];
        bucket.ready_spread = spread_of(ready[i]);
        bucket.transfer = spread_of(transfer[i]);
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
    return (category == "kernel" && is_all_reduce_kernel(text("name"))) ||
           (category == "cpu_op" && text("name") == "c10d::allreduce_") ||
           category == "user_annotation";
}

Profile profile_from_trace(const std::string& name, const nlohmann::json& trace) {
    return Trace(name, trace).profile();
}

}  // namespace deft::tools
