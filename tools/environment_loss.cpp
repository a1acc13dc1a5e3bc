// SPDX-License-Identifier: Apache-2.0
#include "tools/environment_loss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string_view>

namespace deft::tools {
namespace {

using Words = std::vector<std::string>;

std::string_view base_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// The options between a program and its first operand, as getopt(3) reads them.
struct Options {
    std::string letters;  // short ones, without their values
    Words longs;          // "--name" or "--name=value"
    std::size_t end = 1;  // place of the first operand
};

// Whether a long option, as it stands in a command, is one of these names with a blank between.
bool is_named(std::string_view option, std::string_view names) {
    const std::string_view name = option.substr(std::min<std::size_t>(2, option.size()));
    for (std::size_t at = 0; !name.empty() && at < names.size();) {
        const auto end = std::min(names.find(' ', at), names.size());
        if (names.substr(at, end - at) == name) {
            return true;
        }
        at = end + 1;
    }
    return false;
}

// `longs_with_value`: names of long options whose value may stand in a word of its own.
Options options_of(const Words& words, std::string_view letters_with_value,
                   std::string_view longs_with_value = {}) {
    Options options;
    std::size_t i = 1;
    for (; i < words.size() && words[i].size() > 1 && words[i][0] == '-'; ++i) {
        const std::string& word = words[i];
        if (word.starts_with("--")) {
            if (word == "--") {
                ++i;
                break;
            }
            options.longs.push_back(word);
            i += is_named(word, longs_with_value) ? 1 : 0;
            continue;
        }
        for (std::size_t at = 1; at < word.size(); ++at) {
            options.letters += word[at];
            if (letters_with_value.find(word[at]) != std::string_view::npos) {
                i += at + 1 == word.size() ? 1 : 0;
                break;
            }
        }
    }
    options.end = std::min(i, words.size());
    return options;
}

bool has_long(const Options& options, std::string_view beginning) {
    return std::any_of(options.longs.begin(), options.longs.end(),
                       [&](const std::string& word) { return word.starts_with(beginning); });
}

std::string behind(std::string_view form) {
    return fmt::format("put deft behind it: {} deft run -- COMMAND", form);
}

// sudo's own rule is not asked for LD_PRELOAD: the loader takes it out of a setuid program's
// environment before sudo runs (ld.so(8), sudo(8)).
std::string sudo_loss(const Words& words) {
    const Options options = options_of(words, "aCcDghpRrTtUu");
    const bool keeps =
        options.letters.find('E') != std::string::npos || has_long(options, "--preserve-env");
    return keeps
               ? "sudo -E keeps what sudoers lets through, but never LD_PRELOAD, so its command "
                 "runs without deft; " +
                     behind("sudo -E")
               : "sudo clears the environment, so its command runs without deft; " + behind("sudo");
}

// `env -S 'A=1 COMMAND'`: the text's words stand in its place.
Words env_words(const Words& words) {
    Words all;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        std::string_view text;
        if (i > 0 && (word == "-S" || word == "--split-string") && i + 1 < words.size()) {
            text = words[++i];
        } else if (i > 0 && word.starts_with("--split-string=")) {
            text = std::string_view(word).substr(word.find('=') + 1);
        } else if (i > 0 && word.starts_with("-S") && word.size() > 2) {
            text = std::string_view(word).substr(2);
        } else {
            all.push_back(word);
            if (i > 0 && !word.starts_with("-")) {  // the command, or what is set for it
                all.insert(all.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                           words.end());
                break;
            }
            continue;
        }
        std::istringstream parts{std::string(text)};
        for (std::string part; parts >> part;) {
            all.push_back(part);
        }
    }
    return all;
}

std::string env_loss(const Words& given) {
    const Words words = env_words(given);
    const Options options = options_of(words, "uCS");
    std::size_t at = options.end;
    const bool dash = at < words.size() && words[at] == "-";
    if (dash || options.letters.find('i') != std::string::npos || has_long(options, "--ignore-e")) {
        return "env -i clears the environment, so its command runs without deft; " +
               behind("env -i NAME=VALUE...");
    }
    while (at < words.size() && words[at].find('=') != std::string::npos) {
        ++at;
    }
    return environment_loss(Words(words.begin() + static_cast<std::ptrdiff_t>(at), words.end()));
}

std::string srun_loss(const Words& words) {
    // Those of srun's that have a value, as far as it may stand in a word of its own.
    const std::size_t end =
        options_of(words, "ABCDGJLMNSTcdeimnopqrtwx",
                   "account bcast begin chdir cluster-constraint clusters comment constraint "
                   "container container-image container-mounts container-name container-workdir "
                   "core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task "
                   "deadline delay-boot dependency distribution epilog error exclude export extra "
                   "gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres "
                   "hint input job-name jobid licenses mail-type mail-user mem mem-bind "
                   "mem-per-cpu mem-per-gpu mpi multi-prog network nodefile nodelist nodes ntasks "
                   "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode "
                   "output partition power prefer priority prolog propagate qos relative "
                   "reservation signal slurmd-debug sockets-per-node switches task-epilog "
                   "task-prolog thread-spec threads threads-per-core time time-min tmp tres-bind "
                   "tres-per-task wait wckey")
            .end;
    for (std::size_t i = 1; i < end; ++i) {
        const bool apart = words[i] == "--export" && i + 1 < end;
        if (!apart && !words[i].starts_with("--export=")) {
            continue;
        }
        const std::string list = apart ? words[i + 1] : words[i].substr(words[i].find('=') + 1);
        // A name without a value: that of the environment.
        if (list.find("ALL") == std::string::npos && list.find("LD_PRELOAD") == std::string::npos) {
            return fmt::format(
                "srun --export={} hands on no LD_PRELOAD, so its tasks run without deft; name ALL "
                "too, or {}",
                list, behind("srun"));
        }
    }
    return {};
}

std::string su_loss(const Words& command, std::string_view name) {
    const Options options = options_of(command, "CGTcgsuw");
    const bool login = options.letters.find('l') != std::string::npos ||
                       has_long(options, "--login") ||
                       (options.end < command.size() && command[options.end] == "-");
    return login ? fmt::format(
                       "{} clears the environment for a login, so its command runs without "
                       "deft; put deft into the command: {} - USER -c 'deft run -- COMMAND'",
                       name, name)
                 : std::string();
}

// Programs that run what stands behind their options and so many operands.
struct Prefix {
    std::string_view name;
    std::string_view letters_with_value;
    std::size_t operands;
    std::string_view longs_with_value = {};
};
constexpr Prefix kPrefixes[] = {
    {"cgexec", "g", 0},
    {"chrt", "DPT", 1, "sched-runtime sched-period sched-deadline"},
    {"flock", "Ew", 1, "wait timeout conflict-exit-code"},
    {"ionice", "cnPpu", 0, "class classdata"},
    {"nice", "n", 0, "adjustment"},
    {"nohup", "", 0},
    {"numactl", "CNPcimpw", 0,
     "cpubind cpunodebind physcpubind membind interleave preferred preferred-many "
     "weighted-interleave"},
    {"prlimit", "", 0},
    {"runuser", "Ggu", 0, "user group supp-group"},
    {"setpriv", "", 0,
     "reuid regid ruid euid rgid egid groups ambient-caps inh-caps bounding-set securebits "
     "pdeathsig selinux-label apparmor-profile"},
    {"setsid", "", 0},
    {"stdbuf", "eio", 0, "input output error"},
    {"taskset", "", 1},
    {"time", "fo", 0, "format output"},
    {"timeout", "ks", 1, "kill-after signal"},
    {"unshare", "GRSw", 0, "setuid setgid root wd map-user map-group propagation setgroups"},
    {"xargs", "EILPadns", 0,
     "arg-file delimiter max-args max-chars max-lines max-procs process-slot-var"},
};

const Prefix* find_prefix(std::string_view name) {
    const auto* const prefix =
        std::find_if(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](const Prefix& known) { return known.name == name; });
    return prefix == std::end(kPrefixes) ? nullptr : prefix;
}

