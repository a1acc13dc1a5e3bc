// SPDX-License-Identifier: Apache-2.0
// `deft which-nccl`.
#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/doctor_command.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/nccl_search.h"
#include "tools/doctor/supervised.h"
#include "tools/foreign.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using namespace doctor;

std::string json_of(const std::vector<NcclCopy>& copies) {
    nlohmann::ordered_json document = nlohmann::ordered_json::array();
    for (const NcclCopy& copy : copies) {
        document.push_back({{"path", printable(copy.path)},
                            {"version", copy.version},
                            {"static", copy.is_static},
                            {"found_by", printable(copy.found_by)},
                            {"used", &copy == &copies.front()}});
    }
    return document.dump(2) + "\n";
}

std::string text_of(const std::vector<NcclCopy>& copies, const std::vector<std::string>& started) {
    std::string text;
    for (const NcclCopy& copy : copies) {
        text += fmt::format("{} NCCL {}{} ({}){}\n", printable(copy.path),
                            nccl_version_text(copy.version), copy.is_static ? ", static" : "",
                            printable(copy.found_by),
                            &copy == &copies.front() ? "" : ", also in reach");
    }
    for (const std::string& line : started) {
        text += "started: " + printable(line) + "\n";
    }
    return text;
}

Outcome look(const DoctorOptions& options) {
    looking_at("the command, and the scripts that it starts");
    const Job job = read_command(options.command, Environment(environ));
    for (const ProgramFacts& program : job.command.programs) {
        if (program.file.empty() && !program.operand) {  // a script decides nothing about NCCL
            Outcome outcome;
            outcome.status = kProblem;
            outcome.complaint = fmt::format(
                "which-nccl: {}: command not found; name an existing program, or put its folder "
                "on PATH",
                program.word);
            return outcome;
        }
    }
    std::vector<std::string> started;
    looking_at("NCCL, and the libraries that the program is linked to");
    const std::vector<NcclCopy> copies = find_nccl(job, started).copies;
    Outcome outcome;
    outcome.status = copies.empty() ? kProblem : kSuccess;
    outcome.text = options.json ? json_of(copies) : text_of(copies, started);
    if (copies.empty()) {
        outcome.complaint = fmt::format(
            "which-nccl: no NCCL found for {}; set LD_LIBRARY_PATH to the folder of "
            "libnccl.so.2",
            options.command.front());
    }
    return outcome;
}

}  // namespace

int which_nccl_command(const DoctorOptions& options) {
    if (options.command.empty()) {
        complain(
            "which-nccl: no command given; usage: deft which-nccl [--json] COMMAND "
            "[ARGUMENT...]");
        return kUsage;
    }
    return supervised("which-nccl", [&] { return look(options); });
}

}  // namespace deft::tools
