// SPDX-License-Identifier: Apache-2.0
// deft report: what the ranks recorded, of one rank or of many side by side.
#pragma once

#include <string>
#include <vector>

#include "tools/observe_file.h"

namespace deft::tools {

struct ReportOptions {
    std::vector<std::string> files;
    bool json = false;
    bool html = false;
    std::string trace;  // the file that a trace is written to, besides; empty: none
};

// Prints; kProblem if a file cannot be used, the files contradict each other, or deft was not
// really in the job's path.
int report(const ReportOptions& options);

// What several ranks say together. `notes` are worth knowing; `problems` make the command fail.
struct RunReport {
    std::vector<ObserveFile> ranks;  // sorted by rank
    std::vector<std::string> notes;
    std::vector<std::string> problems;
    bool one_run = true;  // false: no figure of several files together means anything
};

RunReport compare_ranks(std::vector<ObserveFile> files);
std::string human_report(const RunReport& run);
std::string json_report(const RunReport& run);
std::string html_report(const RunReport& run);  // one page that needs no other file

}  // namespace deft::tools
