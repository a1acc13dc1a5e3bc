// SPDX-License-Identifier: Apache-2.0
// The report of a run for programs.
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "tools/report.h"
#include "tools/report_spread.h"

namespace deft::tools {
namespace {

nlohmann::ordered_json json_value(const std::optional<double>& number) {
    return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json json_spread(
    const RunReport& run, const std::function<std::optional<double>(const ObserveFile&)>& of) {
    const Spread values = run.one_run ? spread(run, of) : Spread{};
    return {{"median", json_value(values.middle)},
            {"lowest", json_value(values.lowest)},
            {"highest", json_value(values.highest)}};
}

nlohmann::ordered_json json_buckets(const ObserveFile& file) {
    auto buckets = nlohmann::ordered_json::array();
    for (const ObservedBucket& bucket : file.buckets) {
        buckets.push_back({{"position", bucket.position},
                           {"bytes", bucket.bytes},
                           {"type", bucket.type},
                           {"op", bucket.op},
                           {"ready_ms", json_value(bucket.ready_ms.median)},
                           {"transfer_ms", json_value(bucket.transfer_ms.median)}});
    }
    return buckets;
}

nlohmann::ordered_json json_links(const ObserveFile& file) {
    auto links = nlohmann::ordered_json::array();
    for (const ObservedLink& link : file.links) {
        auto stalls = nlohmann::ordered_json::array();
        for (std::size_t i = 0; i < link.stalls.size(); ++i) {
            stalls.push_back({{"within_s", i < link.stall_bounds_s.size()
                                               ? nlohmann::ordered_json(link.stall_bounds_s[i])
                                               : nlohmann::ordered_json(nullptr)},
                              {"count", link.stalls[i]}});
        }
        links.push_back({{"name", link.name},
                         {"kind", link.kind},
                         {"bytes_sent", link.bytes_sent},
                         {"bytes_received", link.bytes_received},
                         {"resent_bytes", link.resent_bytes},
                         {"transitions", link.transitions},
                         {"busy_ms", json_value(link.busy_ms)},
                         {"speed_mbps", json_value(link.speed_mbps)},
                         {"stall_ms", json_value(link.stall_ms)},
                         {"stalls", stalls}});
    }
    return links;
}

nlohmann::ordered_json json_tuning(const ObservedTuning& tuning) {
    auto calls = nlohmann::ordered_json::array();
    for (const ObservedTuning::Call& call : tuning.calls) {
        calls.push_back({{"call", call.call},
                         {"choice", call.choice},
                         {"own_ms", json_value(call.own_ms)},
                         {"chosen_ms", json_value(call.chosen_ms)}});
    }
    return {{"state", tuning.state},
            {"reason", tuning.reason},
            {"ratio", json_value(tuning.ratio)},
            {"calls", calls}};
}

// As the observe file has them (docs/observe.md).
nlohmann::ordered_json json_hooks(const ObserveFile& file) {
    return {{"in_path", file.all_calls() > 0},
            {"calls", file.all_calls()},
            {"captured", file.captured_calls},
            {"lost", file.lost_calls},
            {"events_note", file.events_note}};
}

std::set<std::string> hosts_of(const RunReport& run) {
    std::set<std::string> hosts;
    for (const ObserveFile& file : run.ranks) {
        hosts.insert(file.host);
    }
    return hosts;
}

nlohmann::ordered_json json_decisions(const ObservedPlan& plan) {
    auto decisions = nlohmann::ordered_json::array();
    for (const ObservedDecision& each : plan.guard_history) {
        decisions.push_back({{"iteration", each.iteration},
                             {"action", each.action},
                             {"reason", each.reason},
                             {"acted", each.acted}});
        if (each.to > 0) {
            decisions.back().update({{"from", each.from},
                                     {"to", each.to},
                                     {"late_by", each.late_by},
                                     {"dropped", each.dropped},
                                     {"loss_expected", json_value(each.loss_expected)},
                                     {"loss_seen", json_value(each.loss_seen)}});
        }
    }
    return decisions;
}

nlohmann::ordered_json json_plans(const ObserveFile& file) {
    auto plans = nlohmann::ordered_json::array();
    for (const ObservedPlan& plan : file.plans) {
        plans.push_back({{"state", plan.state},
                         {"reason", plan.reason},
                         {"policy", plan.policy},
                         {"predicted_ms", json_value(plan.predicted_ms)},
                         {"baseline_ms", json_value(plan.baseline_ms)},
                         {"before_ms", json_value(plan.before_ms)},
                         {"bound_ms", json_value(plan.bound_ms)},
                         {"updates_per_iteration", json_value(plan.updates_per_iteration)},
                         {"progress", json_value(plan.progress)},
                         {"switched", plan.switched},
                         {"ended", plan.ended},
                         {"guard_decisions", plan.guard_decisions},
                         {"guard_history", json_decisions(plan)}});
        if (!plan.tuning.state.empty()) {
            plans.back()["tuning"] = json_tuning(plan.tuning);
        }
    }
    return plans;
}

}  // namespace

std::string json_report(const RunReport& run) {
    using Json = nlohmann::ordered_json;
    Json document;
    document["format"] = "deft-report";
    document["version"] = 1;
    document["nccl_version"] = run.ranks.front().nccl_version;
    document["mode"] = run.ranks.front().mode;
    document["hosts"] = hosts_of(run);
    document["one_run"] = run.one_run;
    document["time_ms"] = json_spread(run, [](const ObserveFile& f) { return f.time_ms.median; });
    document["coverage_rate"] =
        json_spread(run, [](const ObserveFile& f) { return f.coverage_rate.median; });
    document["ranks"] = Json::array();
    for (const ObserveFile& file : run.ranks) {
        document["ranks"].push_back({{"file", file.path},
                                     {"host", file.host},
                                     {"job",
                                      {{"id", file.job.id},
                                       {"command", file.job.command},
                                       {"started", file.job.started},
                                       {"written", file.job.written}}},
                                     {"mode", file.mode},
                                     {"library_version", file.library_version},
                                     {"nccl_version", file.nccl_version},
                                     {"gradients", file.gradients},
                                     {"rank", file.rank},
                                     {"of", file.ranks},
                                     {"calls", file.all_calls()},
                                     {"hooks", json_hooks(file)},
                                     {"plugin_loaded", file.plugin_loaded},
                                     {"plugin_calls", file.plugin_calls},
                                     {"stable", file.stable},
                                     {"iterations", file.iterations_seen},
                                     {"time_ms", json_value(file.time_ms.median)},
                                     {"coverage_rate", json_value(file.coverage_rate.median)},
                                     {"buckets", json_buckets(file)},
                                     {"links", json_links(file)},
                                     {"plans", json_plans(file)}});
    }
    document["notes"] = run.notes;
    document["problems"] = run.problems;
    return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace deft::tools
