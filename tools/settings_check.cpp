// SPDX-License-Identifier: Apache-2.0
#include "tools/settings_check.h"

#include "shim/settings/text_settings.h"
#include "topology/interfaces.h"

namespace deft::tools {

std::vector<TextProblem> text_settings_problems(const Config& config) {
    std::vector<TextProblem> problems = executor::text_problems(config, true);
    // The plugin's own selection: what passes here is not refused when the job has begun.
    if (std::string line = interfaces_problem(config); !line.empty()) {
        problems.push_back({Key::Interfaces, std::move(line)});
    }
    return problems;
}

bool wants_companion(const Config& config) {
    const bool late = config.is(Key::Mode, "deft") || config.is(Key::Mode, "covap");
    const bool layers = config.is(Key::Mode, "exact") && config.is(Key::Layerwise, "auto");
    return (late || layers) && config.is(Key::Companion, "auto");
}

}  // namespace deft::tools

namespace deft {

// As in a job, whose preloaded half has the same: else a line of the operator's file that a job
// ignores would choose the links that the command shows.
std::vector<TextProblem> process_text_problems(const Config& config) {
    std::vector<TextProblem> problems = executor::text_problems(config, true);
    if (config.setting(Key::Interfaces).source == ValueSource::SystemFile) {
        problems.push_back({Key::Interfaces, interfaces_problem(config)});
    }
    return problems;
}

}  // namespace deft
