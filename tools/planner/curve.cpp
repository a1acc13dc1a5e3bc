// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/planner/timeline.h"

namespace deft::tools {
namespace {

using planner::BenefitPoint;

struct Line {
    const char* name;
    const char* colour;
    double BenefitPoint::*seconds;
};

constexpr Line kLines[] = {
    {"as it is", "#555555", &BenefitPoint::as_is},
    {"striped over all links", "#1f77b4", &BenefitPoint::striped},
    {"layer-wise", "#2ca02c", &BenefitPoint::layered},
    {"one iteration late", "#d62728", &BenefitPoint::late},
    {"merged and late", "#9467bd", &BenefitPoint::merged},
};

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kLeft = 60;
constexpr double kRight = 190;
constexpr double kTop = 40;
constexpr double kBottom = 50;

// From ratios and gains to places in the picture.
struct Axes {
    double most = 3.2;
    double x(double ratio) const {
        const double at = (std::log2(std::clamp(ratio, 1.0 / 16, 16.0)) + 4) / 8;
        return kLeft + at * (kWidth - kLeft - kRight);
    }
    double y(double gain) const {
        return kHeight - kBottom - (gain - 1) / (most - 1) * (kHeight - kTop - kBottom);
    }
};

std::string level(const Axes& axes, double gain, const char* what) {
    return fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#bbbbbb\" "
        "stroke-dasharray=\"4 3\"/>\n<text x=\"{3}\" y=\"{1:.1f}\">{4:.2f}x {5}</text>\n",
        kLeft, axes.y(gain), kWidth - kRight, kWidth - kRight + 6, gain, what);
}

}  // namespace

std::string benefit_table(const BenefitPicture& picture) {
    const BenefitPoint& here = picture.here;
    std::string text = fmt::format(
        "  you are here: compute is {:.2f} times the communication (ideal links: no start-ups)\n",
        here.ratio);
    const double ideal = here.as_is;
    const auto part = [&](const char* what, const char* who, double seconds) {
        text += fmt::format("  {:<34} {:>9.3f} ms {:>5.1f} %  {}\n", what, seconds * 1e3,
                            ideal > 0 ? 100 * seconds / ideal : 0, who);
    };
    part("iteration as it is", "", ideal);
    part("- striping over all links", "the plugin", here.as_is - here.striped);
    part("- layers wait for themselves", "needs the framework; no mode does it yet",
         here.striped - here.layered);
    part("- updates one iteration late", "mode deft", here.layered - here.late);
    part(fmt::format("- {:.0f} iterations per update", picture.max_merge).c_str(),
         "mode deft, fewer updates", here.late - here.merged);
    part("- still on the links", "nobody, with these links and caps", here.merged - here.compute);
    part("compute", "nobody", here.compute);
    text += fmt::format(
        "  bounds over no overlap: {:.2f}x for three resources, {:.2f}x for compute and one link; "
        "ordering over overlap: {:.2f}x\n",
        picture.bounds.three_resources, picture.bounds.order, picture.bounds.over_overlap);
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

std::string benefit_svg(const BenefitPicture& picture) {
    Axes axes;
    for (const BenefitPoint& point : picture.curve) {
        for (const Line& line : kLines) {
            axes.most = std::max(axes.most, point.no_overlap / (point.*line.seconds));
        }
    }
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n<text x=\"{}\" y=\"20\" font-size=\"13\">{}</text>\n",
        kWidth, kHeight, kLeft, xml_text(picture.title));
    svg += level(axes, 1, "no overlap");
    svg += level(axes, picture.bounds.over_overlap, "order over overlap");
    svg += level(axes, picture.bounds.order, "order alone");
    svg += level(axes, picture.bounds.three_resources, "three resources");
    for (int octave = -4; octave <= 4; octave += 2) {
        const double ratio = std::exp2(octave);
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n",
                           axes.x(ratio), kHeight - kBottom + 16, ratio);
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\">compute / communication</text>\n", kLeft,
                       kHeight - 12);
    double label = kTop + 14;
    for (const Line& line : kLines) {
        svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" points=\"",
                           line.colour);
        for (const BenefitPoint& point : picture.curve) {
            svg += fmt::format("{:.1f},{:.1f} ", axes.x(point.ratio),
                               axes.y(point.no_overlap / (point.*line.seconds)));
        }
        svg += fmt::format("\"/>\n<text x=\"{}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", kLeft + 8,
                           label, line.colour, line.name);
        label += 13;
    }
    const double here = axes.x(picture.here.ratio);
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"black\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">you are here</text>\n</svg>\n",
        here, kTop, kHeight - kBottom, kTop - 4);
    return svg;
}

}  // namespace deft::tools
