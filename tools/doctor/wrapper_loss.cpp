// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/wrapper_loss.h"

#include <fmt/format.h>
#include <algorithm>
#include <string_view>

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

bool mentions(const Words& words, std::string_view text) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word.find(text) != word.npos; });
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
    if (name == "sbatch" || name == "salloc") {
        return batch_loss(command, name);
    }
    if (name == "bwrap" && has(command, {"--clearenv"})) {
        return "bwrap --clearenv clears the environment, so its command runs without deft; put "
               "deft behind it: bwrap ... deft run -- COMMAND";
    }
    if (name == "deepspeed" && has(command, {"--hostfile", "-H"})) {
        return "deepspeed hands no LD_PRELOAD to other hosts, so ranks there run without deft; "
               "write LD_PRELOAD and NCCL_NET_PLUGIN into ~/.deepspeed_env";
    }
    if (name == "chroot") {
        return "chroot's command finds no library outside of its new root, so it runs without "
               "deft; install deft there, and put it behind: chroot ROOT deft run -- COMMAND";
    }
    return {};
}

}  // namespace deft::tools::doctor
