// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/model/measured_profile.h"
#include "planner/model/model.h"
#include "tools/observe_file.h"
#include "tools/planner/fields.h"

namespace deft::tools {

using planner::Bucket;
using planner::Profile;
using planner::Spread;

namespace {

constexpr double kDay = 86400;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

void expect_sound(const std::string& name, const Profile& profile) {
    if (const std::string why = profile.problem(); !why.empty()) {
        throw InputError(name + ": " + why);
    }
}

double value_of(const std::string& what, const std::string& word, const std::string& text) {
    double value = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !(value > 0) ||
        value > 1e12) {
        throw InputError(fmt::format("{}: {}: '{}' is not a number above 0", what, word, text));
    }
    return value;
}

// `least`: a gradient may be ready before the iteration begins, when the host runs ahead.
Spread spread_from(const Field& field, double least = 0) {
    if (field.is_null()) {
        return {};
    }
    Spread spread;
    spread.n = field["n"].whole(0, std::uint64_t{1} << 62);
    if (spread.n == 0) {
        return {};
    }
    const double most = kDay * 1e3;
    spread.median = field["median"].number(least, most) / 1e3;
    spread.p10 = field["p10"].number(least, most) / 1e3;
    spread.p90 = field["p90"].number(least, most) / 1e3;
    if (spread.p10 > spread.median || spread.median > spread.p90) {
        field.fail("p10, median and p90 do not ascend");
    }
    return spread;
}

nlohmann::json spread_to(const Spread& spread) {
    return {{"median", spread.median * 1e3},
            {"p10", spread.p10 * 1e3},
            {"p90", spread.p90 * 1e3},
            {"n", spread.n}};
}

}  // namespace

Spread spread_of(std::vector<double> values) {
    if (values.empty()) {
        return {};
    }
    std::sort(values.begin(), values.end());
    const auto at = [&](double q) {
        const double where = q * static_cast<double>(values.size() - 1);
        const auto below = static_cast<std::size_t>(where);
        const double part = where - static_cast<double>(below);
        const double low = values[below];
        return part > 0 ? low + part * (values[below + 1] - low) : low;
    };
    return {at(0.5), at(0.1), at(0.9), values.size()};
}

Profile profile_from_model(const std::string& what) {
    std::string rest = what.substr(what.find(':') + 1);
    const auto next = [&] {
        const auto comma = rest.find(',');
        std::string word = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        return word;
    };
    const std::string name = next();
    const auto& names = planner::model_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        throw InputError(fmt::format("{}: no such model; known: {}", what, fmt::join(names, ", ")));
    }
    planner::ModelRun run;
    while (!rest.empty()) {
        const std::string word = next();
        const auto equals = word.find('=');
        const std::string key = word.substr(0, equals);
        const std::string text = equals == std::string::npos ? "" : word.substr(equals + 1);
        if (key == "layers" && text.empty()) {
            run.one_per_layer = true;
        } else if (key == "batch") {
            run.samples = value_of(what, key, text);
        } else if (key == "seconds") {
            run.seconds = value_of(what, key, text);
        } else if (key == "tflops") {
            run.peak_flops = value_of(what, key, text) * 1e12;
        } else if (key == "efficiency") {
            run.efficiency = value_of(what, key, text);
        } else if (key == "bucket_mb") {
            run.bucket = static_cast<std::uint64_t>(value_of(what, key, text) * 0x1p20);
            run.first_bucket = run.bucket;  // PyTorch drops the small first bucket then
        } else {
            throw InputError(fmt::format(
                "{}: '{}' is none of batch=, seconds=, tflops=, efficiency=, bucket_mb=, layers",
                what, word));
        }
    }
    return planner::model_profile(planner::make_model(name), run);
}

Profile profile_from_observe(const std::string& name, const nlohmann::json& report) {
    const Field root(name, report);
    if (root["version"].whole(0, 1000) != 1) {
        root["version"].fail("this command reads version 1");
    }
    planner::MeasuredJob job;
    job.name = root.text_or("host", "job");
    if (root.has("ranks")) {
        job.ranks = static_cast<std::uint32_t>(root["ranks"].whole(0, 1 << 30));
    }
    const Field iterations = root["iterations"];
    if (iterations.has("time_ms")) {
        job.iteration = spread_from(iterations["time_ms"]);
    }
    if (iterations.has("compute_ms")) {
        job.compute = spread_from(iterations["compute_ms"]);
    }
    const Field buckets = root["buckets"];
    if (buckets.size() == 0) {
        buckets.fail("none was learned (the job ended before its cycle was seen three times)");
    }
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const Field from = buckets[i];
        planner::MeasuredBucket bucket;
        bucket.bytes = from["bytes"].whole(1, kMostBytes);
        if (!from.has("ready_ms")) {
            from["ready_ms"].fail("not measured (no CUDA events in this run)");
        }
        bucket.ready = spread_from(from["ready_ms"], -kDay * 1e3);
        if (!bucket.ready.measured()) {
            from["ready_ms"].fail("no measurement");
        }
        if (from.has("transfer_ms")) {
            bucket.transfer = spread_from(from["transfer_ms"]);
        }
        job.buckets.push_back(bucket);
    }
    Profile profile = planner::measured_profile(job);
    expect_sound(name, profile);
    return profile;
}

