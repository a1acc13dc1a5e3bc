// SPDX-License-Identifier: Apache-2.0
// The scripts that a command names.
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tools/doctor/command_reader.h"
#include "tools/doctor/command_words.h"
#include "tools/doctor/script_lines.h"
#include "tools/elf_file.h"
#include "tools/environment_loss.h"

namespace deft::tools::doctor {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 20;  // of a script

// Nothing of a pipe (`bash <(...)`): who reads it takes it away from the job, and may wait for
// ever.
std::string read_text(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
        return {};
    }
    std::ifstream file(path, std::ios::binary);
    std::string text(kLargest, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    text.resize(std::min(text.find('\0'), text.size()));  // what is packed behind a script
    return text;
}

}  // namespace

// A script that a launcher starts by itself: `srun ./train.py`. Others hand it to Python.
void CommandReader::note_script(const std::string& launcher, const std::string& file) {
    const std::string_view name = base_name(launcher);
    if (name != "srun" && !name.starts_with("mpi") && name != "orterun" && name != "prun") {
        return;
    }
    ProgramFacts program = read_program(file, job_.environment);
    if (!program.missing_interpreter.empty()) {
        job_.command.programs.push_back(std::move(program));
    }
}

// A script that an interpreter is to read.
void CommandReader::scan_operand(const std::string& file, int depth) {
    if (file.empty() || file.find('$') != file.npos) {
        return;
    }
    if (::access(file.c_str(), F_OK) == 0) {
        scan(file, depth);
    } else if (depth == 0) {  // of a script that changes its folder nobody knows
        ProgramFacts missing;
        missing.word = file;
        missing.operand = true;
        job_.command.programs.push_back(missing);
    }
}

void CommandReader::scan(const std::string& file, int depth) {
    if (depth >= kDeepest || !scanned_.insert(file).second) {
        return;
    }
    const std::string text = read_text(file);
    const Words first = shebang(text);
    const auto interpreter = std::find_if(first.begin(), first.end(), [](const auto& word) {
        return is_python(base_name(word)) || is_shell(base_name(word));
    });
    const bool known = interpreter != first.end();
    if (known ? is_python(base_name(*interpreter)) : file.ends_with(".py")) {
        job_.command.python = true;
        if (known) {
            const Words words(interpreter, first.end());
            const PythonCall call = python_call(words);
            job_.command.python_ignores =
                call.ignores.empty() ? job_.command.python_ignores : call.ignores;
            job_.python =
                job_.python.empty()
                    ? find_in_path(*interpreter, job_.environment.get("PATH").value_or(""))
                    : job_.python;
        }
        ScriptText script = read_python_script(file, text);
        take_lines(script, file, true);
    } else if (known || first.empty()) {  // others are of a language that nobody here reads
        scan_shell(file, text, first, depth);
    }
}

void CommandReader::scan_shell(const std::string& file, const std::string& text, const Words& first,
                               int depth) {
    if (const CrLine line = first_cr_line(text); line.number > 0) {
        job_.command.line_ends.push_back({file, line.number, std::string(line.text)});
    }
    const std::string loss = environment_loss(first);
    if (!loss.empty() && job_.command.loss.empty()) {
        job_.command.loss = loss;
        job_.command.loss_from = file + ":1";
    }
    ScriptText script = read_shell_script(file, text);
    take_lines(script, file, false);
    run_commands(script, file, depth);
}

void CommandReader::take_lines(ScriptText& script, const std::string& file, bool python) {
    const auto append = [](std::vector<ScriptLine>& to, std::vector<ScriptLine>& from) {
        to.insert(to.end(), from.begin(), from.end());
    };
    append(job_.command.preload_resets, script.preload_resets);
    append(job_.command.preload_doubts, script.preload_doubts);
    append(job_.command.other_backends, script.other_backends);
    if (!script.python_path_resets.empty()) {
        job_.command.python_path_reset = script.python_path_resets.front();
    }
    job_.command.imports_torch = job_.command.imports_torch || script.imports_torch;
    append(job_.command.handles, script.handles);
    append(job_.command.deepbinds, script.deepbinds);
    for (const ScriptLimit& limit : script.limits) {
        job_.command.limits.push_back(limit);
    }
    for (const ScriptAssignment& each : script.assignments) {
        // Too late for the loader of a Python that runs already.
        const bool late = python && each.name.starts_with("LD_");
        const bool there = each.if_unset && (job_.environment.get(each.name.c_str()) ||
                                             unknown_.contains(each.name));
        if (each.unknown) {
            job_.environment.unset(each.name);
            job_.origins.erase(each.name);
            unknown_.insert(each.name);
        } else if (!late && !there) {
            unknown_.erase(each.name);
            set(each.name + "=" + each.value, fmt::format("{}:{}", file, each.line));
        }
    }
}

void CommandReader::run_commands(const ScriptText& script, const std::string& file, int depth) {
    const bool outer = captured_;
    for (const ScriptCommand& command : script.commands) {
        captured_ = outer || command.captured;
        process(command.words, fmt::format("{}:{}", file, command.line), depth + 1, command.last);
    }
    captured_ = outer;
}

}  // namespace deft::tools::doctor
