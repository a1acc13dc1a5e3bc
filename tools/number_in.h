// SPDX-License-Identifier: Apache-2.0
// Options that are numbers.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>
#include <type_traits>

namespace deft::tools {

// In words of its own: CLI::Range says of "two" that it is not in range, and lets a NaN through.
template <class Number>
CLI::Validator number_in(Number low, Number high) {
    // CLI11 converts the text as it stands, blanks included.
    const auto problem = [=](const std::string& text) {
        const char* const end = text.data() + text.size();
        Number value{};
        const auto read = std::from_chars(text.data(), end, value);
        const bool number = read.ec == std::errc() && read.ptr == end;
        return number && value >= low && value <= high
                   ? std::string()
                   : fmt::format("'{}' is not a {} from {} to {}", text,
                                 std::is_integral_v<Number> ? "whole number" : "number", low, high);
    };
    return {problem, ""};
}

}  // namespace deft::tools
