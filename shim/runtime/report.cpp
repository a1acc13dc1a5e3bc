// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/report.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/build_version.h"
#include "base/config.h"
#include "base/json_writer.h"
#include "base/link_stats.h"
#include "base/presence.h"
#include "shim/nccl/nccl_libraries.h"

namespace deft {
namespace {

std::string hexadecimal(std::uint64_t value) {
    char digits[20];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value));
    return digits;
}

std::int64_t clock_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

const char* type_name(int type) {
    static constexpr const char* names[] = {"int8",    "uint8",    "int32",      "uint32",
                                            "int64",   "uint64",   "float16",    "float32",
                                            "float64", "bfloat16", "float8e4m3", "float8e5m2"};
    return type >= 0 && type < DEFT_NCCL_NUM_TYPES ? names[type] : "unknown";
}

const char* op_name(int op) {
    static constexpr const char* names[] = {"sum", "prod", "max", "min", "avg"};
    if (op < 0) {
        return "none";
    }
    return op < DEFT_NCCL_NUM_OPS ? names[op] : "user";
}

void summary(JsonWriter& json, const char* name, const Samples& samples) {
    const Summary s = samples.summary();
    json.key(name).begin_object();
    if (s.n > 0) {
        json.member("median", s.median).member("p10", s.p10).member("p90", s.p90);
    } else {
        const double unknown = __builtin_nan("");
        json.member("median", unknown).member("p10", unknown).member("p90", unknown);
    }
    json.member("n", s.n).end_object();
}

void place(JsonWriter& json, const CallRecord& call, const CallTimes::Place& times,
           std::size_t position) {
    json.begin_object()
        .member("position", static_cast<std::uint64_t>(position))
        .member("communicator", hexadecimal(call.comm_hash))
        .member("function", function_name(call.function))
        .member("bytes", payload_bytes(call))
        .member("count", call.count)
        .member("type", type_name(call.type))
        .member("op", op_name(call.op))
        .member("in_place", call.in_place);
    summary(json, "ready_ms", times.ready_ms);
    summary(json, "issued_ms", times.issued_ms);
    summary(json, "transfer_ms", times.transfer_ms);
    json.end_object();
}

void cycle(JsonWriter& json, const Track* track) {
    const CallTimes* profile = track != nullptr ? track->main_profile() : nullptr;
    const CallTimes nothing(0);
    const CallTimes& shown = profile != nullptr ? *profile : nothing;
    json.key("iterations")
        .begin_object()
        .member("seen", shown.iterations())
        .member("cycle_length", static_cast<std::uint64_t>(shown.length()))
        .member("stable", profile != nullptr)
        .member("in_force", track != nullptr && track->stable())
        .member("changes", track != nullptr ? track->changes() : std::uint64_t{0})
        .member("calls", track != nullptr ? track->calls() : std::uint64_t{0});
    summary(json, "time_ms", shown.iteration_ms());
    summary(json, "compute_ms", shown.compute_ms());
    summary(json, "exposed_ms", shown.exposed_ms());
    summary(json, "coverage_rate", shown.coverage_rate());
    summary(json, "latest_start_ms", shown.latest_start_ms());
    json.end_object();
    for (const bool gradients : {true, false}) {
        json.key(gradients ? "buckets" : "other_calls").begin_array();
        for (std::size_t i = 0; profile != nullptr && i < profile->length(); ++i) {
            const CallRecord& call = track->main_shape()[i];
            if (carries_gradient(call) == gradients) {
                place(json, call, profile->places()[i], i);
            }
        }
        json.end_array();
    }
}

void tuned(JsonWriter& json, const TuningFacts& tuning) {
    json.begin_object()
        .member("state", tuning.state)
        .member("reason", tuning.reason)
        .member("ratio", tuning.ratio);
    json.key("calls").begin_array();
    for (const TuningFacts::Call& call : tuning.calls) {
        json.begin_object()
            .member("call", call.call)
            .member("choice", call.choice)
            .member("own_ms", call.own_ms)
            .member("chosen_ms", call.chosen_ms)
            .end_object();
    }
    json.end_array().end_object();
}

void guarded(JsonWriter& json, const std::vector<GuardEvent>& history) {
    json.key("guard_history").begin_array();
    for (const GuardEvent& event : history) {
        json.begin_object()
            .member("iteration", event.iteration)
            .member("action", event.action)
            .member("reason", event.reason)
            .member("acted", event.acted);
        if (event.to > 0) {
            json.member("from", event.from).member("to", event.to);
            json.member("late_by", std::uint64_t{event.late_by}).member("dropped", event.dropped);
        }
        if (std::isfinite(event.loss_expected) && std::isfinite(event.loss_seen) && event.to > 0) {
            json.member("loss_expected", event.loss_expected).member("loss_seen", event.loss_seen);
        }
        json.end_object();
    }
    json.end_array();
}

