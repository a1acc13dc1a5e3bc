// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/doctor_command.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "tools/doctor/host_facts.h"
#include "tools/doctor/job_facts.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/peer.h"
#include "tools/doctor/preload_facts.h"
#include "tools/doctor/process_facts.h"
#include "tools/doctor/supervised.h"
#include "tools/foreign.h"
#include "tools/number_in.h"
#include "tools/report.h"
#include "tools/text_output.h"
#include "topology/nccl_settings.h"

namespace deft::tools {
namespace {

using namespace doctor;

// CLI11 knows nothing of the command behind "--".
class DoctorHelp : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: deft doctor [OPTIONS] [-- COMMAND [ARGUMENT...] | --pid PID | FILE...]\n";
    }
};

class WhichHelp : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: deft which-nccl [OPTIONS] [--] COMMAND [ARGUMENT...]\n";
    }
};

RecordFacts read_records(const std::vector<std::string>& files) {
    RecordFacts facts;
    for (const std::string& file : files) {
        looking_at("the file " + file);
        for (ObserveFile& rank : read_observe_files(file, facts.unreadable)) {
            facts.ranks.push_back(std::move(rank));
        }
    }
    if (!facts.ranks.empty()) {
        RunReport run = compare_ranks(facts.ranks);
        facts.ranks = std::move(run.ranks);
        // Those that judge_records finds under names of their own are left out.
        for (std::string& problem : run.problems) {
            const bool named = problem.find(" in mode ") != problem.npos ||
                               problem.find("hooks") != problem.npos ||
                               problem.find("plugin") != problem.npos ||
                               problem.find("agree") != problem.npos;
            if (!named) {
                facts.contradictions.push_back(std::move(problem));
            }
        }
    }
    return facts;
}

void look_at_command(const DoctorOptions& options, Facts& facts) {
    looking_at("the command, and the scripts that it starts");
    Job job = read_command(options.command, Environment(environ));
    if (!options.library.empty()) {
        job.library = options.library;
    }
    look_at_job(std::move(job), facts);
}

// What the process has loaded, whatever the variables say.
PreloadFacts preload_of(const std::vector<ProcessFacts>& processes, int pid) {
    PreloadFacts preload;
    for (const ProcessFacts& process : processes) {
        if (process.pid == pid && !process.library.empty()) {
            PreloadEntry entry;
            entry.name = entry.path = process.library;
            entry.from = "its memory map";
            entry.library = true;
            preload.entries.push_back(std::move(entry));
        }
    }
    return preload;
}

void look_at_process(const DoctorOptions& options, Facts& facts) {
    facts.processes = read_processes(options.pid, facts.started);
    const int pid = speaker(facts.processes);
    if (pid == 0) {
        return;
    }
    Job job;
    job.environment = environment_of(pid);
    facts.plugin = read_plugin(job);
    facts.preload = preload_of(facts.processes, pid);
    // What is missing there judge_processes says.
    facts.command.emplace().under_deft_run = facts.preload->ours() == nullptr;
    const bool entered = enter_network(pid);
    look_at_host(job, facts);
    if (!entered) {
        facts.links.reset();
    }
}

bool contradicting(const DoctorOptions& options) {
    const int subjects = !options.command.empty() + !options.files.empty() + (options.pid != 0) +
                         options.listen + !options.peer.empty();
    return subjects > 1;
}

Outcome examine(const DoctorOptions& options) {
    Facts facts;
    if (!options.files.empty()) {
        facts.records = read_records(options.files);
    } else if (options.pid != 0) {
        look_at_process(options, facts);
    } else {
        look_at_command(options, facts);
    }
    if (!options.peer.empty()) {
        facts.peer = ask_peer(options.peer, *facts.links, facts.settings->config);
    }
    const Diagnoses diagnoses = judge(facts);
    return {options.json ? json_text(facts, diagnoses) : human_text(facts, diagnoses), "",
            exit_code(diagnoses)};
}

}  // namespace

void DoctorCommands::add_to(CLI::App& app) {
    doctor = app.add_subcommand("doctor", "Say what keeps deft from working, and the remedy")
                 ->allow_extras();
    doctor->formatter(std::make_shared<DoctorHelp>());
    doctor->add_option("files", options.files, "Records that the ranks of a job left (DEFT_OUT)");
    doctor->add_option("--pid", options.pid, "A running process, and those it has started")
        ->check(number_in(1, 1 << 22));
    doctor->add_flag("--listen", options.listen,
                     "Answer `deft doctor --peer` of other hosts, until interrupted");
    doctor->add_option("--peer", options.peer,
                       "HOST or HOST:PORT with `deft doctor --listen`: try every link to it");
    doctor->add_option("--port", options.port, "Port of --listen (29430)")
        ->check(number_in(1, 65535));
    doctor->add_option("--library", options.library, "Look at this libnccl-net-deft.so");
    doctor->add_flag("--json", options.json, "For programs");
    doctor->add_flag("--markdown", options.markdown, "The table of findings (docs/doctor.md)");
    doctor->footer(
        "The first line is the worst finding: verdict, name, what and where, remedy. Without a "
        "subject\n"
        "the host and the shell's environment are looked at. The command is read, not started. "
        "Exit\n"
        "status: 0 nothing worse than notes, 1 warnings, 2 wrong usage, 3 errors.");
    which_nccl =
        app.add_subcommand("which-nccl", "Say which NCCL a command will use")->allow_extras();
    which_nccl->formatter(std::make_shared<WhichHelp>());
    which_nccl->add_flag("--json", options.json, "For programs");
    which_nccl->footer("The command is read, not started. Exit status 1: no NCCL was found.");
}

int DoctorCommands::run(const CLI::App* command) const {
    return command == which_nccl ? which_nccl_command(options) : doctor_command(options);
}

int doctor_command(const DoctorOptions& options) {
    if (options.markdown) {
        return print(findings_table());
    }
    if (contradicting(options)) {
        complain("doctor: choose one of -- COMMAND, --pid, --peer, --listen and files");
        return kUsage;
    }
    if (options.listen) {
        Listening how;
        how.port = options.port == 0 ? kPeerPort : options.port;
        return answer_peers(how);
    }
    return supervised("doctor", [&] { return examine(options); });
}

}  // namespace deft::tools
