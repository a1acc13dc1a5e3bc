// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace deft::tools {

using planner::Interval;

namespace {

using Kind = Interval::Kind;

char bucket_letter(std::uint32_t bucket) {
    static const char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    return kLetters[bucket % 36];
}

}  // namespace

std::string label(const Interval& bar) {
    switch (bar.kind) {
        case Kind::Forward:
            return fmt::format("forward {}", bar.iteration + 1);
        case Kind::Backward:
            return fmt::format("backward {}", bar.iteration);
        case Kind::Wait:
            return "wait";
        case Kind::Transfer:
            break;
    }
    return fmt::format("{} bucket {} [{}, {})", to_string(bar.operation), bar.bucket, bar.begin,
                       bar.end);
}

Timeline timeline_of(const planner::Plan& plan, const planner::Profile& profile,
                     const planner::Fabric& fabric, const planner::Simulation& simulation) {
    planner::Simulation run = simulation;
    run.timeline = true;
    if (run.iterations == 0) {
        run.iterations = 4 * plan.period + plan.predicted.max_age;
    }
    const planner::SimulationResult result = simulate(plan, profile, fabric, run);
    Timeline timeline;
    timeline.title = plan.policy;
    for (const planner::Link& link : fabric.links) {
        timeline.links.push_back(link.name);
    }
    // The last whole period but one, at least two iterations of it.
    const std::uint32_t shown = std::min(std::max(plan.period, 2U), run.iterations);
    timeline.iterations = shown;
    const std::uint32_t first = run.iterations - std::min(run.iterations, shown + plan.period);
    double from = 0;
    double to = 0;
    for (const Interval& bar : result.timeline) {
        if (bar.kind == Kind::Backward && bar.iteration == first) {
            from = bar.start;
        }
        if (bar.kind == Kind::Backward && bar.iteration == first + shown) {
            to = bar.start;
        }
        if (to == 0 && std::isfinite(bar.finish)) {
            timeline.length = std::max(timeline.length, bar.finish);
        }
    }
    if (to > from) {
        timeline.length = to;
    }
    timeline.length -= from;
    for (Interval bar : result.timeline) {
        bar.start = std::max(0.0, bar.start - from);
        bar.finish = std::min(timeline.length, bar.finish - from);
        if (bar.finish > bar.start) {
            timeline.bars.push_back(bar);
        }
    }
    return timeline;
}

std::string text_timeline(const Timeline& timeline, int columns) {
    std::size_t width = 7;
    for (const std::string& link : timeline.links) {
        width = std::max(width, std::min<std::size_t>(link.size(), 16));
    }
    std::vector<std::string> rows(timeline.links.size() + 1,
                                  std::string(static_cast<std::size_t>(columns), '.'));
    for (const Interval& bar : timeline.bars) {
        const double scale = timeline.length > 0 ? columns / timeline.length : 0;
        const int from = std::clamp(static_cast<int>(bar.start * scale), 0, columns - 1);
        const int to =
            std::clamp(static_cast<int>(std::ceil(bar.finish * scale)), from + 1, columns);
        const bool transfer = bar.kind == Kind::Transfer;
        const char mark = transfer                    ? bucket_letter(bar.bucket)
                          : bar.kind == Kind::Forward ? 'F'
                                                      : 'B';
        for (int c = from; c < to; ++c) {
            rows[transfer ? bar.link + 1 : 0][static_cast<std::size_t>(c)] = mark;
        }
    }
    std::string text = fmt::format("{}: {:.3f} ms shown\n", timeline.title, timeline.length * 1e3);
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::string name = r == 0 ? "compute" : timeline.links[r - 1].substr(0, 16);
        text += fmt::format("  {:<{}} {}\n", name, width, rows[r]);
    }
    return text;
}

nlohmann::json chrome_trace(const std::vector<Timeline>& timelines) {
    nlohmann::json events = nlohmann::json::array();
    for (std::size_t p = 0; p < timelines.size(); ++p) {
        const Timeline& timeline = timelines[p];
        events.push_back({{"ph", "M"},
                          {"name", "process_name"},
                          {"pid", p},
                          {"args", {{"name", timeline.title}}}});
        for (std::size_t r = 0; r <= timeline.links.size(); ++r) {
            events.push_back(
                {{"ph", "M"},
                 {"name", "thread_name"},
                 {"pid", p},
                 {"tid", r},
                 {"args", {{"name", r == 0 ? std::string("compute") : timeline.links[r - 1]}}}});
        }
        for (const Interval& bar : timeline.bars) {
            nlohmann::json event = {{"ph", "X"},
                                    {"pid", p},
                                    {"tid", bar.kind == Kind::Transfer ? bar.link + 1 : 0},
                                    {"name", label(bar)},
                                    {"ts", bar.start * 1e6},
                                    {"dur", (bar.finish - bar.start) * 1e6}};
            if (bar.kind == Kind::Transfer) {
                event["cat"] = "transfer";
                event["args"] = {{"bytes", bar.end - bar.begin}};
            }
            events.push_back(std::move(event));
        }
    }
    return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace deft::tools
