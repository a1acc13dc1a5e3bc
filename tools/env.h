// SPDX-License-Identifier: Apache-2.0
// deft env: the configuration table with the value each variable has here, and why.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"

namespace deft::tools {

struct EnvOptions {
    enum class Format { Human, Json, Markdown, Man, Conf };
    Format format = Format::Human;
    // For which the settings are shown: sections of files may name it. Empty: for `deft` itself.
    std::vector<std::string> command;
};

// Prints; kProblem if a value is wrong.
int env(const EnvOptions& options);

// The pieces, for tests: the settings as people read them and as programs do; the reference page
// and the manual page, and a deft.conf in which all is a comment, which depend on the table alone.
std::string human_settings(const Config& config);
std::string json_settings(const Config& config);
std::string markdown_reference();
std::string man_page();
std::string sample_conf();

}  // namespace deft::tools