Words words_behind(const Prefix& prefix, const Words& words) {
    const std::size_t at =
        options_of(words, prefix.letters_with_value, prefix.longs_with_value).end + prefix.operands;
    return {words.begin() + static_cast<std::ptrdiff_t>(std::min(at, words.size())), words.end()};
}

// flock knows -c only in the word behind the lock: all else there is a command with its options.
Words shell_behind_lock(const Prefix& flock, const Words& words) {
    const std::size_t at =
        options_of(words, flock.letters_with_value, flock.longs_with_value).end + 1;
    return at + 1 < words.size() && one_of(words[at], {"-c", "--command"})
               ? Words{"sh", "-c", words[at + 1]}
               : Words{};
}

// `su USER -c STRING`, and who else starts a shell with a text: options count behind operands, too,
// up to `--`.
Words shell_behind(const Words& words) {
    const std::string_view name = base_name(words.front());
    if (name == "flock") {
        return shell_behind_lock(*find_prefix(name), words);
    }
    if (!one_of(name, {"runuser", "script", "sg", "su"})) {
        return {};
    }
    const std::string_view with_value = name == "script" ? "BEIOTmo" : name == "sg" ? "" : "Ggsw";
    const bool user = name == "runuser";  // -u USER: behind it is a command without a shell
    for (std::size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
        const std::string& word = words[i];
        if (word == "--command" && i + 1 < words.size()) {
            return {"sh", "-c", words[i + 1]};
        }
        if (word.starts_with("--command=")) {
            return {"sh", "-c", word.substr(word.find('=') + 1)};
        }
        if (user && (word == "--user" || word.starts_with("--user="))) {
            return {};
        }
        const bool letters = word.size() > 1 && word[0] == '-' && word[1] != '-';
        for (std::size_t at = 1; letters && at < word.size(); ++at) {
            const bool last = at + 1 == word.size();
            if (user && word[at] == 'u') {
                return {};
            }
            if (word[at] == 'c') {
                return last && i + 1 == words.size()
                           ? Words{}
                           : Words{"sh", "-c", last ? words[i + 1] : word.substr(at + 1)};
            }
            if (with_value.find(word[at]) != std::string_view::npos) {
                i += last ? 1 : 0;
                break;
            }
        }
    }
    return {};
}

}  // namespace

