// SPDX-License-Identifier: Apache-2.0
#include "tools/report.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "tools/report_trace.h"
#include "tools/text_output.h"

namespace deft::tools {

namespace {

// False, and one line: it could not be written, or there is nothing to write.
bool write_trace(const std::string& path, const std::vector<std::string>& inputs,
                 const RunReport& run) {
    if (!run.one_run) {
        complain("report: --trace: " + run.problems.front());
        return false;
    }
    if (!has_trace(run)) {
        complain(
            "report: --trace: no rank has measured an iteration as a whole; the job's calls must "
            "repeat, and CUDA events must work (hooks.events_note)");
        return false;
    }
    for (const std::string& input : inputs) {
        std::error_code none;
        if (std::filesystem::equivalent(path, input, none)) {
            complain("report: --trace: " + path +
                     " is a record that is read here; name another file");
            return false;
        }
    }
    const std::string text = trace_text(run);
    std::FILE* const file = std::fopen(path.c_str(), "we");
    if (file == nullptr) {
        complain("report: --trace: " + path + ": " + std::strerror(errno));
        return false;
    }
    const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    const int problem = errno;
    if (std::fclose(file) != 0 || !whole) {
        complain("report: --trace: " + path + ": " + std::strerror(whole ? errno : problem));
        return false;
    }
    return true;
}

}  // namespace

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
    if (!options.trace.empty() && !write_trace(options.trace, options.files, run)) {
        return kProblem;
    }
    const int printed = print(options.json   ? json_report(run)
                              : options.html ? html_report(run)
                                             : human_report(run));
    return printed == kSuccess && (!problems.empty() || !run.problems.empty()) ? kProblem : printed;
}

}  // namespace deft::tools
