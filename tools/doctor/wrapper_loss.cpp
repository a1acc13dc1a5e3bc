// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/wrapper_loss.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <algorithm>
#include <optional>
#include <string_view>

#include "tools/environment_loss.h"

namespace deft::tools::doctor {
namespace {

using Words = std::vector<std::string>;

std::string_view base_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

bool has(const Words& words, std::initializer_list<std::string_view> names) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        const std::string_view name = std::string_view(word).substr(0, word.find('='));
        return std::find(names.begin(), names.end(), name) != names.end();
    });
}

// The words before the command of a wrapper; those in `with_value` have a word of their own.
Words options_of(const Words& words, std::initializer_list<std::string_view> with_value) {
    Words options;
    for (std::size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
        options.push_back(words[i]);
        i += std::find(with_value.begin(), with_value.end(), words[i]) != with_value.end() ? 1 : 0;
    }
    return options;
}

bool has_word(const Words& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

bool mentions(const Words& words, std::string_view text) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word.find(text) != word.npos; });
}

bool runs_deft(const Words& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i] == "run" && base_name(words[i - 1]) == "deft") {
            return true;
        }
    }
    return false;
}

// Hosts of -H that are this one.
bool is_here(const Words& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        const std::string_view name = std::string_view(words[i]).substr(0, words[i].find('='));
        if (name != "-H" && name != "-host" && name != "--host") {
            continue;
        }
        std::string_view list = words[i];
        list = name.size() < list.size() ? list.substr(name.size() + 1)
               : i + 1 < words.size()    ? std::string_view(words[i + 1])
                                         : std::string_view();
        const bool here = list == "localhost" || list.starts_with("localhost:") ||
                          list == "127.0.0.1" || list.starts_with("127.0.0.1:");
        return here && list.find(',') == list.npos;
    }
    return false;
}

// The value of an option, in its word or in the next; nothing if it is not there.
std::optional<std::string> value_of(const Words& words, std::string_view option) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        const std::string& word = words[i];
        if (word == option) {
            return i + 1 < words.size() ? words[i + 1] : std::string();
        }
        if (word.starts_with(option) && word[option.size()] == '=') {
            return word.substr(option.size() + 1);
        }
    }
    return std::nullopt;
}

// Hydra hands on everything, unless it is told what.
std::string hydra_loss(const Words& words) {
    for (const char* option : {"-genvnone", "-envnone", "-genvlist", "-envlist"}) {
        if (has(words, {option}) && !mentions(words, "LD_PRELOAD")) {
            return fmt::format(
                "mpiexec {} hands on no LD_PRELOAD, so ranks run without deft; put deft behind it: "
                "mpiexec ... deft run -- COMMAND (or name LD_PRELOAD and NCCL_NET_PLUGIN there)",
                option);
        }
    }
    return {};
}

