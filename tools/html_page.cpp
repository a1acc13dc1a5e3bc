// SPDX-License-Identifier: Apache-2.0
#include "tools/html_page.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "tools/text_output.h"

namespace deft::tools::html {
namespace {

// The colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which colour-blind readers
// tell apart. Bars have patterns besides, for grey printers.
constexpr const char kStyle[] = R"(
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#5a5a5a;--line:#d5d5d5;
--card:#f4f4f2;--compute:#0072b2;--wait:#e69f00;--transfer:#009e73;--bound:#d55e00;--plain:#767676}
@media (prefers-color-scheme:dark){:root{--ink:#ececec;--paper:#161616;--soft:#b0b0b0;
--line:#3c3c3c;--card:#222;--compute:#56b4e9;--plain:#9a9a9a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:.2rem 0 .4rem}h2{font-size:1.1rem;margin:2rem 0 .2rem}
p{margin:.3rem 0 .7rem;max-width:46rem}.soft{color:var(--soft)}
.verdict{font-size:1.15rem;max-width:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.6rem}
.card{background:var(--card);border-radius:.4rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.5rem;line-height:1.25;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:.85rem;display:block}
.line{display:grid;grid-template-columns:13rem 1fr 15rem;gap:.6rem;align-items:center;
margin:.25rem 0}
.line .value{text-align:right;font-variant-numeric:tabular-nums}
.bar{position:relative;height:1.4rem;background:var(--card);border-radius:.2rem}
.bar i{position:absolute;top:0;bottom:0;min-width:1px;border-right:1px solid var(--paper)}
.bar u{position:absolute;top:.3rem;bottom:.3rem;border:solid var(--ink);border-width:0 2px;
background:linear-gradient(var(--ink),var(--ink)) center/100% 2px no-repeat}
.compute{background:var(--compute)}
.wait{background:repeating-linear-gradient(45deg,var(--wait) 0 6px,transparent 6px 8px),var(--wait)}
.transfer{background:repeating-linear-gradient(90deg,var(--transfer) 0 5px,var(--card) 5px 6px)}
.bound{background:var(--bound)}.plain{background:var(--plain)}
.axis{position:relative;height:1.3rem;color:var(--soft);font-size:.8rem;white-space:nowrap;
margin:0 15.6rem 0 13.6rem}.axis span{position:absolute;transform:translateX(-50%)}
.axis .first{transform:none}.axis .last{transform:translateX(-100%)}
.legend span{display:inline-block;margin-right:1.2rem}
.legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.35rem;vertical-align:-.1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.92rem;overflow-wrap:normal}
th,td{padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;
white-space:nowrap}
li.problem{color:var(--bound);font-weight:600}ul{padding-left:1.2rem}
@media (max-width:40rem){.line{grid-template-columns:1fr auto;grid-template-areas:"n v" "b b";
gap:.15rem .6rem;margin:.6rem 0}.line .name{grid-area:n}.line .value{grid-area:v}
.line .bar{grid-area:b}.axis{margin:0}}
@media print{:root{--card:#fff}.bar{border:1px solid var(--line)}}
)";

const char* class_of(Colour colour) {
    switch (colour) {
        case Colour::Compute:
            return "compute";
        case Colour::Wait:
            return "wait";
        case Colour::Transfer:
            return "transfer";
        case Colour::Bound:
            return "bound";
        case Colour::Plain:
            return "plain";
    }
    return "";
}

double percent(double value) {
    return std::isfinite(value) ? std::clamp(value, 0.0, 100.0) : 0;
}

// The next of 1, 2, 5, 10, ... that is not below; 0: there is none.
double round_step(double least) {
    if (!(least > 0) || !std::isfinite(least)) {
        return 0;
    }
    const double power = std::pow(10, std::floor(std::log10(least)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor * power >= least) {
            return factor * power;
        }
    }
    return 10 * power;
}

bool numeric(const std::string& cell) {
    return !cell.empty() && (cell == "-" || (cell.front() >= '0' && cell.front() <= '9'));
}

}  // namespace

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : printable(text)) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::string page(std::string_view title, const std::string& body) {
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
        escaped(title), kStyle, body);
}

std::string section(std::string_view heading, std::string_view sentence,
                    const std::string& content) {
    return fmt::format("<section>\n<h2>{}</h2>\n<p>{}</p>\n{}</section>\n", escaped(heading),
                       escaped(sentence), content);
}

std::string bars(const std::vector<Bar>& lines) {
    std::string text = "<div class=\"bars\">\n";
    for (const Bar& line : lines) {
        text +=
            fmt::format("<div class=\"line\"><span class=\"name\">{}</span><span class=\"bar\">",
                        escaped(line.name));
        for (const Part& part : line.parts) {
            const double left = percent(part.left);
            text += fmt::format(
                "<i class=\"{}\" style=\"left:{:.2f}%;width:{:.2f}%\" title=\"{}\"></i>",
                class_of(part.colour), left, std::min(percent(part.width), 100 - left),
                escaped(part.title));
        }
        if (line.high > 0) {
            const double low = percent(line.low);
            text += fmt::format("<u style=\"left:{:.2f}%;width:{:.2f}%\"></u>", low,
                                std::max(percent(line.high) - low, 0.0));
        }
        text += fmt::format("</span><span class=\"value\">{}</span></div>\n", escaped(line.value));
    }
    return text + "</div>\n";
}

std::string axis(double most, std::string_view unit) {
    std::string text = "<div class=\"axis\">";
    const double step = round_step(most / 5);
    for (int i = 0; step > 0 && i * step <= most * 1.0001; ++i) {
        const bool last = (i + 1) * step > most * 1.0001;
        const double place = percent(i * step / most * 100);
        text += fmt::format("<span{} style=\"left:{:.2f}%\">{:.6g}{}</span>",
                            i == 0       ? " class=\"first\""
                            : place > 95 ? " class=\"last\""
                                         : "",
                            place, i * step, last ? " " + escaped(unit) : "");
    }
    return text + "</div>\n";
}

std::string cards(const std::vector<Card>& list) {
    std::string text = "<div class=\"cards\">\n";
    for (const Card& card : list) {
        text += fmt::format("<div class=\"card\"><span>{}</span><b>{}</b><span>{}</span></div>\n",
                            escaped(card.name), escaped(card.figure), escaped(card.remark));
    }
    return text + "</div>\n";
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
    if (rows.size() < 2) {
        return "";
    }
    // A column of numbers: all of its cells are, but for empty ones.
    std::vector<bool> right(rows.front().size(), true);
    for (auto row = rows.begin() + 1; row != rows.end(); ++row) {
        for (std::size_t i = 0; i < right.size() && i < row->size(); ++i) {
            right[i] = right[i] && ((*row)[i].empty() || numeric((*row)[i]));
        }
    }
    std::string text = "<div class=\"scroll\"><table>\n";
    for (const auto& row : rows) {
        const char* const tag = &row == &rows.front() ? "th" : "td";
        text += "<tr>";
        for (std::size_t i = 0; i < row.size(); ++i) {
            const bool number = i < right.size() && right[i];
            text += fmt::format("<{}{}>{}</{}>", tag, number ? " class=\"n\"" : "", escaped(row[i]),
                                tag);
        }
        text += "</tr>\n";
    }
    return text + "</table></div>\n";
}

std::string legend(const std::vector<std::pair<Colour, std::string>>& entries) {
    std::string text = "<p class=\"legend\">";
    for (const auto& [colour, words] : entries) {
        text +=
            fmt::format("<span><i class=\"{}\"></i>{}</span>", class_of(colour), escaped(words));
    }
    return text + "</p>\n";
}

}  // namespace deft::tools::html
