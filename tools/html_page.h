// SPDX-License-Identifier: Apache-2.0
// One page of HTML that needs nothing else: readable on a phone, dark and light, by colour-blind
// readers, on paper.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deft::tools::html {

// `text` for the inside of an element or a quoted attribute, without control characters.
std::string escaped(std::string_view text);

// The whole page around `body`, which is HTML.
std::string page(std::string_view title, const std::string& body);

// A heading, a sentence that says what is shown, and what is shown.
std::string section(std::string_view heading, std::string_view sentence,
                    const std::string& content);

// What a colour means; each is told apart in grey, too.
enum class Colour : unsigned char { Compute, Wait, Transfer, Bound, Plain };

// A part of a bar. Both in per cent of the bar's width.
struct Part {
    double left = 0, width = 0;
    Colour colour = Colour::Plain;
    std::string title;  // shown under the pointer
};

// A line: its name, a bar, and its value in words. `low` to `high` is drawn as a whisker, in per
// cent; none if `high` is 0.
struct Bar {
    std::string name, value;
    std::vector<Part> parts;
    double low = 0, high = 0;
};
std::string bars(const std::vector<Bar>& lines);
// Ticks below bars: 0 to `most` of the unit.
std::string axis(double most, std::string_view unit);

// Figures that matter, large: a name, a figure, a remark.
struct Card {
    std::string name, figure, remark;
};
std::string cards(const std::vector<Card>& list);

// The first row is the head; all cells are text. Numbers stand to the right.
std::string table(const std::vector<std::vector<std::string>>& rows);

std::string legend(const std::vector<std::pair<Colour, std::string>>& entries);

}  // namespace deft::tools::html
