// SPDX-License-Identifier: Apache-2.0
#include "tools/report_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report_words.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using Json = nlohmann::ordered_json;

// Rows (threads, to the viewer) of a rank. Calls of several streams overlap, which a row may not:
// each kind has as many rows as it needs.
constexpr std::int64_t kIterationRow = 1;
constexpr std::int64_t kWaitRow = 2;
constexpr std::int64_t kSumRows = 100;
constexpr std::int64_t kCallRows = 200;
constexpr std::int64_t kPlanRows = 300;
constexpr std::size_t kMostRows = 64;

class Trace {
public:
    void process(std::int64_t rank, const std::string& name) {
        meta("process_name", rank, 0, {{"name", name}});
        meta("process_sort_index", rank, 0, {{"sort_index", rank}});
    }
    void row(std::int64_t rank, std::int64_t row, const std::string& name) {
        if (named_.emplace(std::pair{rank, row}, name).second) {
            meta("thread_name", rank, row, {{"name", name}});
            meta("thread_sort_index", rank, row, {{"sort_index", row}});
        }
    }
    // Times in microseconds.
    void bar(std::int64_t rank, std::int64_t row, const std::string& name, std::int64_t start,
             std::int64_t end, Json more) {
        events_.push_back({{"name", name},
                           {"ph", "X"},
                           {"pid", rank},
                           {"tid", row},
                           {"ts", start},
                           {"dur", std::max<std::int64_t>(end - start, 0)},
                           {"args", std::move(more)}});
    }
    void counter(std::int64_t rank, const std::string& name, std::int64_t at, double value) {
        events_.push_back({{"name", name},
                           {"ph", "C"},
                           {"pid", rank},
                           {"tid", 0},
                           {"ts", at},
                           {"args", {{"Gbit/s", value}}}});
    }
    std::string text(Json about) {
        return Json{{"traceEvents", std::move(events_)},
                    {"displayTimeUnit", "ms"},
                    {"otherData", std::move(about)}}
                   .dump(-1, ' ', false, Json::error_handler_t::replace) +
               "\n";
    }

private:
    Json events_ = Json::array();
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> named_;

    void meta(const char* what, std::int64_t rank, std::int64_t row, Json more) {
        events_.push_back({{"name", what},
                           {"ph", "M"},
                           {"pid", rank},
                           {"tid", row},
                           {"ts", 0},
                           {"args", std::move(more)}});
    }
};

// The first row of a kind that is free from `start` on; it is taken until `end`.
std::int64_t free_row(std::vector<std::int64_t>& taken, std::int64_t start, std::int64_t end) {
    auto row = std::find_if(taken.begin(), taken.end(),
                            [start](std::int64_t until) { return until <= start; });
    if (row == taken.end()) {
        // More than anybody has: the last one is used again.
        row = taken.size() < kMostRows ? taken.insert(taken.end(), start) : taken.end() - 1;
    }
    *row = std::max(*row, end);
    return row - taken.begin();
}

std::string numbered(const char* name, std::int64_t row) {
    return row == 0 ? name : fmt::format("{} ({})", name, row + 1);
}

std::string bucket_name(const ObserveFile& file, std::int64_t position) {
    for (std::size_t i = 0; i < file.buckets.size(); ++i) {
        if (file.buckets[i].position == position) {
            return fmt::format("bucket {}, {}", i,
                               size_text(static_cast<double>(file.buckets[i].bytes)));
        }
    }
    return "";
}

std::string call_name(const ObserveFile& file, std::int64_t position) {
    for (const ObserveFile::OtherCall& call : file.other_calls) {
        if (call.position == position) {
            return fmt::format("{}, {}", printable(call.function),
                               size_text(static_cast<double>(call.bytes)));
        }
    }
    return fmt::format("call {}", position);
}

// From the iteration's origin to the end of its last call, and in it the time in which nothing was
// left to compute.
void add_iteration(Trace& trace, const ObserveFile& file, const ObservedTrace::Iteration& iteration,
                   std::size_t number) {
    std::int64_t end = 0;
    std::int64_t ready = 0;
    for (const ObservedTrace::Call& call : iteration.calls) {
        end = std::max(end, call.end);
        ready = std::max(ready, call.ready);
    }
    const std::int64_t at = iteration.origin;
    trace.row(file.rank, kIterationRow, "iterations");
    trace.bar(file.rank, kIterationRow, fmt::format("measured iteration {}", number + 1), at,
              at + end, {{"calls", iteration.calls.size()}});
    if (end > ready) {
        trace.row(file.rank, kWaitRow, "waits for transfers");
        trace.bar(file.rank, kWaitRow, "waits", at + ready, at + end, Json::object());
    }
}

