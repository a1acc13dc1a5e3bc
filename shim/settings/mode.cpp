// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/mode.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "shim/settings/text_settings.h"
#include "topology/interfaces.h"

namespace deft {
namespace {

struct Decision {
    ShimMode mode = ShimMode::Off;
    bool required = false;
    bool wrong = false;
};

std::atomic<const Decision*> g_decision{nullptr};
constinit const Decision kOff;

// Once: what each call asks stays small.
__attribute__((noinline)) const Decision* decide() {
    try {
        const Config& config = Config::process();
        static const Decision decision = [&config] {
            Decision made;
            made.required = config.flag(Key::Require);
            std::string line;
            std::vector<std::string> problems(config.problems().begin(), config.problems().end());
            const bool central = !config.central_problem().empty();
            const bool off = central || config.is(Key::Mode, "off");
            if (!off) {
                for (TextProblem& problem : executor::text_problems(config, false)) {
                    problems.push_back(std::move(problem.line));
                }
            }
            for (const std::string& problem : problems) {
                line += (line.empty() ? "" : "; ") + problem;
                if (problem.starts_with("DEFT_REQUIRE=")) {
                    made.required = true;
                }
            }
            made.wrong = !problems.empty() || central;
            if (!problems.empty()) {
                DEFT_WARN("wrong configuration, every call is forwarded as in mode off: %s",
                          line.c_str());
            } else {
                // The words of DEFT_MODE stand in the order of the enumeration.
                made.mode = static_cast<ShimMode>(config.integer(Key::Mode));
            }
            log::configuration_warnings();
            return made;
        }();
        return &decision;
    } catch (...) {
        return &kOff;
    }
}

const Decision& decision() noexcept {
    const Decision* known = g_decision.load(std::memory_order_acquire);
    if (known == nullptr) {
        known = decide();
        g_decision.store(known, std::memory_order_release);
    }
    return *known;
}

}  // namespace

// Of both halves: a central mistake leaves the job to NCCL's own network too.
std::vector<TextProblem> process_text_problems(const Config& config) {
    std::vector<TextProblem> problems = executor::text_problems(config, true);
    if (config.setting(Key::Interfaces).source == ValueSource::SystemFile) {
        problems.push_back({Key::Interfaces, interfaces_problem(config)});
    }
    return problems;
}

ShimMode shim_mode() noexcept {
    return decision().mode;
}

bool shim_required() noexcept {
    return decision().required;
}

const char* shim_refusal() noexcept {
    return decision().wrong ? "the configuration is wrong" : nullptr;
}

}  // namespace deft
