// SPDX-License-Identifier: Apache-2.0
#include "planner/model/plan_json.h"

#include "base/json.h"

namespace deft::planner {
namespace {

constexpr std::uint64_t kMost32 = 0xffffffff;

template <typename Enum, std::size_t N>
Enum one_of(const Json& json, const std::string& at, const Enum (&values)[N]) {
    const std::string& text = json.as_text(at);
    for (const Enum value : values) {
        if (text == to_string(value)) {
            return value;
        }
    }
    throw JsonError(at + ": \"" + text + "\" is not a known word");
}

void put(Json& json, const Generation& generation) {
    json.set("first", Json::number(std::int64_t{generation.first}));
    json.set("count", Json::number(std::uint64_t{generation.count}));
}

Generation generation_from(const Json& json, const std::string& at) {
    Generation generation;
    const std::int64_t first = json.get("first", at).as_signed(at + ".first");
    if (first < -1000000 || first > 1000000) {
        throw JsonError(at + ".first: out of range");
    }
    generation.first = static_cast<std::int32_t>(first);
    generation.count =
        static_cast<std::uint32_t>(json.get("count", at).as_unsigned(at + ".count", 1000000));
    return generation;
}

Json to_json(const Transfer& t) {
    Json json = Json::object();
    json.set("bucket", Json::number(std::uint64_t{t.bucket}));
    put(json, t.generation);
    json.set("begin", Json::number(t.begin));
    json.set("end", Json::number(t.end));
    json.set("link", Json::number(std::uint64_t{t.link}));
    json.set("operation", Json::text(to_string(t.operation)));
    json.set("iteration", Json::number(std::uint64_t{t.iteration}));
    json.set("stage", Json::text(to_string(t.stage)));
    json.set("order", Json::number(std::uint64_t{t.order}));
    json.set("message", Json::number(std::uint64_t{t.message}));
    json.set("start_s", Json::number(t.start));
    json.set("finish_s", Json::number(t.finish));
    return json;
}

Json to_json(const Delivery& d) {
    Json json = Json::object();
    json.set("iteration", Json::number(std::uint64_t{d.iteration}));
    json.set("bucket", Json::number(std::uint64_t{d.bucket}));
    json.set("begin", Json::number(d.begin));
    json.set("end", Json::number(d.end));
    put(json, d.generation);
    return json;
}

Json to_json(const Prediction& p) {
    Json json = Json::object();
    json.set("iteration_s", Json::number(p.iteration));
    json.set("updates_per_iteration", Json::number(p.updates));
    json.set("max_delay", Json::number(std::uint64_t{p.max_delay}));
    json.set("max_age", Json::number(std::uint64_t{p.max_age}));
    json.set("max_merge", Json::number(std::uint64_t{p.max_merge}));
    json.set("mean_age", Json::number(p.mean_age));
    json.set("late", Json::number(p.late));
    json.set("progress", Json::number(p.progress));
    json.set("bound_s", Json::number(p.bound));
    json.set("gap", Json::number(p.gap));
    json.set("exposed_s", Json::number(p.exposed));
    json.set("baseline_s", Json::number(p.baseline));
    Json cycles = Json::array();
    for (const double start : p.cycles) {
        cycles.append(Json::number(start));
    }
    json.set("cycles_s", std::move(cycles));
    json.set("verdict", Json::text(to_string(p.verdict)));
    return json;
}

std::uint32_t number32(const Json& json, const char* name, const std::string& at) {
    return static_cast<std::uint32_t>(json.get(name, at).as_unsigned(at + "." + name, kMost32));
}

std::uint64_t number64(const Json& json, const char* name, const std::string& at) {
    return json.get(name, at).as_unsigned(at + "." + name);
}

double real(const Json& json, const char* name, const std::string& at) {
    return json.get(name, at).as_double(at + "." + name);
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
    Json json = Json::object();
    json.set("format", Json::text("deft-plan"));
    json.set("version", Json::number(std::uint64_t{Plan::kVersion}));
    json.set("policy", Json::text(plan.policy));
    json.set("origin", Json::text(plan.origin));
    json.set("period", Json::number(std::uint64_t{plan.period}));
    json.set("barrier", Json::text(to_string(plan.barrier)));
    Json buckets = Json::array();
    for (const std::uint64_t bytes : plan.bucket_bytes) {
        buckets.append(Json::number(bytes));
    }
    json.set("bucket_bytes", std::move(buckets));
    Json links = Json::array();
    for (const std::string& link : plan.links) {
        links.append(Json::text(link));
    }
    json.set("links", std::move(links));
    Json transfers = Json::array();
    for (const Transfer& t : plan.transfers) {
        transfers.append(to_json(t));
    }
    json.set("transfers", std::move(transfers));
    Json deliveries = Json::array();
    for (const Delivery& d : plan.deliveries) {
        deliveries.append(to_json(d));
    }
    json.set("deliveries", std::move(deliveries));
    json.set("predicted", to_json(plan.predicted));
    return json.dump();
}

namespace {

Transfer transfer_from(const Json& from, const std::string& at) {
    Transfer t;
    t.bucket = number32(from, "bucket", at);
    t.generation = generation_from(from, at);
    t.begin = number64(from, "begin", at);
    t.end = number64(from, "end", at);
    t.link = number32(from, "link", at);
    t.operation = one_of(from.get("operation", at), at + ".operation",
                         {Operation::AllReduce, Operation::ReduceScatter, Operation::AllGather});
    t.iteration = number32(from, "iteration", at);
    t.stage = one_of(from.get("stage", at), at + ".stage", {Stage::Backward, Stage::Forward});
    t.order = number32(from, "order", at);
    t.message = number32(from, "message", at);
    t.start = real(from, "start_s", at);
    t.finish = real(from, "finish_s", at);
    return t;
}

Delivery delivery_from(const Json& from, const std::string& at) {
    Delivery d;
    d.iteration = number32(from, "iteration", at);
    d.bucket = number32(from, "bucket", at);
    d.begin = number64(from, "begin", at);
    d.end = number64(from, "end", at);
    d.generation = generation_from(from, at);
    return d;
}

Prediction prediction_from(const Json& from, const std::string& at) {
    Prediction p;
    p.iteration = real(from, "iteration_s", at);
    p.updates = real(from, "updates_per_iteration", at);
    p.max_delay = number32(from, "max_delay", at);
    p.max_age = number32(from, "max_age", at);
    p.max_merge = number32(from, "max_merge", at);
    p.mean_age = real(from, "mean_age", at);
    p.late = real(from, "late", at);
    if (from.has("progress")) {  // not in files of before; nothing depends on it
        p.progress = real(from, "progress", at);
    }
    p.bound = real(from, "bound_s", at);
    p.gap = real(from, "gap", at);
    p.exposed = real(from, "exposed_s", at);
    p.baseline = real(from, "baseline_s", at);
    const auto& cycles = from.get("cycles_s", at).as_array(at + ".cycles_s");
    for (std::size_t i = 0; i < cycles.size(); ++i) {
        p.cycles.push_back(cycles[i].as_double(at + ".cycles_s[" + std::to_string(i) + "]"));
    }
    p.verdict = one_of(from.get("verdict", at), at + ".verdict",
                       {Verdict::Keep, Verdict::Use, Verdict::Unsafe});
    return p;
}

}  // namespace

Plan plan_from_json(std::string_view text) {
    const Json json = Json::parse(text);
    if (json.get("format", "").as_text("format") != "deft-plan") {
        throw JsonError("format: not \"deft-plan\"");
    }
    if (json.get("version", "").as_unsigned("version") != Plan::kVersion) {
        throw JsonError("version: this library reads version " + std::to_string(Plan::kVersion));
    }
    Plan plan;
    plan.policy = json.get("policy", "").as_text("policy");
    plan.origin = json.get("origin", "").as_text("origin");
    plan.period = static_cast<std::uint32_t>(json.get("period", "").as_unsigned("period", 1000000));
    plan.barrier = one_of(json.get("barrier", ""), "barrier", {Barrier::Update, Barrier::Layer});
    const auto& sizes = json.get("bucket_bytes", "").as_array("bucket_bytes");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        plan.bucket_bytes.push_back(
            sizes[i].as_unsigned("bucket_bytes[" + std::to_string(i) + "]"));
    }
    const auto& links = json.get("links", "").as_array("links");
    for (std::size_t i = 0; i < links.size(); ++i) {
        plan.links.push_back(links[i].as_text("links[" + std::to_string(i) + "]"));
    }
    const auto& transfers = json.get("transfers", "").as_array("transfers");
    for (std::size_t i = 0; i < transfers.size(); ++i) {
        plan.transfers.push_back(
            transfer_from(transfers[i], "transfers[" + std::to_string(i) + "]"));
    }
    const auto& deliveries = json.get("deliveries", "").as_array("deliveries");
    for (std::size_t i = 0; i < deliveries.size(); ++i) {
        plan.deliveries.push_back(
            delivery_from(deliveries[i], "deliveries[" + std::to_string(i) + "]"));
    }
    plan.predicted = prediction_from(json.get("predicted", ""), "predicted");
    return plan;
}

}  // namespace deft::planner
