// SPDX-License-Identifier: Apache-2.0
// Questions to something foreign: a vendor's library, a program of the host. Each has a time limit,
// as a driver that hangs is a reason to ask the doctor.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace deft::tools {

// For what answers at once where it is well. A firewall of 100000 rules takes 2 s to list.
inline constexpr std::chrono::milliseconds kProbeLimit{5000};
// For a library whose constructors may be slow.
inline constexpr std::chrono::milliseconds kLoadLimit{10000};
// For NVML: without a persistence daemon the driver takes 1 to 2 s for each GPU to begin.
inline constexpr std::chrono::milliseconds kDriverLimit{30000};

// Runs `question` in a process of its own, and returns the text that it returns. Empty optional: no
// answer within the limit. That process and all of its group are killed then, as they are at the
// end. A question that crashes has answered nothing: "". It may use no lock of another thread's.
std::optional<std::string> answer_in_time(const std::function<std::string()>& question,
                                          std::chrono::milliseconds limit = kProbeLimit);

// The same for an answer that takes many steps: `limit` counts for each of them. `step` says then
// which one did not end. The steps are those that the question calls by looking_at().
std::optional<std::string> answer_in_steps(const std::function<std::string()>& question,
                                           std::chrono::milliseconds limit, std::string& step);

// The next step of answer_in_steps(); nothing elsewhere.
void looking_at(const std::string& what);

// What the program writes to its standard output, up to 4 MiB. `words` begin with its path. "" also
// where it fails.
std::optional<std::string> output_in_time(const std::vector<std::string>& words,
                                          std::chrono::milliseconds limit = kProbeLimit);

}  // namespace deft::tools
