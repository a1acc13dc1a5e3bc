// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/command_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <sstream>

#include "tools/doctor/script_lines.h"
#include "tools/doctor/shell_line.h"

namespace deft::tools::doctor {
namespace {

using Words = std::vector<std::string>;

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string_view base_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

bool is_shell(std::string_view name) {
    return one_of(name, {"sh", "bash", "dash", "zsh", "ksh", "ash"});
}

bool is_python(std::string_view name) {
    return name.starts_with("python") || name.starts_with("pypy");
}

bool is_launcher(std::string_view name) {
    return one_of(name,
                  {"torchrun", "accelerate",    "deepspeed", "horovodrun", "mpirun",      "mpiexec",
                   "srun",     "mpiexec.hydra", "orterun",   "prterun",    "prun",        "aprun",
                   "jsrun",    "flux",          "nsys",      "ncu",        "gdb",         "strace",
                   "ltrace",   "perf",          "valgrind",  "apptainer",  "singularity", "conda",
                   "uv",       "poetry",        "sbatch",    "salloc",     "qsub",        "bsub"});
}

bool is_errand(std::string_view word) {
    constexpr std::string_view kNames[] = {
        "[",      "awk",      "cat",      "cd",      "chmod",  "chown",      "cp",     "curl",
        "cut",    "date",     "df",       "dirname", "du",     "echo",       "exit",   "false",
        "free",   "getent",   "git",      "grep",    "head",   "hostname",   "ibstat", "id",
        "ip",     "kill",     "ldconfig", "ldd",     "ln",     "ls",         "lscpu",  "mkdir",
        "ml",     "module",   "mount",    "mv",      "nproc",  "nvidia-smi", "ps",     "printf",
        "pwd",    "readlink", "realpath", "rm",      "rmdir",  "rsync",      "sacct",  "scp",
        "sed",    "scontrol", "seq",      "set",     "sinfo",  "sleep",      "sort",   "squeue",
        "stat",   "tail",     "tar",      "tee",     "test",   "touch",      "trap",   "true",
        "ulimit", "umask",    "uname",    "uniq",    "uptime", "wait",       "wc",     "wget",
        "which",  "whoami",   "zcat"};
    return std::find(std::begin(kNames), std::end(kNames), base_name(word)) != std::end(kNames);
}

bool srun_of_hosts(const Words& words, bool likely) {
    const auto program = [](const std::string& word) {
        return word.starts_with("./") || is_python(base_name(word)) || is_shell(base_name(word));
    };
    for (std::size_t at = 1; at < words.size(); ++at) {
        const std::string_view word = words[at];
        if (!word.starts_with("-")) {
            // Behind an option it may be that one's value, unless the option has it.
            const std::string_view before = words[at - 1];
            const bool has_value =
                before.find('=') != before.npos || (before.size() > 2 && before[1] != '-');
            if (!before.starts_with("-") || has_value || program(words[at])) {
                break;
            }
            continue;
        }
        const auto equals = std::min(word.find('='), word.size());
        const auto end = word.starts_with("--") ? equals : std::min<std::size_t>(2, word.size());
        const std::string_view name = word.substr(0, end);
        std::string_view value = word.substr(std::min(end + (end == equals ? 1 : 0), word.size()));
        if (end == word.size() && at + 1 < words.size()) {
            value = words[at + 1];
        }
        const bool one = value == "1" || value == "1-1";
        if ((one && one_of(name, {"-N", "--nodes", "-n", "--ntasks"})) ||
            (one_of(name, {"-w", "--nodelist"}) && value.find_first_of(",[") == value.npos)) {
            return false;
        }
    }
    const Words behind(words.begin() + 1, words.end());
    return likely || likely_inside(behind) || std::any_of(behind.begin(), behind.end(), program);
}

bool env_unsets(const Words& words, std::string_view variable) {
    if (words.empty() || base_name(words.front()) != "env") {
        return false;
    }
    for (std::size_t at = 1; at < words.size(); ++at) {
        const std::string_view word = words[at];
        const bool apart = (word == "-u" || word == "--unset") && at + 1 < words.size();
        if ((apart && words[at + 1] == variable) ||
            (word.starts_with("-u") && word.substr(2) == variable) ||
            (word.starts_with("--unset=") && word.substr(8) == variable)) {
            return true;
        }
    }
    return false;
}

bool likely_job(const Words& words) {
    return std::any_of(words.begin(), words.end(), [](const std::string& word) {
        const std::string_view name = base_name(word);
        return is_python(name) || is_launcher(name) || name.ends_with(".py") ||
               name.find("train") != name.npos;
    });
}

bool likely_inside(const Words& words) {
    return likely_job(words) || std::any_of(words.begin(), words.end(), [](const auto& word) {
               const std::vector<Words> commands = shell_commands(word);
               return std::any_of(commands.begin(), commands.end(), likely_job);
           });
}

bool brings_deft(const Words& words) {
    const std::string text = fmt::format("{}", fmt::join(words, " "));
    return has(text, "deft run") || names_ours(text);
}

Words shebang(const std::string& text) {
    Words words;
    if (text.starts_with("#!")) {
        std::istringstream line(text.substr(2, text.find('\n') - 2));
        for (std::string word; line >> word;) {
            if (word != "-S") {
                words.push_back(word);
            }
        }
    }
    return words;
}

PythonCall python_call(const Words& words) {
    PythonCall call;
    std::size_t at = 1;
    for (; at < words.size() && words[at].starts_with("-") && words[at].size() > 1; ++at) {
        const std::string& word = words[at];
        if (word.starts_with("--")) {
            continue;
        }
        const auto with_value = std::min(word.find_first_of("cmWX", 1), word.size());
        if (word.substr(0, with_value).find_first_of("IES") != word.npos) {
            call.ignores = word;
        }
        if (with_value == word.size()) {
            continue;
        }
        const bool apart = with_value + 1 == word.size();
        at += apart ? 1 : 0;
        const std::string value = !apart              ? word.substr(with_value + 1)
                                  : at < words.size() ? words[at]
                                                      : std::string();
        if (word[with_value] == 'c') {
            call.code = value;
            return call;
        }
        if (word[with_value] == 'm') {
            call.module = value;
            return call;
        }
    }
    call.script = at < words.size() ? words[at] : "";
    return call;
}

}  // namespace deft::tools::doctor
