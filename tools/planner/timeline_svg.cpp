// SPDX-License-Identifier: Apache-2.0
// Timelines as a drawing, one below the other over one axis.
#include <fmt/format.h>

#include <algorithm>

#include "tools/planner/picture.h"
#include "tools/planner/timeline.h"

namespace deft::tools {

using planner::Interval;

namespace {

using Kind = Interval::Kind;

constexpr double kBar = 18;
constexpr double kRow = kBar + 22;  // its name stands above
constexpr double kHead = 34;
constexpr double kLegend = 62;
constexpr char kSentence[] =
    "What computes and what is transferred when, one row for compute and one for each link. All "
    "timelines have the same axis, from the beginning of a backward pass.";

std::string class_of(const Interval& bar) {
    switch (bar.kind) {
        case Kind::Forward:
            return "forward";
        case Kind::Backward:
            return "backward";
        case Kind::Wait:
        case Kind::Transfer:
            break;
    }
    return fmt::format("b{}", bar.bucket % picture::kColours);
}

// One timeline from `y` down; `longest` seconds are the width.
std::string one(const Timeline& timeline, double y, double longest) {
    const double scale = longest > 0 ? (picture::kLast - picture::kFirst) / longest : 0;
    std::string out = picture::text(
        y + 18,
        timeline.iterations > 0
            ? fmt::format("{}: {} iterations of {:.3f} ms", timeline.title, timeline.iterations,
                          timeline.length * 1e3 / timeline.iterations)
            : fmt::format("{}: {:.3f} ms", timeline.title, timeline.length * 1e3),
        "head");
    y += kHead;
    for (std::size_t r = 0; r <= timeline.links.size(); ++r) {
        const double top = y + kRow * static_cast<double>(r);
        out += picture::text(top + 11, r == 0 ? "compute" : timeline.links[r - 1], "soft");
        out += fmt::format(
            "<rect class=\"card\" x=\"{}%\" y=\"{:.1f}\" width=\"{:.3f}%\" height=\"{}\"/>\n",
            picture::kFirst, top + 16, timeline.length * scale, kBar);
    }
    out += "<g class=\"bar\">\n";
    for (const Interval& bar : timeline.bars) {
        const double row = bar.kind == Kind::Transfer ? bar.link + 1 : 0;
        out += fmt::format(
            "<rect class=\"{}\" x=\"{:.3f}%\" y=\"{:.1f}\" width=\"{:.3f}%\" "
            "height=\"{}\"><title>{} "
            "{:.3f}-{:.3f} ms</title></rect>\n",
            class_of(bar), picture::kFirst + bar.start * scale, y + kRow * row + 16,
            std::max(0.03, (bar.finish - bar.start) * scale), kBar, picture::xml_text(label(bar)),
            bar.start * 1e3, bar.finish * 1e3);
    }
    return out + "</g>\n";
}

}  // namespace

std::string svg_timeline(const std::vector<Timeline>& timelines) {
    double longest = 0;
    double y = kLegend;
    for (const Timeline& timeline : timelines) {
        longest = std::max(longest, timeline.length);
        y += kHead + kRow * static_cast<double>(timeline.links.size() + 1);
    }
    const double bottom = y + 8;
    // The grid lies behind the bars.
    std::string inside = picture::axis(bottom, kLegend, longest * 1e3, "time, ms");
    inside += picture::patch(6, "forward", "forward");
    inside += picture::patch(24, "backward", "backward");
    inside += picture::patch(42, "b0", "transfers: a colour for each bucket");
    y = kLegend;
    for (const Timeline& timeline : timelines) {
        inside += one(timeline, y, longest);
        y += kHead + kRow * static_cast<double>(timeline.links.size() + 1);
    }
    return picture::drawing(bottom + 46, "deft: timelines of plans", kSentence, inside);
}

}  // namespace deft::tools
