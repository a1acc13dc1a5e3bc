// SPDX-License-Identifier: Apache-2.0
// What a shell's assignment gives a variable, as far as its line tells. Pure.
#pragma once

#include <string>
#include <string_view>

namespace deft::tools::doctor {

struct ShellValue {
    enum class Kind {
        Literal,   // `text`
        Default,   // `text`, where the variable has no value yet: ${NAME:-text}
        Computed,  // nobody knows
        Kept       // what it was, or that and more
    };
    Kind kind = Kind::Literal;
    std::string text;
};

// `name` and `value` of one word of `line`; the value is cut off where the line's word has a
// separator of commands in it, `$(` or a back tick. $(hostname -i) is kOwnAddress.
ShellValue shell_value(std::string_view line, const std::string& name, const std::string& value);

// Whether a command at `at` of this line is perhaps not carried out, or in a subshell only.
bool conditional(std::string_view line, std::size_t at);

}  // namespace deft::tools::doctor
