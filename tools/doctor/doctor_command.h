// SPDX-License-Identifier: Apache-2.0
// `deft doctor` and `deft which-nccl`: their options and what they do.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts.h"
#include "tools/doctor/finding.h"

namespace CLI {
class App;
}

namespace deft::tools {

struct DoctorOptions {
    std::vector<std::string> command;  // behind "--"
    std::vector<std::string> files;    // records of ranks
    int pid = 0;
    std::string peer;  // HOST or HOST:PORT
    std::string library;
    bool listen = false;
    int port = 0;  // of --listen
    bool json = false;
    bool markdown = false;  // the table of findings
};

struct DoctorCommands {
    DoctorOptions options;
    CLI::App* doctor = nullptr;
    CLI::App* which_nccl = nullptr;

    void add_to(CLI::App& app);
    bool owns(const CLI::App* command) const { return command == doctor || command == which_nccl; }
    int run(const CLI::App* command) const;
};

// The exit code: 0 nothing worse than notes, 1 warnings, 3 errors.
int doctor_command(const DoctorOptions& options);
int which_nccl_command(const DoctorOptions& options);

namespace doctor {

std::string human_text(const Facts& facts, const Diagnoses& diagnoses);
std::string json_text(const Facts& facts, const Diagnoses& diagnoses);
// The rows of docs/doctor.md.
std::string findings_table();

}  // namespace doctor

}  // namespace deft::tools