void add_calls(Trace& trace, const ObserveFile& file) {
    struct Bar {
        std::int64_t start, end;
        std::string name;
        bool bucket;
        Json more;
    };
    std::vector<Bar> bars;
    for (const ObservedTrace::Iteration& iteration : file.traced.iterations) {
        for (const ObservedTrace::Call& call : iteration.calls) {
            std::string name = bucket_name(file, call.position);
            const bool bucket = !name.empty();
            bars.push_back(
                {iteration.origin + call.start, iteration.origin + call.end,
                 bucket ? std::move(name) : call_name(file, call.position), bucket,
                 Json{{"position", call.position},
                      {"issued_us", call.issued},
                      {"ready_us", call.ready},
                      {"waited_us", std::max<std::int64_t>(call.start - call.ready, 0)}}});
        }
    }
    std::stable_sort(bars.begin(), bars.end(),
                     [](const Bar& a, const Bar& b) { return a.start < b.start; });
    std::vector<std::int64_t> sums;
    std::vector<std::int64_t> calls;
    for (Bar& bar : bars) {
        const std::int64_t row = free_row(bar.bucket ? sums : calls, bar.start, bar.end);
        const std::int64_t place = (bar.bucket ? kSumRows : kCallRows) + row;
        trace.row(file.rank, place, numbered(bar.bucket ? "sums" : "other calls", row));
        trace.bar(file.rank, place, bar.name, bar.start, bar.end, std::move(bar.more));
    }
}

// What the plan in force has computed for one of its periods, below the first iteration.
void add_plans(Trace& trace, const ObserveFile& file) {
    std::int64_t rows = 0;
    for (const ObservedPlan& plan : file.plans) {
        if (plan.state != "running" || plan.transfers.empty()) {
            continue;
        }
        std::map<std::int64_t, std::vector<std::int64_t>> lanes;
        std::vector<ObservedPlan::Transfer> transfers = plan.transfers;
        std::stable_sort(transfers.begin(), transfers.end(),
                         [](const auto& a, const auto& b) { return a.start_ms < b.start_ms; });
        for (const ObservedPlan::Transfer& transfer : transfers) {
            const auto time = [&](double ms) {
                return file.traced.iterations.front().origin +
                       static_cast<std::int64_t>(std::clamp(ms, -1e9, 1e9) * 1e3);
            };
            const std::int64_t start = time(transfer.start_ms);
            const std::int64_t end = time(transfer.finish_ms);
            const std::int64_t row = free_row(lanes[transfer.lane], start, end);
            const std::int64_t place =
                kPlanRows + rows + std::min<std::int64_t>(transfer.lane, 15) * 64 + row;
            const std::string lane =
                transfer.lane == 0 ? "the job's network" : fmt::format("lane {}", transfer.lane);
            trace.row(
                file.rank, place,
                numbered(
                    fmt::format("plan '{}' as computed, {}", printable(plan.policy), lane).c_str(),
                    row));
            trace.bar(file.rank, place, fmt::format("bucket {}", transfer.bucket), start, end,
                      {{"computed", true}});
        }
        rows += 1024;
    }
}

// Rates between looks at the links; ranks of one process have the same ones.
void add_links(Trace& trace, const ObserveFile& file) {
    const std::vector<ObservedTrace::LinkSample>& samples = file.traced.links;
    for (std::size_t i = 1; i < samples.size(); ++i) {
        const auto& before = samples[i - 1];
        const auto& now = samples[i];
        if (now.at <= before.at) {
            continue;
        }
        for (std::size_t link = 0; link < std::min(before.sent.size(), now.sent.size()); ++link) {
            const double bytes = std::max(
                0.0, static_cast<double>(now.sent[link]) - static_cast<double>(before.sent[link]));
            const double us = static_cast<double>(now.at) - static_cast<double>(before.at);
            // The rate held from the look before.
            trace.counter(file.rank, fmt::format("link {} sends", printable(file.links[link].name)),
                          before.at, bytes * 8 / us / 1e3);
        }
    }
    for (std::size_t link = 0; !samples.empty() && link < samples.back().sent.size(); ++link) {
        trace.counter(file.rank, fmt::format("link {} sends", printable(file.links[link].name)),
                      samples.back().at, 0);
    }
}

}  // namespace

bool has_trace(const RunReport& run) {
    return std::any_of(run.ranks.begin(), run.ranks.end(),
                       [](const ObserveFile& file) { return !file.traced.iterations.empty(); });
}

std::string trace_text(const RunReport& run) {
    Trace trace;
    for (const ObserveFile& file : run.ranks) {
        trace.process(file.rank, fmt::format("rank {} on {}", file.rank, printable(file.host)));
        for (std::size_t i = 0; i < file.traced.iterations.size(); ++i) {
            add_iteration(trace, file, file.traced.iterations[i], i);
        }
        add_calls(trace, file);
        if (!file.traced.iterations.empty()) {
            add_plans(trace, file);
        }
        add_links(trace, file);
    }
    const ObserveFile& first = run.ranks.front();
    return trace.text({{"deft", printable(first.library_version)},
                       {"job", printable(first.job.id)},
                       {"command", printable(first.job.command)},
                       {"mode", printable(first.mode)}});
}

}  // namespace deft::tools
