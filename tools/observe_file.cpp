// SPDX-License-Identifier: Apache-2.0
#include "tools/observe_file.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tools/input_file.h"
#include "tools/json_text.h"
#include "tools/record_node.h"

namespace deft::tools {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr char kFormat[] = "deft-observe";
constexpr std::size_t kLargest = 64u << 20;
using Node = RecordNode;
constexpr double kMost = Node::kMost;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    Node::fail(path, what);
}

// "line 3, column 7" of the byte at which a parser stopped (counted from 1).
std::string line_and_column(const std::string& text, std::size_t byte) {
    const std::size_t offset = std::min(byte > 0 ? byte - 1 : 0, text.size());
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto line = std::count(text.begin(), end, '\n') + 1;
    const std::size_t before = offset == 0 ? text.npos : text.rfind('\n', offset - 1);
    const std::size_t column = offset - (before == text.npos ? 0 : before + 1) + 1;
    return fmt::format("line {}, column {}", line, column);
}

Json parse(const std::string& path, const std::string& text) {
    if (text.find_first_not_of(" \t\r\n") == text.npos) {
        fail(path, "empty; did the job end before it wrote its report?");
    }
    try {
        return parse_json_text(text);
    } catch (const JsonTextError& error) {
        const std::string place = error.path.empty() ? "the document" : error.path;
        switch (error.kind) {
            case JsonTextError::Kind::Syntax:
                break;
            case JsonTextError::Kind::Range:
                fail(path, place + " is a number out of range; was the file edited?");
            case JsonTextError::Kind::Limit:
            case JsonTextError::Kind::Twice:
                fail(path, place + " is " + error.what() + "; was the file edited?");
        }
        fail(path, fmt::format("{}{}: not valid JSON; not a report of deft, or cut off while it "
                               "was written",
                               line_and_column(text, error.byte),
                               error.path.empty() ? "" : ", in " + error.path));
    }
}

ObservedBucket read_bucket(const Node& node) {
    ObservedBucket bucket;
    bucket.position = node.integer("position");
    bucket.communicator = node.text_or_empty("communicator");
    bucket.bytes = node.integer("bytes");
    bucket.count = node.integer_or_zero("count");
    bucket.type = node.text_or_empty("type");
    bucket.op = node.text_or_empty("op");
    bucket.in_place = node.flag("in_place");
    // Negative where the host ran ahead of the iteration's origin.
    bucket.ready_ms = node.quantiles("ready_ms", -kMost);
    bucket.transfer_ms = node.quantiles("transfer_ms");
    return bucket;
}

ObservedLink read_link(const Node& node) {
    ObservedLink link;
    link.name = node.text("name");
    link.kind = node.text_or_empty("kind");
    link.bytes_sent = node.integer("bytes_sent");
    link.bytes_received = node.integer("bytes_received");
    link.chunks_sent = node.integer_or_zero("chunks_sent");
    link.resent_bytes = node.integer_or_zero("resent_bytes");
    link.transitions = node.integer_or_zero("transitions");
    link.busy_ms = node.number("busy_ms");
    link.speed_mbps = node.number("speed_mbps");
    if (node.has("stalls")) {
        const Node stalls = node.child("stalls");
        link.stall_bounds_s = stalls.numbers("bounds_s");
        link.stalls = stalls.integers("counts");
        link.stall_ms = stalls.number("total_ms");
        if (link.stalls.size() != link.stall_bounds_s.size() + 1) {
            stalls.misfit("counts");
        }
    }
    return link;
}

ObservedTrace read_trace(const Node& node, const ObserveFile& file) {
    ObservedTrace trace;
    node.each("iterations", [&](const Node& iteration) {
        ObservedTrace::Iteration read;
        read.origin = iteration.integer("origin_us");
        if (static_cast<double>(read.origin) >
            kMost * 10) {  // the year 2286; sums must not overflow
            iteration.misfit("origin_us");
        }
        for (const auto& times : iteration.rows("calls", 5)) {
            if (times[0] < 0 || times[0] >= file.cycle_length || times[4] < times[3]) {
                iteration.misfit("calls");
            }
            read.calls.push_back({times[0], times[1], times[2], times[3], times[4]});
        }
        trace.iterations.push_back(std::move(read));
    });
    node.each("links", [&](const Node& sample) {
        trace.links.push_back({sample.integer("at_us"), sample.integers("sent")});
        if (trace.links.back().sent.size() > file.links.size()) {
            sample.misfit("sent");
        }
    });
    return trace;
}