void planned(JsonWriter& json, const PlanFacts& plan) {
    json.begin_object()
        .member("state", plan.state)
        .member("reason", plan.reason)
        .member("policy", plan.policy)
        .member("predicted_ms", plan.predicted_ms)
        .member("baseline_ms", plan.baseline_ms)
        .member("bound_ms", plan.bound_ms)
        .member("updates_per_iteration", plan.updates)
        .member("late", plan.late)
        .member("progress", plan.progress)
        .member("max_delay", static_cast<std::uint64_t>(plan.max_delay))
        .member("max_merge", static_cast<std::uint64_t>(plan.max_merge))
        .member("switched", plan.switched)
        .member("ended", plan.ended)
        .member("iterations", plan.iterations)
        .member("executed_calls", plan.executed)
        .member("forwarded_calls", plan.forwarded)
        .member("launched_bytes", plan.launched_bytes)
        .member("delivered", plan.delivered)
        .member("predicted_deliveries", plan.predicted_deliveries)
        .member("zeroed_calls", plan.zeroed)
        .member("dropped", plan.dropped)
        .member("shadow_bytes", plan.shadow_bytes)
        .member("guard_decisions", plan.guard_decisions)
        .member("before_ms", plan.before_ms)
        .member("before_p10_ms", plan.before_p10_ms)
        .member("before_p90_ms", plan.before_p90_ms)
        .member("before_n", plan.before_n)
        .member("period", static_cast<std::uint64_t>(plan.period));
    json.key("lane_bytes").begin_array();
    for (const std::uint64_t bytes : plan.lane_bytes) {
        json.value(bytes);
    }
    json.end_array().key("cycles_ms").begin_array();
    for (const double start : plan.cycles_ms) {
        json.value(start);
    }
    json.end_array().key("transfers").begin_array();
    for (const PlannedTransfer& transfer : plan.transfers) {
        json.begin_object()
            .member("bucket", static_cast<std::uint64_t>(transfer.bucket))
            .member("link", static_cast<std::uint64_t>(transfer.link))
            .member("start_ms", transfer.start_ms)
            .member("finish_ms", transfer.finish_ms)
            .end_object();
    }
    json.end_array();
    guarded(json, plan.guard_history);
    if (!plan.tuning.state.empty()) {
        json.key("tuning");
        tuned(json, plan.tuning);
    }
    json.end_object();
}

void links(JsonWriter& json) {
    const LinkStats& stats = LinkStats::process();
    json.key("links").begin_array();
    for (std::size_t i = 0; i < stats.size(); ++i) {
        const LinkCounters& link = stats[i];
        const auto get = [](const auto& counter) {
            return counter.load(std::memory_order_relaxed);
        };
        json.begin_object()
            .member("name", link.name)
            .member("kind", link.kind)
            .member("bytes_sent", get(link.bytes_sent))
            .member("bytes_received", get(link.bytes_received))
            .member("chunks_sent", get(link.chunks_sent))
            .member("busy_ms", static_cast<double>(get(link.busy_ns)) * 1e-6)
            .member("resent_bytes", get(link.resent_bytes))
            .member("transitions", get(link.transitions))
            .member("speed_mbps", get(link.speed_mbps));
        json.key("stalls").begin_object().member("total_ms",
                                                 static_cast<double>(get(link.stall_ns)) * 1e-6);
        json.key("bounds_s").begin_array();
        for (const double bound : kStallBounds) {
            json.value(bound);
        }
        json.end_array().key("counts").begin_array();
        for (const auto& count : link.stalls) {
            json.value(get(count));
        }
        json.end_array().end_object().end_object();
    }
    json.end_array();
}

std::int64_t utc_us(const ReportFacts& facts, std::int64_t monotonic_ns) {
    return (monotonic_ns + facts.utc_offset_ns) / 1000;
}

void traced_iterations(JsonWriter& json, const ReportFacts& facts, const Track* track) {
    const CallTimes* profile = track != nullptr ? track->main_profile() : nullptr;
    json.key("iterations").begin_array();
    for (std::size_t i = 0; profile != nullptr && i < profile->traced().size(); ++i) {
        const TracedIteration& iteration = profile->traced()[i];
        json.begin_object().member("origin_us", utc_us(facts, iteration.origin));
        json.key("calls").begin_array();
        for (const TracedIteration::Call& call : iteration.calls) {
            json.begin_array().value(static_cast<std::uint64_t>(call.position));
            for (const std::int64_t time : {call.issued, call.ready, call.start, call.end}) {
                json.value((time - iteration.origin) / 1000);
            }
            json.end_array();
        }
        json.end_array().end_object();
    }
    json.end_array();
}

