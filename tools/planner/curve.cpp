// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/planner/picture.h"

namespace deft::tools {
namespace {

using planner::BenefitPoint;

struct Line {
    const char* name;
    const char* look;  // in picture.cpp's style
    double BenefitPoint::*seconds;
};

constexpr Line kLines[] = {
    {"as it is", "c0", &BenefitPoint::as_is},
    {"striped over all links", "c1", &BenefitPoint::striped},
    {"layer-wise", "c2", &BenefitPoint::layered},
    {"or one iteration late", "c3", &BenefitPoint::late},
    {"or merged", "c4", &BenefitPoint::merged},
};

constexpr double kTop = 70;
constexpr double kBottom = 370;
constexpr double kOctaves = 8;  // from 1/16 to 16
constexpr char kSentence[] =
    "How much faster an iteration gets over no overlap at all, by the ratio of compute to "
    "communication: for the job as it is, and by the plans of each kind of help, start-ups "
    "included. The level lines are bounds.";

// From ratios and gains to places in the picture: per cent, and pixels.
struct Axes {
    double most = 3.2;
    double x(double ratio) const {
        const double at = (std::log2(std::clamp(ratio, 1.0 / 16, 16.0)) + 4) / kOctaves;
        return picture::kFirst + at * (picture::kLast - picture::kFirst);
    }
    double y(double gain) const { return kBottom - (gain - 1) / (most - 1) * (kBottom - kTop); }
};

std::string level(const Axes& axes, double gain) {
    return fmt::format(
        "<line class=\"level\" x1=\"{0}%\" x2=\"{1}%\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"soft\" x=\"{1}%\" y=\"{3:.1f}\" text-anchor=\"end\">{4:.2f}x</text>\n",
        picture::kFirst, picture::kLast, axes.y(gain), axes.y(gain) - 3, gain);
}

// Places in a drawing of their own, 0 to 100 each way, that is stretched over the plot.
std::string curve(const Axes& axes, const std::vector<BenefitPoint>& points, const Line& line) {
    std::string places;
    for (const BenefitPoint& point : points) {
        places += fmt::format(
            "{:.2f},{:.2f} ",
            (axes.x(point.ratio) - picture::kFirst) / (picture::kLast - picture::kFirst) * 100,
            (axes.y(point.no_overlap / (point.*line.seconds)) - kTop) / (kBottom - kTop) * 100);
    }
    return fmt::format("<polyline class=\"curve {}\" points=\"{}\"/>\n", line.look, places);
}

// What is inside the drawing of one job, and how high it is.
std::pair<std::string, double> drawn(const BenefitPicture& picture) {
    Axes axes;
    for (const BenefitPoint& point : picture.curve) {
        for (const Line& line : kLines) {
            axes.most = std::max(axes.most, point.no_overlap / (point.*line.seconds));
        }
    }
    std::string inside = picture::text(20, picture.title, "head");
    inside += picture::text(40, "speed-up over no overlap", "soft");
    const std::pair<double, const char*> levels[] = {
        {1, "no overlap"},
        {picture.bounds.over_overlap, "order over overlap"},
        {picture.bounds.order, "order alone, one link"},
        {picture.bounds.three_resources, "three resources, all bytes sent"}};
    for (int octave = -4; octave <= 4; octave += 2) {
        const double ratio = std::exp2(octave);
        inside += fmt::format(
            "<text class=\"soft\" x=\"{:.2f}%\" y=\"{}\" text-anchor=\"{}\">{:g}</text>\n",
            axes.x(ratio), kBottom + 18,
            octave == -4  ? "start"
            : octave == 4 ? "end"
                          : "middle",
            ratio);
    }
    inside += picture::text(kBottom + 36, "compute / communication", "soft");
    inside += fmt::format(
        "<svg x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\" viewBox=\"0 0 100 100\" "
        "preserveAspectRatio=\"none\" overflow=\"visible\">\n",
        picture::kFirst, kTop, picture::kLast - picture::kFirst, kBottom - kTop);
    for (const Line& line : kLines) {
        inside += curve(axes, picture.curve, line);
    }
    const double here = axes.x(picture.here.ratio);
    const std::string beyond = picture.here.ratio < 1.0 / 16 ? ", or rather further left"
                               : picture.here.ratio > 16     ? ", or rather further right"
                                                             : "";
    inside += fmt::format(
        "</svg>\n<line class=\"edge\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1}\" y2=\"{2}\"/>\n"
        "<text x=\"{0:.2f}%\" y=\"{3}\" text-anchor=\"{4}\">you are here{5}</text>\n",
        here, kTop, kBottom, kTop - 6,
        here < 20   ? "start"
        : here > 80 ? "end"
                    : "middle",
        beyond);
    for (const auto& [gain, name] : levels) {  // above the curves, or they would run through words
        inside += level(axes, gain);
    }
    double y = kBottom + 54;
    for (const Line& line : kLines) {
        inside += fmt::format(
            "<svg x=\"{}%\" y=\"{}\" overflow=\"visible\"><line class=\"curve {}\" x2=\"28\" "
            "y1=\"7\" y2=\"7\"/><text x=\"36\" y=\"12\">{}</text></svg>\n",
            picture::kFirst, y, line.look, line.name);
        y += 18;
    }
    y += 16;
    for (const auto& [gain, name] : levels) {
        inside += picture::text(y, fmt::format("{:.2f}x: {}", gain, name), "soft");
        y += 18;
    }
    return {std::move(inside), y};
}

}  // namespace

std::string benefit_table(const BenefitPicture& picture) {
    const BenefitPoint& here = picture.here;
    std::string text = fmt::format(
        "  you are here: compute is {:.2f} times the communication (of plans as predicted, each "
        "the "
        "fastest of its kind and of those above)\n",
        here.ratio);
    const double whole = here.as_is;
    const auto part = [&](const std::string& what, double seconds, const std::string& who) {
        text += fmt::format("  {:<34} {:>9.3f} ms {:>5.1f} %  {}\n", what, seconds * 1e3,
                            whole > 0 ? 100 * seconds / whole : 0, who);
    };
    // What a mode's plan gives, and what that is worth.
    const auto mode = [&](const char* who, double seconds, double before, double progress) {
        return seconds < before && whole > 0
                   ? fmt::format("{}: {:.2f}x in all{}", who, whole / seconds,
                                 progress < 1 - 1e-9 ? fmt::format(", {:.2f}x to the same loss",
                                                                   whole / seconds * progress)
                                                     : "")
                   : std::string(who);
    };
    part("iteration as it is", whole, "");
    part("- striping over all links", here.as_is - here.striped,
         mode("the plugin", here.striped, here.as_is, 1));
    part("- layers wait for themselves", here.striped - here.layered,
         mode("mode exact, DEFT_LAYERWISE=auto", here.layered, here.striped, 1));
    part("- updates one iteration late", here.layered - here.late,
         mode("mode deft", here.late, here.layered, here.late_progress));
    part(fmt::format("- {:.0f} iterations per update", picture.max_merge), here.late - here.merged,
         mode("mode deft, fewer updates", here.merged, here.late, here.merged_progress));
    part("- above the bound", std::max(0.0, here.merged - here.bound),
         "none of these plans, though no bound forbids it");
    part("- still on the links", std::min(here.merged, here.bound) - here.compute,
         "nobody, with these links and caps");
    part("compute", here.compute, "nobody");
    text += fmt::format(
        "  bounds over no overlap: {:.2f}x for three resources, {:.2f}x for compute and one link; "
        "ordering over overlap: {:.2f}x\n",
        picture.bounds.three_resources, picture.bounds.order, picture.bounds.over_overlap);
    if (picture.curve.empty()) {
        return text + "  there is no curve: it needs compute, and something to send\n";
    }
    text += fmt::format("  {:>8}", "ratio");
    for (const Line& line : kLines) {
        text += fmt::format(" {:>22}", line.name);
    }
    text += "  (speed-up over no overlap)\n";
    for (const BenefitPoint& point : picture.curve) {
        text += fmt::format("  {:>8.3f}", point.ratio);
        for (const Line& line : kLines) {
            text += fmt::format(" {:>22.3f}", point.no_overlap / (point.*line.seconds));
        }
        text += "\n";
    }
    return text;
}

std::string benefit_svg(const std::vector<BenefitPicture>& pictures) {
    std::string all;
    std::string title;
    double height = 0;
    for (const BenefitPicture& picture : pictures) {
        const auto [inside, own] = drawn(picture);
        all += fmt::format("<svg y=\"{:.0f}\" width=\"100%\" height=\"{:.0f}\">\n{}</svg>\n",
                           height, own, inside);
        title += (title.empty() ? "" : ", ") + picture.title;
        height += own;
    }
    return picture::drawing(height, title, kSentence, all);
}

}  // namespace deft::tools