ObservedTuning read_tuning(const Node& node) {
    ObservedTuning tuning;
    tuning.state = node.text("state");
    tuning.reason = node.text_or_empty("reason");
    tuning.ratio = node.number("ratio");
    node.each("calls", [&tuning](const Node& call) {
        tuning.calls.push_back({call.text("call"), call.text("choice"), call.number("own_ms"),
                                call.number("chosen_ms")});
    });
    return tuning;
}

ObservedPlan read_plan(const Node& node) {
    ObservedPlan plan;
    plan.state = node.text("state");
    plan.reason = node.text_or_empty("reason");
    plan.policy = node.text_or_empty("policy");
    plan.predicted_ms = node.number("predicted_ms");
    plan.baseline_ms = node.number("baseline_ms");
    plan.before_ms = node.number("before_ms");
    plan.bound_ms = node.number("bound_ms");
    plan.before.p10 = node.number("before_p10_ms");
    plan.before.p90 = node.number("before_p90_ms");
    plan.before.n = node.integer_or_zero("before_n");
    plan.updates_per_iteration = node.number("updates_per_iteration");
    plan.progress = node.number("progress");
    plan.switched = node.integer_or_zero("switched");
    if (node.has("tuning")) {
        plan.tuning = read_tuning(node.child("tuning"));
    }
    if (node.has("transfers")) {
        node.each("transfers", [&plan](const Node& transfer) {
            const double start = transfer.number("start_ms", -kMost).value_or(0);
            plan.transfers.push_back(
                {transfer.integer("bucket"), transfer.integer("link"), start,
                 std::max(start, transfer.number("finish_ms", -kMost).value_or(0))});
        });
    }
    plan.ended = node.integer_or_zero("ended");
    plan.max_delay = node.integer_or_zero("max_delay");
    plan.max_merge = node.integer_or_zero("max_merge");
    plan.guard_decisions = node.integer_or_zero("guard_decisions");
    if (node.has("guard_history")) {
        node.each("guard_history", [&](const Node& decision) {
            plan.guard_history.push_back(
                {decision.integer_or_zero("iteration"), decision.text_or_empty("action"),
                 decision.text_or_empty("reason"), decision.flag_or("acted", true),
                 decision.integer_or_zero("from"), decision.integer_or_zero("to"),
                 decision.integer_or_zero("late_by"), decision.integer_or_zero("dropped"),
                 decision.any_number("loss_expected"), decision.any_number("loss_seen")});
        });
    }
    return plan;
}

}  // namespace

std::int64_t ObservedLink::all_stalls() const {
    std::int64_t sum = 0;
    for (const std::int64_t count : stalls) {
        sum = add_counts(sum, count);
    }
    return sum;
}

std::int64_t ObserveFile::all_calls() const {
    std::int64_t sum = 0;
    for (const auto& [name, count] : calls) {
        sum = add_counts(sum, count);
    }
    return sum;
}

namespace {

void read_hooks(const Node& hooks, ObserveFile& file) {
    file.events_note = hooks.text_or_empty("events_note");
    file.captured_calls = hooks.integer_or_zero("captured");
    file.lost_calls = hooks.integer_or_zero("lost");
}

void read_plugin(const Node& plugin, ObserveFile& file) {
    file.plugin_loaded = plugin.flag("loaded");
    file.plugin_abi = plugin.integer_or_zero("abi");
    file.plugin_calls = plugin.integer_or_zero("calls");
}

void read_iterations(const Node& iterations, ObserveFile& file) {
    file.iterations_seen = iterations.integer("seen");
    file.cycle_length = iterations.integer_or_zero("cycle_length");
    file.stable = iterations.flag("stable");
    file.time_ms = iterations.quantiles("time_ms");
    file.coverage_rate = iterations.quantiles("coverage_rate");
    file.compute_ms = iterations.quantiles("compute_ms");
    file.exposed_ms = iterations.quantiles("exposed_ms");
    file.latest_start_ms = iterations.quantiles("latest_start_ms");
}

}  // namespace