std::string environment_loss(const Words& command) {
    if (command.empty()) {
        return {};
    }
    const std::string arguments =
        fmt::format("{}", fmt::join(command.begin() + 1, command.end(), " "));
    const std::string_view name = base_name(command.front());
    const bool container = one_of(name, {"docker", "podman", "nerdctl", "kubectl"});
    // `sudo --preserve-env=LD_PRELOAD` gives it no value.
    if (arguments.find("deft run ") != std::string::npos ||
        arguments.find(container ? "LD_PRELOAD" : "LD_PRELOAD=") != std::string::npos) {
        return {};
    }
    if (container) {
        return fmt::format(
            "{} hands no environment into a container, so the command in it runs without deft; "
            "install deft in the image and {}",
            name, behind(fmt::format("{} ...", name)));
    }
    if (one_of(name, {"ssh", "rsh", "pdsh", "clush", "pssh", "parallel-ssh"})) {
        return fmt::format(
            "{} hands no environment to other hosts, so its command runs without deft; {}", name,
            behind(fmt::format("{} HOST", name)));
    }
    if (name == "sudo") {
        return sudo_loss(command);
    }
    if (one_of(name, {"doas", "pkexec", "systemd-run"})) {
        return fmt::format("{} clears the environment, so its command runs without deft; {}", name,
                           behind(name));
    }
    if (name == "su" || name == "runuser") {
        std::string loss = su_loss(command, name);
        if (name == "su" || !loss.empty()) {
            return loss;
        }
    }
    if (name == "env") {
        return env_loss(command);
    }
    if (name == "srun") {
        return srun_loss(command);
    }
    const Prefix* const prefix = find_prefix(name);
    return prefix == nullptr ? std::string() : environment_loss(words_behind(*prefix, command));
}

Words command_behind(const Words& command, Words& assignments) {
    if (command.empty()) {
        return {};
    }
    const std::string_view name = base_name(command.front());
    if (Words shell = shell_behind(command); !shell.empty()) {
        return shell;
    }
    if (const Prefix* const prefix = find_prefix(name)) {
        return words_behind(*prefix, command);
    }
    if (name != "env") {
        return {};
    }
    const Words words = env_words(command);
    std::size_t at = options_of(words, "uCS").end;
    if (at < words.size() && words[at] == "-") {
        ++at;
    }
    for (; at < words.size() && words[at].find('=') != std::string::npos; ++at) {
        assignments.push_back(words[at]);
    }
    return {words.begin() + static_cast<std::ptrdiff_t>(at), words.end()};
}

}  // namespace deft::tools
