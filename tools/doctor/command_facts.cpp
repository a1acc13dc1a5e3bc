// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/command_facts.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>

#include "tools/doctor/command_reader.h"
#include "tools/doctor/command_words.h"
#include "tools/doctor/container_client.h"
#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_text.h"
#include "tools/doctor/wrapper_loss.h"
#include "tools/elf_file.h"
#include "tools/environment_loss.h"

namespace deft::tools::doctor {
namespace {

using Words = CommandReader::Words;

// Whether a script's command may be the job: its `mkdir` or `cd` says nothing.
bool worth_a_look(const std::string& word, bool likely) {
    const std::string_view name = base_name(word);
    const bool own =
        word.find('/') != word.npos && !word.starts_with("/bin/") && !word.starts_with("/usr/bin/");
    return own || likely || is_python(name) || is_launcher(name) || is_shell(name) ||
           name == "source" || name == ".";
}

// True if a launcher's operand is the program that it starts.
bool starts_there(const std::string& word, const ElfFile& elf) {
    const std::string_view name = base_name(word);
    const bool program = elf.kind == ElfFile::Kind::Elf && ::access(word.c_str(), X_OK) == 0;
    return program || is_python(name) || is_shell(name) || is_launcher(name) || name == "deft" ||
           name == "env" || !environment_loss({word, "x", "y"}).empty();
}

}  // namespace

// "NAME=VALUE", from `env` or a script.
void CommandReader::set(const std::string& assignment, const std::string& from) {
    const auto equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    const std::string value = assignment.substr(equals + 1);
    const bool ours =
        value.find("libnccl-net-deft") != value.npos || value.find("libdeft-preload") != value.npos;
    if (name == "LD_PRELOAD" && !ours) {
        return;  // it is a reset, or keeps what is there
    }
    job_.environment.set(name, value);
    job_.origins[name] = from.empty() ? "the command" : from;
}

CommandReader::Words CommandReader::behind_deft_run(const Words& words) {
    job_.command.under_deft_run = true;
    const std::pair<const char*, const char*> kVariables[] = {{"--mode", "DEFT_MODE"},
                                                              {"--out", "DEFT_OUT"},
                                                              {"--interfaces", "DEFT_INTERFACES"},
                                                              {"--log", "DEFT_LOG"}};
    std::size_t at = 2;
    for (; at < words.size() && words[at].starts_with("-"); ++at) {
        const std::string& word = words[at];
        if (word == "--") {
            ++at;
            break;
        }
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        if (name == "--require") {
            set("DEFT_REQUIRE=1", "");
        }
        job_.replace_vendor = job_.replace_vendor || name == "--plugin";
        const auto variable = std::find_if(std::begin(kVariables), std::end(kVariables),
                                           [&](const auto& each) { return name == each.first; });
        if (variable == std::end(kVariables) && name != "--library") {
            const bool known = name == "--require" || name == "--plugin" || name == "--dry-run" ||
                               name == "--help" || name == "-h";
            if (!known) {
                job_.command.wrong_option = name;
                return {};  // it may have a value of its own
            }
            continue;
        }
        const bool apart = equals == word.npos && at + 1 < words.size();
        const std::string value =
            apart ? words[++at] : word.substr(std::min(equals, word.size() - 1) + 1);
        if (name == "--library") {
            job_.library = value;
        } else {
            set(std::string(variable->second) + "=" + value, "");
        }
    }
    return {words.begin() + static_cast<std::ptrdiff_t>(std::min(at, words.size())), words.end()};
}

// True if the command behind this wrapper gets no environment: nothing more is to be read.
bool CommandReader::loses(const Words& words, const std::string& from, bool likely) {
    std::string loss = environment_loss(words);
    if (loss.empty()) {
        loss = wrapper_loss(words);
    }
    if (loss.empty()) {
        loss = variable_loss(words, job_.environment);
    }
    if (loss.empty()) {
        if (job_.command.container.empty()) {
            job_.command.container = container_doubt(words);
        }
        return false;
    }
    const Words behind(words.begin() + 1, words.end());
    const bool errand = !likely_job(behind) && std::any_of(behind.begin(), behind.end(), is_errand);
    if (job_.command.loss.empty() && (likely || (likely_job(words) && !errand))) {
        job_.command.loss = loss;
        job_.command.loss_from = from;
    }
    ProgramFacts wrapper = read_program(words.front(), job_.environment);
    if (wrapper.file.empty() && from.empty()) {
        job_.command.programs.push_back(std::move(wrapper));
    }
    return true;
}

// A client of containers: the command begins in another file system, often with a network of its
// own.
void CommandReader::note_container(const Words& words, const std::string& from, bool likely) {
    CommandFacts& command = job_.command;
    if (likely || likely_inside(words)) {
        command.container_client = true;
        if (command.container_network.empty()) {
            command.container_network = container_network(words);
            command.container_from = from;
        }
        if (command.hidden_gpus.empty()) {
            command.hidden_gpus = gpus_kept_out(words, job_.environment);
        }
    }
    ProgramFacts client = read_program(words.front(), job_.environment);
    if (client.file.empty() && from.empty()) {
        job_.command.programs.push_back(std::move(client));
    }
}

// A program that starts another in its own place: it may be missing, or have a setuid bit (su, sg),
// and then the loader takes LD_PRELOAD away before it starts anything. That matters only where it
// starts the job, and nothing behind it puts deft back.
void CommandReader::note_wrapper(const Words& words, const Words& inner, const std::string& from,
                                 bool likely) {
    ProgramFacts wrapper = read_program(words.front(), job_.environment);
    const bool raises =
        !wrapper.raised.empty() && (likely || likely_inside(inner)) && !brings_deft(inner);
    if (wrapper.file.empty() ? from.empty() : raises) {
        job_.command.programs.push_back(std::move(wrapper));
    }
}

// `env -u LD_PRELOAD`, `env LD_PRELOAD=...`.
void CommandReader::note_resets(const Words& words, const Words& assignments,
                                const std::string& from) {
    const std::string where = from.empty() ? "the command" : from;
    if (from.empty() && env_unsets(words, "LD_PRELOAD")) {
        job_.command.preload_resets.push_back({where, 0, "env -u LD_PRELOAD"});
    }
    for (const std::string& assignment : assignments) {
        const bool resets = from.empty() && assignment.starts_with("PYTHONPATH=") &&
                            assignment.find("companion") == assignment.npos;
        if (resets) {
            job_.command.python_path_reset = {where, 0, assignment};
        }
        if (assignment.starts_with("LD_PRELOAD=") &&
            assignment.find("LD_PRELOAD", 1) == assignment.npos &&
            assignment.find("libnccl-net-deft") == assignment.npos &&
            assignment.find("libdeft-preload") == assignment.npos) {
            job_.command.preload_resets.push_back({where, 0, assignment});
        }
    }
}

void CommandReader::process(Words words, const std::string& from, int depth, bool likely) {
    while (!words.empty() && depth < kDeepest) {
        // Behind whatever wrapper: there deft begins anew.
        const auto deft = std::adjacent_find(words.begin(), words.end(),
                                             [](const std::string& word, const std::string& next) {
                                                 return base_name(word) == "deft" && next == "run";
                                             });
        const bool elsewhere = is_container_client(base_name(words.front()));
        if (elsewhere) {
            note_container(words, from, likely);
        }
        const bool image = elsewhere || enters_image(words);
        if (deft != words.end()) {
            words.erase(words.begin(), deft);
            words = behind_deft_run(words);
            if (image) {  // its files are those of the image
                return;
            }
            continue;
        }
        if (loses(words, from, likely)) {
            return;
        }
        if (elsewhere) {
            return;
        }
        Words assignments;
        Words inner = command_behind(words, assignments);
        if (from.empty() || likely || inner.empty() || !is_errand(inner.front())) {
            note_resets(words, assignments, from);
        }
        for (const std::string& assignment : assignments) {
            set(assignment, from);
        }
        if (inner.empty()) {
            process_program(words, from, depth, likely);
            return;
        }
        note_wrapper(words, inner, from, likely);
        words = std::move(inner);
    }
}

void CommandReader::process_program(const Words& words, const std::string& from, int depth,
                                    bool likely) {
    const std::string& word = words.front();
    const std::string_view name = base_name(word);
    // Nobody knows what a word with a variable in it names.
    if (word.find('$') != word.npos || (!from.empty() && !worth_a_look(word, likely))) {
        return;
    }
    ProgramFacts program = read_program(word, job_.environment);
    const std::string file = program.file;
    const bool script = !file.empty() && !program.elf;
    if (brings_deft(words)) {  // `sg GROUP 'deft run -- COMMAND'`
        program.raised.clear();
    }
    // Behind `conda activate` or `module load` nobody knows the PATH.
    if (depth > 0 && program.missing_interpreter.find('/') == std::string::npos) {
        program.missing_interpreter.clear();
    }
    if (from.empty() || !file.empty()) {
        job_.command.programs.push_back(std::move(program));
    }
    const auto torchrun = std::find_if(words.begin(), words.end(), [](const std::string& each) {
        return base_name(each) == "torchrun" || each == "torch.distributed.run" ||
               each == "torch.distributed.launch";
    });
    job_.command.torchrun = job_.command.torchrun || torchrun != words.end();
    job_.command.srun =
        job_.command.srun || (name == "srun" && !captured_ && srun_of_hosts(words, likely));
    if (torchrun != words.end() && job_.command.rendezvous.empty()) {
        job_.command.rendezvous = lonely_rendezvous({torchrun, words.end()}, job_.environment);
        job_.command.rendezvous_from = from;
    }
    if (name == "vllm") {
        job_.command.handles.push_back({"the command", 0, word});
    }
    if (is_python(name)) {
        job_.python = job_.python.empty() ? file : job_.python;
        process_python(words, depth);
    } else if (is_shell(name) || name == "source" || name == ".") {
        process_shell(words, depth);
    } else if (script) {
        scan(file, depth);
    }
    if (is_launcher(name)) {
        process_operands(words, depth);
    }
}

void CommandReader::process_python(const Words& words, int depth) {
    job_.command.python = true;
    const PythonCall call = python_call(words);
    if (!call.ignores.empty()) {
        job_.command.python_ignores = call.ignores;
    }
    if (!call.code.empty()) {
        ScriptText code = read_python_script("python -c", call.code);
        take_lines(code, "python -c", true);
    }
    if (call.module == "vllm" || call.module.starts_with("vllm.")) {
        job_.command.handles.push_back({"the command", 0, "python -m " + call.module});
    }
    if (call.module == "torch" || call.module.starts_with("torch.")) {
        job_.command.imports_torch = true;
    }
    if (!call.module.empty()) {
        process_operands(words, depth);
    }
    scan_operand(call.script, depth);
}

void CommandReader::process_shell(const Words& words, int depth) {
    for (std::size_t at = 1; at < words.size(); ++at) {
        const std::string& word = words[at];
        if (!word.starts_with("-")) {
            scan_operand(word, depth);
            return;
        }
        if (!word.starts_with("--") && word.find('c') != word.npos) {
            if (at + 1 < words.size()) {
                ScriptText script = read_shell_script("sh -c", words[at + 1]);
                take_lines(script, "sh -c", false);
                run_commands(script, "sh -c", depth);
            }
            return;
        }
    }
}

// A launcher's operands: those that are files one can start.
void CommandReader::process_operands(const Words& words, int depth) {
    const bool image = enters_image(words);
    bool first = true;
    for (std::size_t at = 1; at < words.size(); ++at) {
        const std::string& word = words[at];
        const bool exports = word == "-x" && at + 1 < words.size();  // Open MPI's
        if (exports && words[at + 1].find('=') != word.npos) {
            set(words[at + 1], "");
        }
        if (word.starts_with("-") || word.find('=') != word.npos) {
            continue;
        }
        const ElfFile elf = read_elf(word);
        if (starts_there(word, elf)) {
            const std::size_t before = job_.command.programs.size();
            process({words.begin() + static_cast<std::ptrdiff_t>(at), words.end()}, "", depth + 1,
                    true);
            if (image) {  // it has its own
                job_.command.programs.resize(std::min(before, job_.command.programs.size()));
            }
            return;
        }
        // A program of PATH, and what follows are its operands.
        first = first && (word.find('/') != word.npos ||
                          find_in_path(word, job_.environment.get("PATH").value_or("")).empty());
        if (elf.kind == ElfFile::Kind::Script || word.ends_with(".py")) {
            if (first && depth == 0 && !image) {
                note_script(words.front(), word);
            }
            first = false;
            scan_operand(word, depth);
        }
    }
}

Job read_command(const std::vector<std::string>& words, const Environment& environment) {
    CommandReader reader(environment);
    reader.read(words);
    return reader.take();
}

}  // namespace deft::tools::doctor
