// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/picture.h"

#include <fmt/format.h>

#include <cmath>

namespace deft::tools::picture {
namespace {

// The colours are those of Okabe and Ito; b0 to b5 are buckets', which follow each other.
constexpr const char kStyle[] = R"(
svg{--ink:#1b1b1b;--paper:#fff;--soft:#5a5a5a;--line:#d5d5d5;--card:#f4f4f2;--compute:#0072b2;
--forward:#8fbfdc;font:13px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#ececec;--paper:#161616;--soft:#b0b0b0;--line:#3c3c3c;
--card:#222;--compute:#56b4e9;--forward:#2f6685}}
.paper{fill:var(--paper)}.card{fill:var(--card)}text{fill:var(--ink)}
.head{font-weight:600;font-size:15px}.soft{fill:var(--soft)}
.grid{stroke:var(--line)}.edge{stroke:var(--ink)}
.bar rect{stroke:var(--paper);stroke-width:.7}
.forward{fill:var(--forward)}.backward{fill:var(--compute)}
.b0{fill:#009e73}.b1{fill:#e69f00}.b2{fill:#cc79a7}.b3{fill:#d55e00}.b4{fill:#b8aa2e}.b5{fill:#767676}
.curve{fill:none;stroke-width:2.2;vector-effect:non-scaling-stroke}
.c0{stroke:var(--soft)}.c1{stroke:var(--compute)}.c2{stroke:#009e73;stroke-dasharray:9 4}
.c3{stroke:#d55e00;stroke-dasharray:3 3}.c4{stroke:#cc79a7;stroke-dasharray:12 3 3 3}
.level{stroke:var(--line);stroke-dasharray:4 3}
.level+text{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
@media (max-width:600px){.more{display:none}}
)";

}  // namespace

std::string xml_text(std::string_view text) {
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

std::string drawing(double height, std::string_view title, std::string_view sentence,
                    const std::string& inside) {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100%\" height=\"{0:.0f}\" "
        "role=\"img\" "
        "aria-label=\"{1}\">\n<title>{1}</title>\n<desc>{2}</desc>\n<style>{3}</style>\n"
        "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{4}</svg>\n",
        height, xml_text(title), xml_text(sentence), kStyle, inside);
}

std::string text(double y, std::string_view words, std::string_view kind) {
    return fmt::format("<text x=\"{}%\" y=\"{:.1f}\"{}>{}</text>\n", kFirst, y,
                       kind.empty() ? "" : fmt::format(" class=\"{}\"", kind), xml_text(words));
}

std::string patch(double y, std::string_view colour_class, std::string_view words) {
    return fmt::format(
        "<svg x=\"{}%\" y=\"{:.1f}\" overflow=\"visible\"><rect class=\"{}\" width=\"14\" "
        "height=\"14\"/><text x=\"20\" y=\"12\">{}</text></svg>\n",
        kFirst, y, colour_class, xml_text(words));
}

std::string axis(double y, double top, double most, std::string_view unit) {
    if (!(most > 0) || !std::isfinite(most)) {
        return "";
    }
    double step = std::pow(10, std::floor(std::log10(most / 10)));
    for (const double times : {2.0, 2.5, 2.0}) {  // to 2, 5 and 10
        step *= most / step > 10 ? times : 1;
    }
    std::string out;
    for (int i = 0; i * step <= most * (1 + 1e-9); ++i) {
        const double x = kFirst + (kLast - kFirst) * i * step / most;
        out += fmt::format(
            "<line class=\"grid\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
            "<text class=\"soft{3}\" x=\"{0:.2f}%\" y=\"{4:.1f}\" "
            "text-anchor=\"{5}\">{6:g}</text>\n",
            x, top, y + 4, i % 2 == 1 ? " more" : "", y + 18,
            i == 0     ? "start"
            : x > 97.5 ? "end"
                       : "middle",
            i * step);
    }
    return out +
           fmt::format(
               "<line class=\"edge\" x1=\"{0}%\" x2=\"{1}%\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
               kFirst, kLast, y) +
           text(y + 36, unit, "soft");
}

}  // namespace deft::tools::picture
