// SPDX-License-Identifier: Apache-2.0
// What the readers of shell and Python scripts share: lines, and words that tell of the preload.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace deft::tools::doctor {

// "END" of `<<END`, `<<-END` and `<<'END'`, not of `<<< word` or `1 << 2`.
std::string text_handed_on(std::string_view line);

bool has(std::string_view text, std::string_view what);

// Calls `each` with every line, numbered from 1, trimmed; a backslash at its end joins the next.
using EachLine = std::function<void(int number, std::string_view line, bool indented)>;
void for_each_line(std::string_view text, const EachLine& each);

// The first line of a shell script in which a CR LF does harm: no comment but the "#!", nothing of
// a text that the script hands on (`<<END`) or of what is packed behind it.
struct CrLine {
    int number = 0;  // 0: none
    std::string_view text;
};
CrLine first_cr_line(std::string_view script);

bool names_ours(std::string_view value);

// Whether this value of LD_PRELOAD keeps what stood there, or names deft itself.
bool keeps_preload(std::string_view value);

// "LD_PRELOAD", or a beginning of it such as "^LD_" or 'LD_*'.
bool names_preload(std::string_view text);

// "SLURM_" or "'^OMPI": three capitals or more that are not a variable's own expansion.
bool names_others(std::string_view text);

// Whether a piece of a script that takes variables out of the environment takes LD_PRELOAD out.
enum class Removal { No, Perhaps, Yes };

// `text` computes the names: `env | cut -d= -f1`, `compgen -v LD_`, `for k in os.environ`.
Removal removal_by(std::string_view text);

// Whether `text` asks for all variables that there are.
bool lists_environment(std::string_view text);

}  // namespace deft::tools::doctor
