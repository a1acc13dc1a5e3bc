// SPDX-License-Identifier: Apache-2.0
// What is text in what comes from outside: names of files and jobs, command lines.
#pragma once

#include <cstddef>
#include <string_view>

namespace deft {

// Length of the well-formed UTF-8 sequence at the start of `text` (RFC 3629, table 3-7 of Unicode),
// 0 if there is none. U+0080..U+009F are left out: they are control characters as well.
inline std::size_t utf8_length(std::string_view text) {
    struct Form {
        unsigned char first, last;  // of the lead byte
        unsigned char low, high;    // of the byte behind it
        std::size_t length;
    };
    static constexpr Form kForms[] = {
        {0xC2, 0xC2, 0xA0, 0xBF, 2}, {0xC3, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const unsigned lead = byte(0);
    if (lead < 0x80) {
        return 1;
    }
    for (const Form& form : kForms) {
        if (lead < form.first || lead > form.last || byte(1) < form.low || byte(1) > form.high) {
            continue;
        }
        for (std::size_t i = 2; i < form.length; ++i) {
            if ((byte(i) & 0xC0u) != 0x80u) {
                return 0;
            }
        }
        return form.length;
    }
    return 0;
}

}  // namespace deft