Profile profile_from_json(const std::string& name, const nlohmann::json& json) {
    const Field root(name, json);
    root.only({"format", "version", "name", "source", "ranks", "forward_ms", "backward_ms",
               "iteration_ms", "buckets"});
    if (root["version"].whole(0, 1000) != 1) {
        root["version"].fail("this command reads version 1");
    }
    Profile profile;
    profile.name = root.text_or("name", name);
    profile.source = root.text_or("source", "file");
    profile.forward = root["forward_ms"].number(0, kDay * 1e3) / 1e3;
    profile.backward = root["backward_ms"].number(0, kDay * 1e3) / 1e3;
    if (root.has("ranks")) {
        profile.ranks = static_cast<std::uint32_t>(root["ranks"].whole(0, 1 << 30));
    }
    if (root.has("iteration_ms")) {
        profile.iteration = spread_from(root["iteration_ms"]);
    }
    const Field buckets = root["buckets"];
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const Field from = buckets[i];
        from.only({"name", "bytes", "ready_ms", "forward_ms", "ready_spread_ms", "transfer_ms"});
        Bucket bucket;
        bucket.name = from.text_or("name", "bucket " + std::to_string(i));
        bucket.bytes = from["bytes"].whole(1, kMostBytes);
        bucket.ready = from["ready_ms"].number(0, kDay * 1e3) / 1e3;
        bucket.forward = from.number_or("forward_ms", 0, 0, kDay * 1e3) / 1e3;
        if (from.has("ready_spread_ms")) {
            bucket.ready_spread = spread_from(from["ready_spread_ms"], -kDay * 1e3);
        }
        if (from.has("transfer_ms")) {
            bucket.transfer = spread_from(from["transfer_ms"]);
        }
        profile.buckets.push_back(std::move(bucket));
    }
    expect_sound(name, profile);
    return profile;
}

nlohmann::json profile_to_json(const Profile& profile) {
    nlohmann::json json = {{"format", "deft-profile"},
                           {"version", 1},
                           {"name", profile.name},
                           {"source", profile.source},
                           {"ranks", profile.ranks},
                           {"forward_ms", profile.forward * 1e3},
                           {"backward_ms", profile.backward * 1e3}};
    if (profile.iteration.measured()) {
        json["iteration_ms"] = spread_to(profile.iteration);
    }
    auto& buckets = json["buckets"] = nlohmann::json::array();
    for (const Bucket& bucket : profile.buckets) {
        nlohmann::json item = {{"name", bucket.name},
                               {"bytes", bucket.bytes},
                               {"ready_ms", bucket.ready * 1e3},
                               {"forward_ms", bucket.forward * 1e3}};
        if (bucket.ready_spread.measured()) {
            item["ready_spread_ms"] = spread_to(bucket.ready_spread);
        }
        if (bucket.transfer.measured()) {
            item["transfer_ms"] = spread_to(bucket.transfer);
        }
        buckets.push_back(std::move(item));
    }
    return json;
}

namespace {

// Of a record: its latest times are not those of the job as it is without deft.
bool under_a_plan(const nlohmann::json& record) {
    const auto plans = record.find("plans");
    return plans != record.end() && plans->is_array() &&
           std::any_of(plans->begin(), plans->end(), [](const nlohmann::json& plan) {
               const auto state = plan.is_object() ? plan.find("state") : plan.end();
               return plan.is_object() && state != plan.end() && *state == "running";
           });
}

}  // namespace

Profile profile_from_text(const std::string& name, const std::string& text,
                          const TraceOptions& options) {
    // Of a file with the records of a host's ranks, the lowest rank's.
    const bool record = text.starts_with(R"({"format":"deft-observe")");
    const nlohmann::json json = record ? parse_json(name, std::string(records_in(text).front()))
                                       : parse_json(name, text, &trace_event_matters);
    const Field root(name, json);
    if (options.rank != nullptr && root.is_object()) {
        const bool trace = root.has("distributedInfo") && root["distributedInfo"].is_object();
        const Field at = trace ? root["distributedInfo"] : root;
        if (at.has("rank") && at["rank"].is_number()) {
            *options.rank = static_cast<std::int64_t>(at["rank"].whole(0, 1U << 30));
        }
    }
    if (root.is_object() && root.has("traceEvents")) {
        return profile_from_trace(name, json, options);
    }
    const std::string format = root["format"].text();
    if (format == "deft-observe") {
        if (options.notes != nullptr && under_a_plan(json)) {
            options.notes->emplace_back(
                "these times were measured under a plan in force: they show what is left to gain, "
                "not what the plan has gained (deft report says that)");
        }
        return profile_from_observe(name, json);
    }
    if (format == "deft-profile") {
        return profile_from_json(name, json);
    }
    root["format"].fail("neither \"deft-observe\" nor \"deft-profile\", and no traceEvents");
}

Profile read_profile(const std::string& what, const TraceOptions& options) {
    if (what.starts_with("model:")) {
        return profile_from_model(what);
    }
    return profile_from_text(what, read_file(what, kMostTraceBytes), options);
}

}  // namespace deft::tools