void traced_links(JsonWriter& json, const ReportFacts& facts) {
    json.key("links").begin_array();
    for (std::size_t i = 0;
         facts.link_history != nullptr && i < facts.link_history->samples().size(); ++i) {
        const LinkHistory::Sample& sample = facts.link_history->samples()[i];
        json.begin_object().member("at_us", utc_us(facts, sample.at));
        for (const auto& [name, bytes] :
             {std::pair{"sent", &sample.sent}, {"again", &sample.again}}) {
            json.key(name).begin_array();
            for (const std::uint64_t count : *bytes) {
                json.value(count);
            }
            json.end_array();
        }
        json.end_object();
    }
    json.end_array();
}

// The latest measured iterations as they were, for `deft report --trace`.
void traced(JsonWriter& json, const ReportFacts& facts, const Track* track) {
    json.key("traced").begin_object();
    traced_iterations(json, facts, track);
    traced_links(json, facts);
    json.end_object();
}

}  // namespace

ReportFacts process_facts() {
    ReportFacts facts;
    Dl_info info;
    if (::dladdr(own_base(), &info) != 0 && info.dli_fname != nullptr) {
        facts.library_path = info.dli_fname;
    }
    const NcclLibraries& libraries = NcclLibraries::process();
    if (libraries.size() > 0) {
        facts.nccl_version = libraries.at(0)->version;
        facts.nccl_path = libraries.at(0)->path;
    }
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    facts.host = host;
    facts.pid = ::getpid();
    facts.utc_offset_ns = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    facts.job = own_job();
    facts.written = utc_text(::time(nullptr));
    facts.mode = Config::process().text(Key::Mode);
    facts.gradients = Config::process().text(Key::Gradients);
    const LinkStats& stats = LinkStats::process();
    facts.plugin_abi = stats.plugin_version.load();
    facts.plugin_calls = stats.plugin_calls.load();
    facts.plugin_loaded = facts.plugin_abi != 0 || facts.plugin_calls != 0 ||
                          Presence::process().plugin_inits.load() != 0;
    return facts;
}

std::string make_report(const ReportFacts& facts, const Track* track) {
    JsonWriter json(JsonWriter::Layout::Compact);
    json.begin_object().member("format", "deft-observe").member("version", 1);
    json.member("rank", facts.rank).member("writer", hexadecimal(facts.writer));
    json.key("library").begin_object().member("version", build_version());
    json.member("path", facts.library_path).end_object();
    json.key("nccl").begin_object().member("version", facts.nccl_version);
    json.member("path", facts.nccl_path).end_object();
    json.member("host", facts.host).member("ranks", facts.ranks);
    json.member("pid", facts.pid);
    json.key("job").begin_object().member("id", facts.job.id);
    json.member("command", facts.job.command).member("started", facts.job.started);
    json.member("written", facts.written).end_object();
    json.member("mode", facts.mode);
    json.member("gradients", facts.gradients);
    json.member("final", facts.final_report);
    std::uint64_t hooked = 0;
    json.key("calls").begin_object();
    for (std::size_t i = 0; i < kFunctions; ++i) {
        hooked += facts.calls[i];
        if (facts.calls[i] != 0) {
            json.member(function_name(static_cast<Function>(i)), facts.calls[i]);
        }
    }
    json.end_object();
    json.key("hooks").begin_object();
    json.member("in_path", hooked != 0).member("calls", hooked);
    json.member("timed", facts.timed_calls).member("captured", facts.captured_calls);
    json.member("lost", facts.lost_calls).member("events_note", facts.events_note).end_object();
    json.key("plugin").begin_object();
    json.member("loaded", facts.plugin_loaded).member("abi", facts.plugin_abi);
    json.member("calls", facts.plugin_calls).end_object();
    json.key("communicators").begin_array();
    for (const CommunicatorFacts& comm : facts.communicators) {
        json.begin_object().member("communicator", hexadecimal(comm.hash));
        json.member("rank", comm.rank).member("ranks", comm.nranks);
        json.member("device", comm.device).end_object();
    }
    json.end_array();
    cycle(json, track);
    json.key("plans").begin_array();
    for (const PlanFacts& plan : facts.plans) {
        planned(json, plan);
    }
    json.end_array();
    links(json);
    traced(json, facts, track);
    json.end_object();
    return json.text() + "\n";
}

}  // namespace deft
