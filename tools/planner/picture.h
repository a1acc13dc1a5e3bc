// SPDX-License-Identifier: Apache-2.0
// What deft's drawings (SVG) have in common, in the design of its pages (tools/html_page.h): dark
// and light as the reader's screen is, colours that colour-blind readers tell apart. Widths are per
// cent, heights and letters pixels, so that a drawing is readable at 400 pixels and at 1400.
#pragma once

#include <string>
#include <string_view>

namespace deft::tools::picture {

// Places from left to right are per cent of the drawing. What is drawn stands between these.
inline constexpr double kFirst = 2;
inline constexpr double kLast = 98;

// `text` as the text of an XML element.
std::string xml_text(std::string_view text);

// The whole drawing of this height in pixels, with a title and a sentence for who cannot see it.
std::string drawing(double height, std::string_view title, std::string_view sentence,
                    const std::string& inside);

// Text that begins at kFirst. `kind`: "", "head" or "soft".
std::string text(double y, std::string_view words, std::string_view kind = "");

// A legend's line: a patch of a class, and what it means.
std::string patch(double y, std::string_view colour_class, std::string_view words);

// `count` colours for buckets: "b0" to "b5".
inline constexpr unsigned kColours = 6;

// An axis from 0 to `most` at `y`, with lines up to `top`: ticks at 1, 2 or 5 times a power of ten,
// ten at most. Narrow drawings have words at every other tick.
std::string axis(double y, double top, double most, std::string_view unit);

}  // namespace deft::tools::picture
