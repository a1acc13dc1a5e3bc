// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/trace_events.h"

#include <algorithm>
#include <utility>

#include "tools/planner/profile_reader.h"

namespace deft::tools {
namespace {

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

}  // namespace

TraceEvents::TraceEvents(const std::string& name, const nlohmann::json& trace)
    : root_(name, trace) {
    const Field events = root_["traceEvents"];
    const std::size_t n = events.size();
    for (std::size_t i = 0; i < n; ++i) {
        read(events[i]);
    }
    std::stable_sort(kernels.begin(), kernels.end(),
                     [](const Collective& a, const Collective& b) { return a.start < b.start; });
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Span& a, const Span& b) { return a.start < b.start; });
}

void TraceEvents::read_kernel(const Field& event) {
    Collective one;
    one.start = event["ts"].number(0, kMost);
    one.duration = event["dur"].number(0, kMost);
    if (!tells_size(event)) {
        unsized.push_back({one.start, group_of(event)});
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
        one.group = place_of(group_of(event), groups.reduced);
        kernels.push_back(one);
    }
}

void TraceEvents::read_scatter(const Field& event) {
    Collective one;
    one.start = event["ts"].number(0, kMost);
    if (tells_size(event)) {
        const Field args = event["args"];
        one.bytes =
            args["In msg nelems"].whole(0, kMostElements) * element_size(args["dtype"].text());
    }
    one.group = place_of(group_of(event), groups.scattered);
    scatters.push_back(one);
}

void TraceEvents::read(const Field& event) {
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

void TraceEvents::read_annotation(const Field& event, const std::string& name) {
    const double start = event["ts"].number(0, kMost);
    const double end = start + event["dur"].number(0, kMost);
    if (name.starts_with("ProfilerStep#")) {
        steps.push_back({start, end});
    } else if (name == "DistributedDataParallel.forward") {
        forwards.push_back({start, end});
    } else if (name.find("backward") != std::string::npos) {
        backwards.push_back({start, end});
    }
}

bool TraceEvents::in_forward(double at) const {
    return std::any_of(forwards.begin(), forwards.end(),
                       [at](const Span& span) { return at >= span.start && at < span.end; });
}

const double* TraceEvents::issue(const Collective& one) const {
    const auto found = issued_.find(one.external == 0 ? 0 : one.external - 1);
    return found == issued_.end() ? nullptr : &found->second;
}

std::uint32_t TraceEvents::world_size() const {
    if (!root_.has("distributedInfo") || !root_["distributedInfo"].has("world_size")) {
        return 0;
    }
    return static_cast<std::uint32_t>(root_["distributedInfo"]["world_size"].whole(0, 1U << 30));
}

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

}  // namespace deft::tools