// Open MPI hands on its own variables, and what -x names; to other hosts nothing else.
std::string mpirun_loss(const Words& words) {
    if (std::string loss = hydra_loss(words); !loss.empty()) {
        return loss;
    }
    const bool elsewhere =
        !is_here(words) && has(words, {"-H", "-host", "--host", "-hostfile", "--hostfile",
                                       "-machinefile", "--machinefile"});
    // Hydra's launchers hand on everything.
    const bool hydra = has(words, {"-genv", "-genvall", "-f", "-ppn", "-bootstrap"});
    if (!elsewhere || hydra || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "mpirun hands no LD_PRELOAD to other hosts, so ranks there run without deft; put deft "
           "behind it: mpirun ... deft run -- COMMAND (or -x LD_PRELOAD -x NCCL_NET_PLUGIN)";
}

std::string clean_container(std::string_view name, std::string_view how) {
    return fmt::format(
        "{} with a clean environment ({}) hands on no LD_PRELOAD, so its command runs without "
        "deft; put deft behind it: {} exec IMAGE deft run -- COMMAND",
        name, how, name);
}

// Apptainer's options stand before the image: what follows has some of the same letters.
std::string container_loss(const Words& words, std::string_view name) {
    const auto verb = std::find_if(words.begin(), words.end(), [](const std::string& word) {
        return word == "exec" || word == "run" || word == "shell";
    });
    const Words options =
        options_of({verb, words.end()},
                   {"-B",        "-H",         "-W",         "-o",        "-S",
                    "--bind",    "--env",      "--env-file", "--home",    "--workdir",
                    "--pwd",     "--cwd",      "--overlay",  "--scratch", "--mount",
                    "--network", "--hostname", "--security", "--app",     "--apply-cgroups"});
    for (const char* option : {"-e", "--cleanenv", "-C", "--containall"}) {
        if (has(options, {option})) {
            return clean_container(name, option);
        }
    }
    return {};
}

// Its options by the environment; what stands there in turn sets a variable in the container.
std::string container_variable_loss(std::string_view name, const Environment& environment) {
    for (const char* prefix : {"APPTAINER", "SINGULARITY"}) {
        const std::string sets = std::string(prefix) + "ENV_LD_PRELOAD";
        for (const char* option : {"_CLEANENV", "_CONTAINALL"}) {
            const std::string variable = prefix + std::string(option);
            const auto value = environment.get(variable.c_str());
            const bool no = !value || value->empty() || *value == "0" || *value == "false";
            if (!no && !environment.get(sets.c_str())) {
                return clean_container(name, variable + "=" + *value);
            }
        }
    }
    return {};
}

// Enroot's containers have the image's environment, and what the site or -e adds.
std::string enroot_loss(const Words& words) {
    if (!has(words, {"start", "exec"}) || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "enroot hands no environment into a container, so the command in it runs without deft; "
           "install deft in the image and put deft behind it: enroot start IMAGE deft run -- "
           "COMMAND";
}

std::string ray_loss(const Words& words) {
    if (!has(words, {"job"}) || !has(words, {"submit"}) || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "ray job submit hands no environment to the cluster, so the job's workers run without "
           "deft; name both variables in --runtime-env-json '{\"env_vars\": {\"LD_PRELOAD\": "
           "PATH, \"NCCL_NET_PLUGIN\": \"deft\"}}'";
}

std::string batch_loss(const Words& words, std::string_view name) {
    for (const std::string& word : words) {
        if (word.starts_with("--export=") && word.find("ALL") == word.npos &&
            word.find("LD_PRELOAD") == word.npos) {
            return fmt::format(
                "{} {} hands on no LD_PRELOAD, so the job runs without deft; put deft into the "
                "script: deft run -- COMMAND",
                name, word);
        }
    }
    return {};
}

// PBS and Grid Engine hand on what -V or -v says.
std::string qsub_loss(const Words& words) {
    if (has(words, {"-V"}) || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "qsub without -V hands on no environment, so the job runs without deft; put deft into "
           "the script: deft run -- COMMAND (or qsub -V)";
}

// LSF hands on everything, unless -env says what.
std::string bsub_loss(const Words& words) {
    const std::string list = value_of(words, "-env").value_or("all");
    if (list.find("all") != list.npos || list.find("LD_PRELOAD") != list.npos) {
        return {};
    }
    return fmt::format(
        "bsub -env {} hands on no LD_PRELOAD, so the job runs without deft; put deft into the "
        "script: deft run -- COMMAND (or bsub -env all)",
        list);
}

// Flux takes away what a pattern matches.
std::string flux_loss(const Words& words) {
    for (const std::string& word : words) {
        const std::string pattern = word.starts_with("--env=-") ? word.substr(7) : std::string();
        if (!pattern.empty() && ::fnmatch(pattern.c_str(), "LD_PRELOAD", 0) == 0 &&
            !mentions(words, "--env=LD_PRELOAD")) {
            return fmt::format(
                "flux {} hands on no LD_PRELOAD, so its command runs without deft; put deft behind "
                "it: flux run ... deft run -- COMMAND",
                word);
        }
    }
    return {};
}

std::string parallel_loss(const Words& words) {
    const Words options = options_of(words, {"-j", "-a", "-S", "-n", "--jobs"});
    const bool elsewhere = has(options, {"-S", "--sshlogin", "--slf", "--sshloginfile"});
    if (!elsewhere || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "parallel hands no environment to other hosts, so its command runs without deft; put "
           "deft behind it: parallel ... deft run -- COMMAND";
}

// Programs that start their command in a place of its own, with an environment of its own.
struct Clean {
    std::string_view name, option;  // without an option: always
    std::string_view form;
};
constexpr Clean kClean[] = {
    {"bwrap", "--clearenv", "bwrap ..."},
    {"nix-shell", "--pure", "nix-shell --pure ... --run 'deft run -- COMMAND'"},
    {"guix", "--pure", "guix shell --pure ... --"},
    {"tmux", "new-session", "tmux new-session"},
    {"tmux", "new", "tmux new"},
    {"tmux", "new-window", "tmux new-window"},
    {"machinectl", "shell", "machinectl shell NAME"},
    {"setpriv", "--reset-env", "setpriv --reset-env ..."},
    {"firejail", "", "firejail"},
};

std::string clean_loss(const Words& words, std::string_view name) {
    for (const Clean& each : kClean) {
        if (each.name != name || !(each.option.empty() || has_word(words, each.option))) {
            continue;
        }
        const bool whole = each.form.ends_with('\'');
        return fmt::format(
            "{}{}{} hands on no LD_PRELOAD, so its command runs without deft; put "
            "deft behind it: {}{}",
            name, each.option.empty() ? "" : " ", each.option, each.form,
            whole ? "" : " deft run -- COMMAND");
    }
    return {};
}

}  // namespace

std::string wrapper_loss(const Words& command) {
    if (command.empty()) {
        return {};
    }
    const std::string_view name = base_name(command.front());
    if (name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "prterun") {
        return mpirun_loss(command);
    }
    if (name == "singularity" || name == "apptainer") {
        return container_loss(command, name);
    }
    if (runs_deft(command)) {
        return {};
    }
    if (name == "enroot") {
        return enroot_loss(command);
    }
    if (name == "ray") {
        return ray_loss(command);
    }
    if (name == "sbatch" || name == "salloc") {
        return batch_loss(command, name);
    }
    if (name == "qsub") {
        return qsub_loss(command);
    }
    if (name == "parallel") {
        return parallel_loss(command);
    }
    if (name == "bsub") {
        return bsub_loss(command);
    }
    if (name == "flux") {
        return flux_loss(command);
    }
    if (name == "deepspeed" && has(command, {"--hostfile", "-H"})) {
        return "deepspeed hands no LD_PRELOAD to other hosts, so ranks there run without deft; "
               "write LD_PRELOAD and NCCL_NET_PLUGIN into ~/.deepspeed_env";
    }
    if (name == "chroot") {
        return "chroot's command finds no library outside of its new root, so it runs without "
               "deft; install deft there, and put it behind: chroot ROOT deft run -- COMMAND";
    }
    return clean_loss(command, name);
}

std::string variable_loss(const Words& command, const Environment& environment) {
    const std::string_view name = command.empty() ? "" : base_name(command.front());
    if (name == "apptainer" || name == "singularity") {
        return container_variable_loss(name, environment);
    }
    const char* const variable = name == "srun"     ? "SLURM_EXPORT_ENV"
                                 : name == "sbatch" ? "SBATCH_EXPORT"
                                                    : nullptr;
    const auto value = variable == nullptr ? std::nullopt : environment.get(variable);
    if (!value || has(command, {"--export"})) {
        return {};
    }
    Words words = command;
    const std::string option = "--export=" + *value;
    words.insert(words.begin() + 1, option);
    std::string loss = environment_loss(words);
    if (loss.empty()) {
        loss = wrapper_loss(words);
    }
    if (const auto at = loss.find(option); at != loss.npos) {
        loss.replace(at, option.size(), fmt::format("with {}={}", variable, *value));
    }
    return loss;
}

std::string container_doubt(const Words& command) {
    if (command.empty() || mentions(command, "deft")) {
        return {};
    }
    const std::string_view name = base_name(command.front());
    if (name == "apptainer" || name == "singularity") {
        return fmt::format(
            "{} keeps LD_PRELOAD, but the library is not in the container unless its image or a "
            "bind has it; bind the library's folder (-B), or install deft in the image and put "
            "deft behind it: {} exec IMAGE deft run -- COMMAND",
            name, name);
    }
    if (name == "srun" && has(command, {"--container-image", "--container-name"})) {
        return "srun keeps LD_PRELOAD, but the library is not in the container unless its image or "
               "a mount has it; mount the library's folder (--container-mounts), or install deft "
               "in "
               "the image and put deft behind it: srun ... deft run -- COMMAND";
    }
    const bool mounts = name == "nsenter" && has(options_of(command, {"-t", "-S", "-G"}),
                                                 {"-m", "-a", "--mount", "--all"});
    if (name == "ch-run" || mounts) {
        return fmt::format(
            "{} keeps LD_PRELOAD, but the library is not in the container unless its image or a "
            "mount has it; install deft there, and put deft behind it: {} ... deft run -- COMMAND",
            name, name);
    }
    if (mentions(command, "LD_PRELOAD") &&
        (name == "docker" || name == "podman" || name == "nerdctl" || name == "enroot")) {
        return fmt::format(
            "{} hands LD_PRELOAD on, but the library is not in the container unless its image or a "
            "mount has it; mount the library's folder, or install deft in the image",
            name);
    }
    return {};
}

}  // namespace deft::tools::doctor
