// SPDX-License-Identifier: Apache-2.0
#include "tools/report.h"

#include <stdexcept>
#include <utility>

#include "tools/text_output.h"

namespace deft::tools {

int report(const ReportOptions& options) {
    if (options.files.empty()) {
        complain(
            "report: no file given; usage: deft report FILE... (written under deft run --mode "
            "observe)");
        return kUsage;
    }
    if (options.json && options.html) {
        complain("report: choose one of --json and --html");
        return kUsage;
    }
    std::vector<ObserveFile> files;
    std::vector<std::string> problems;
    for (const std::string& path : options.files) {
        for (ObserveFile& file : read_observe_files(path, problems)) {
            files.push_back(std::move(file));
        }
    }
    for (const std::string& problem : problems) {
        complain(problem);
    }
    if (files.empty()) {
        return kProblem;
    }
    const RunReport run = compare_ranks(std::move(files));
    const int printed = print(options.json   ? json_report(run)
                              : options.html ? html_report(run)
                                             : human_report(run));
    return printed == kSuccess && (!problems.empty() || !run.problems.empty()) ? kProblem : printed;
}

}  // namespace deft::tools
