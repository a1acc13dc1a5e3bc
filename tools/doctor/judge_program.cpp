// SPDX-License-Identifier: Apache-2.0
// The command that is to be run: is it there, and does the preload get into it?
#include <fmt/format.h>

#include "tools/doctor/judge.h"
#include "tools/elf_dynamic.h"

namespace deft::tools::doctor {
namespace {

// Something of deft's will be preloaded that is the whole library, not the guest.
bool whole_library(const PreloadFacts& preload) {
    const PreloadEntry* const ours = preload.ours();
    return ours == nullptr || ours->library;
}

// False: nothing more can be said of this program.
bool judge_presence(const ProgramFacts& program, Diagnoses& found) {
    if (program.file.empty()) {
        found.push_back({Finding::CommandNotFound,
                         fmt::format("{}: {}", program.word,
                                     program.operand ? "no such file" : "command not found"),
                         program.operand ? "the working folder" : "PATH", ""});
        return false;
    }
    if (program.missing_interpreter.ends_with('\r')) {
        const auto name = program.missing_interpreter.size() - 1;
        found.push_back({Finding::InterpreterMissing,
                         fmt::format("{}: its first line ends in CR LF, so {} with a CR behind "
                                     "it is started",
                                     program.file, program.missing_interpreter.substr(0, name)),
                         "first line of the script", "sed -i 's/\\r$//' " + program.file});
        return false;
    }
    if (!program.missing_interpreter.empty()) {
        found.push_back(
            {Finding::InterpreterMissing,
             fmt::format("{}: its {} {} does not exist", program.file,
                         program.elf ? "loader" : "interpreter", program.missing_interpreter),
             program.elf ? "PT_INTERP" : "first line of the script", ""});
        return false;
    }
    if (!program.executable) {
        found.push_back({Finding::CommandNotExecutable,
                         fmt::format("{} cannot be executed", program.file),
                         "its mode and its first bytes", ""});
        return false;
    }
    return program.elf;
}

void judge_elf(const ProgramFacts& program, const PreloadFacts& preload, Diagnoses& found) {
    if (!program.this_machine) {
        found.push_back({Finding::ProgramOtherMachine,
                         fmt::format("{} is built for another architecture", program.file),
                         "ELF header", ""});
        return;
    }
    if (!program.dynamic) {
        found.push_back({Finding::ProgramStatic,
                         fmt::format("{} is statically linked, so nothing can be preloaded into it",
                                     program.file),
                         "ELF file without PT_INTERP", ""});
        return;
    }
    if (!program.raised.empty()) {
        found.push_back({Finding::ProgramRaised,
                         fmt::format("{} runs with raised privileges ({}), so the loader drops "
                                     "LD_PRELOAD",
                                     program.file, program.raised),
                         "mode and capabilities of the file", ""});
    }
    if (!program.sanitizer.empty()) {
        found.push_back({Finding::ProgramSanitized,
                         fmt::format("{} is linked to {}, which ends the program where another "
                                     "library is preloaded before it",
                                     program.file, program.sanitizer),
                         "its libraries, LD_PRELOAD and ASAN_OPTIONS", ""});
    }
    if (!whole_library(preload)) {
        return;
    }
    if (!program.c_library.empty() && program.c_library != "glibc") {
        found.push_back({Finding::ProgramOtherLibc,
                         fmt::format("{} is a program of {}, and deft's library is one of glibc: "
                                     "the loader would end it",
                                     program.file, program.c_library),
                         fmt::format("its loader is {}", program.loader), ""});
    } else if (!program.glibc.empty() && !preload.glibc_needed.empty() &&
               older_version(program.glibc, preload.glibc_needed)) {
        found.push_back({Finding::GlibcTooOld,
                         fmt::format("{} runs with glibc {}, and deft's library asks for {}",
                                     program.file, program.glibc, preload.glibc_needed),
                         fmt::format("its loader is {}", program.loader), ""});
    }
}

void report_lines(Finding finding, const std::vector<ScriptLine>& lines, const char* what,
                  Diagnoses& found) {
    for (const ScriptLine& line : lines) {
        const std::string where =
            line.line > 0 ? fmt::format("{}:{}", line.file, line.line) : line.file;
        const bool header = line.text.starts_with("#SBATCH");
        found.push_back({finding, fmt::format("{} {}", where, what), line.text,
                         header ? "write --export=ALL, or put deft behind it: srun deft run -- "
                                  "COMMAND"
                                : ""});
    }
}

// "what; remedy" of a wrapper, of the command or of a script's line; empty: nothing.
void report_line(Finding finding, const std::string& line, const std::string& from,
                 Diagnoses& found) {
    if (line.empty()) {
        return;
    }
    const auto split = line.find("; ");
    found.push_back({finding, (from.empty() ? "" : from + ": ") + line.substr(0, split),
                     "the words of the command",
                     split == std::string::npos ? "" : line.substr(split + 2)});
}

}  // namespace

void judge_program(const Facts& facts, Diagnoses& found) {
    if (!facts.command || facts.command->words.empty()) {
        return;
    }
    const CommandFacts& command = *facts.command;
    const PreloadFacts none;
    const PreloadFacts& preload = facts.preload ? *facts.preload : none;
    for (const ProgramFacts& program : command.programs) {
        if (judge_presence(program, found)) {
            judge_elf(program, preload, found);
        }
        if (program.nccl_by_handle) {
            found.push_back({Finding::NcclByHandle,
                             fmt::format("{} looks NCCL up by handle, so its calls go past the "
                                         "preload",
                                         program.file),
                             "it names ncclAllReduce and imports dlsym, but not ncclAllReduce",
                             ""});
        }
    }
    for (const ScriptLine& line : command.line_ends) {
        found.push_back({Finding::ScriptLineEnds,
                         fmt::format("{}:{} ends in CR LF, so the shell reads a CR at the end of "
                                     "values and words",
                                     line.file, line.line),
                         line.text, "sed -i 's/\\r$//' " + line.file});
    }
    report_line(Finding::ContainerNetwork, command.container_network, command.container_from,
                found);
    report_line(Finding::RendezvousLonely, command.rendezvous, command.rendezvous_from, found);
    if (!command.without_torch.empty()) {
        found.push_back({Finding::PackageMissing, command.without_torch + " has no package torch",
                         "its folders of packages, PYTHONPATH and the working folder", ""});
    }
    report_line(Finding::ContainerUnseen, command.container, "", found);
    report_line(Finding::PreloadLost, command.loss, command.loss_from, found);
    report_lines(Finding::PreloadReset, command.preload_resets, "takes deft out of LD_PRELOAD",
                 found);
    report_lines(Finding::PreloadDoubtful, command.preload_doubts,
                 "takes away variables whose names it computes: LD_PRELOAD may be one of them",
                 found);
    report_lines(Finding::BackendOther, command.other_backends,
                 "asks PyTorch for a back end without NCCL, so deft has no part in the job", found);
    report_lines(Finding::NcclByHandle, command.handles,
                 "opens NCCL by handle, so its calls go past the preload", found);
    report_lines(Finding::NcclDeepbind, command.deepbinds,
                 "opens a library with RTLD_DEEPBIND, so its NCCL calls go past the preload",
                 found);
}

}  // namespace deft::tools::doctor