ObserveFile parse_observe_file(const std::string& path, const std::string& text) {
    const Json document = parse(path, text);
    if (!document.is_object() || !document.contains("format") || document.at("format") != kFormat) {
        fail(path, fmt::format("not a report of deft (it has no \"format\": \"{}\"); name files "
                               "written under DEFT_MODE=observe",
                               kFormat));
    }
    const Node root(path, "", document);
    const std::int64_t version = root.integer("version");
    if (version != kVersion) {
        fail(path, fmt::format("written in version {} of the format, this deft reads version {}; "
                               "use the deft of the release that wrote it",
                               version, kVersion));
    }
    ObserveFile file;
    file.path = path;
    file.library_version = root.child("library").text("version");
    file.nccl_version = root.child("nccl").integer_or_zero("version");
    file.nccl_path = root.child("nccl").text_or_empty("path");
    file.host = root.text("host");
    file.rank = root.integer("rank");
    file.ranks = root.integer("ranks");
    if (file.ranks > 0 && file.rank >= file.ranks) {
        fail(path, fmt::format("rank {} of {} ranks does not exist; was the file edited?",
                               file.rank, file.ranks));
    }
    file.pid = root.integer_or_zero("pid");
    if (root.has("job")) {
        const Node job = root.child("job");
        file.job = {job.text_or_empty("id"), job.text_or_empty("command"),
                    job.text_or_empty("started"), job.text_or_empty("written")};
    }
    file.mode = root.text_or_empty("mode");
    file.gradients = root.text_or_empty("gradients");
    file.calls = root.child("calls").counters();
    file.final_report = root.flag_or("final", true);
    if (root.has("hooks")) {
        read_hooks(root.child("hooks"), file);
    }
    read_plugin(root.child("plugin"), file);
    read_iterations(root.child("iterations"), file);
    if (root.has("communicators")) {
        root.each("communicators", [&](const Node& node) {
            file.communicators.push_back(node.text_or_empty("communicator"));
        });
    }
    root.each("buckets", [&](const Node& node) { file.buckets.push_back(read_bucket(node)); });
    root.each("links", [&](const Node& node) { file.links.push_back(read_link(node)); });
    if (root.has("other_calls")) {
        root.each("other_calls", [&](const Node& node) {
            file.other_calls.push_back({node.integer("position"), node.integer_or_zero("bytes"),
                                        node.text_or_empty("function")});
        });
    }
    if (root.has("traced")) {
        file.traced = read_trace(root.child("traced"), file);
    }
    if (root.has("plans")) {
        root.each("plans", [&](const Node& node) { file.plans.push_back(read_plan(node)); });
    }
    return file;
}

std::vector<std::string_view> records_in(std::string_view text) {
    std::vector<std::string_view> lines;
    bool one_a_line = false;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at);
        one_a_line = one_a_line || (line.starts_with("{\"") && line.ends_with('}'));
        lines.push_back(line);
        at = end + 1;
    }
    return one_a_line ? lines : std::vector<std::string_view>{text};
}

std::vector<ObserveFile> read_observe_files(const std::string& path,
                                            std::vector<std::string>& problems) {
    std::string text;
    std::string problem;
    if (!read_input(path, kLargest, text, problem)) {
        problems.push_back(path + ": " + problem);
        return {};
    }
    const std::vector<std::string_view> records = records_in(text);
    std::vector<ObserveFile> files;
    for (std::size_t i = 0; i < records.size(); ++i) {
        const std::string place =
            records.size() == 1 ? path : fmt::format("{}, record {}", path, i + 1);
        try {
            files.push_back(parse_observe_file(place, std::string(records[i])));
        } catch (const std::runtime_error& error) {
            problems.emplace_back(error.what());
        }
    }
    return files;
}

}  // namespace deft::tools
