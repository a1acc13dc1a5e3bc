// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/wrapper_loss.h"

#include <fmt/format.h>
#include <algorithm>
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

// Open MPI hands on its own variables, and what -x names; to other hosts nothing else.
std::string mpirun_loss(const Words& words) {
    const bool elsewhere = has(words, {"-H", "-host", "--host", "-hostfile", "--hostfile",
                                       "-machinefile", "--machinefile"});
    // Hydra's launchers hand on everything.
    const bool hydra = has(words, {"-genv", "-genvall", "-f", "-ppn", "-bootstrap"});
    if (!elsewhere || hydra || mentions(words, "LD_PRELOAD")) {
        return {};
    }
    return "mpirun hands no LD_PRELOAD to other hosts, so ranks there run without deft; put deft "
           "behind it: mpirun ... deft run -- COMMAND (or -x LD_PRELOAD -x NCCL_NET_PLUGIN)";
}

std::string container_loss(const Words& words, std::string_view name) {
    if (has(words, {"-e", "--cleanenv", "-C", "--containall"})) {
        return fmt::format(
            "{} with a clean environment hands on no LD_PRELOAD, so its command runs without deft; "
            "put deft behind it: {} exec IMAGE deft run -- COMMAND",
            name, name);
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
    {"flux", "--env=-*", "flux run ..."},
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

std::string slurm_loss(const Words& command, const Environment& environment) {
    const std::string_view name = command.empty() ? "" : base_name(command.front());
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
