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

}  // namespace

std::string xml_text(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '&':
                out += "&amp;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
        }
    }
    return out;
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

namespace {

constexpr double kWidth = 1200;
constexpr double kLeft = 130;
constexpr const char* kForward = "#a0c4a0";
constexpr const char* kBackward = "#c8c8c8";

std::string svg_legend(double y) {
    std::string out;
    double x = kLeft;
    for (const auto& [colour, text] :
         {std::pair(kForward, "forward"), std::pair(kBackward, "backward"),
          std::pair("#4c78a8",
                    "transfers: a colour for each bucket, its number under the "
                    "pointer")}) {
        out += fmt::format(
            "<rect x=\"{0:.0f}\" y=\"{1:.1f}\" width=\"12\" height=\"12\" fill=\"{2}\"/>"
            "<text x=\"{3:.0f}\" y=\"{4:.1f}\">{5}</text>\n",
            x, y, colour, x + 17, y + 10, text);
        x += 100;
    }
    return out;
}

// Ticks at 1, 2 or 5 times a power of ten, ten of them at most.
std::string svg_axis(double y, double seconds, double scale) {
    if (!(seconds > 0)) {
        return "";
    }
    double step = std::pow(10, std::floor(std::log10(seconds * 1e3 / 10)));
    for (const double times : {2.0, 2.5, 2.0}) {  // to 2, 5 and 10
        step *= seconds * 1e3 / step > 10 ? times : 1;
    }
    std::string out = fmt::format(
        "<text x=\"4\" y=\"{0:.1f}\">time, ms</text><path d=\"M{1} {2:.1f}H{3:.1f}\" "
        "stroke=\"black\"/>\n",
        y + 17, kLeft, y, kLeft + seconds * scale);
    for (int i = 0; i * step <= seconds * 1e3 * (1 + 1e-9); ++i) {
        const double x = kLeft + i * step * 1e-3 * scale;
        out += fmt::format(
            "<path d=\"M{0:.1f} {1:.1f}v5\" stroke=\"black\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
            "text-anchor=\"middle\">{3:g}</text>\n",
            x, y, y + 17, i * step);
    }
    return out;
}

}  // namespace

std::string svg_timeline(const std::vector<Timeline>& timelines) {
    constexpr double kRow = 22;
    double height = 58;  // legend and axis
    double longest = 0;
    for (const Timeline& timeline : timelines) {
        height += 24 + kRow * static_cast<double>(timeline.links.size() + 1) + 12;
        longest = std::max(longest, timeline.length);
    }
    const double scale = longest > 0 ? (kWidth - kLeft - 10) / longest : 0;
    static const char* const kColours[] = {"#4c78a8", "#f58518", "#54a24b", "#b279a2",
                                           "#e45756", "#72b7b2", "#9d755d", "#eeca3b"};
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{:.0f}\" "
        "viewBox=\"0 0 {} {:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect "
        "width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n",
        kWidth, height + 10, kWidth, height + 10);
    out += svg_legend(8);
    double y = 30;
    for (const Timeline& timeline : timelines) {
        y += 14;
        out += fmt::format(
            "<text x=\"4\" y=\"{:.1f}\" font-weight=\"bold\">{} ({:.3f} ms{})</text>\n", y,
            xml_text(timeline.title), timeline.length * 1e3,
            timeline.iterations > 0 ? fmt::format(", {} iterations", timeline.iterations) : "");
        y += 10;
        for (std::size_t r = 0; r <= timeline.links.size(); ++r) {
            out += fmt::format("<text x=\"4\" y=\"{:.1f}\">{}</text>\n", y + kRow * double(r) + 14,
                               xml_text(r == 0 ? "compute" : timeline.links[r - 1]));
        }
        for (const Interval& bar : timeline.bars) {
            const bool transfer = bar.kind == Kind::Transfer;
            const double row = transfer ? bar.link + 1 : 0;
            const char* colour = transfer                    ? kColours[bar.bucket % 8]
                                 : bar.kind == Kind::Forward ? kForward
                                                             : kBackward;
            out += fmt::format(
                "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" "
                "fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"><title>{} "
                "{:.3f}-{:.3f} ms</title></rect>\n",
                kLeft + bar.start * scale, y + kRow * row,
                std::max(0.3, (bar.finish - bar.start) * scale), kRow - 3, colour,
                xml_text(label(bar)), bar.start * 1e3, bar.finish * 1e3);
        }
        y += kRow * static_cast<double>(timeline.links.size() + 1) + 12;
    }
    return out + svg_axis(y, longest, scale) + "</svg>\n";
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
