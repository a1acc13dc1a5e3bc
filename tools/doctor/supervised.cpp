// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/supervised.h"

#include <fmt/format.h>

#include "tools/foreign.h"
#include "tools/text_output.h"

namespace deft::tools::doctor {

int supervised(const char* command, const std::function<Outcome()>& look) {
    constexpr std::chrono::seconds kStep{60};
    constexpr int kUnanswered = 3;  // as errors
    std::string step;
    // A status, a complaint, a zero, the text.
    const auto answer = answer_in_steps(
        [&] {
            const Outcome outcome = look();
            return static_cast<char>(outcome.status) + outcome.complaint + '\0' + outcome.text;
        },
        kStep, step);
    if (!answer || answer->empty()) {
        complain(fmt::format("{}: {} while it looked at {}", command,
                             answer ? "it crashed" : "nothing moved for 60 s, so it gave up",
                             step));
        return kUnanswered;
    }
    const auto end = answer->find('\0', 1);
    if (const std::string complaint = answer->substr(1, end - 1); !complaint.empty()) {
        complain(complaint);
    }
    const int printed = print(std::string_view(*answer).substr(end + 1));
    return printed == kSuccess ? answer->front() : printed;
}

}  // namespace deft::tools::doctor
