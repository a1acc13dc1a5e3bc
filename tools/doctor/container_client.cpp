// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/container_client.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <utility>

#include "tools/doctor/command_words.h"
#include "tools/doctor/rendezvous.h"

namespace deft::tools::doctor {
namespace {

using Words = std::vector<std::string>;

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// What `docker run` is told.
struct ContainerRun {
    std::vector<std::pair<std::string, std::string>> options;  // "--network", "host"
    Words job;                                                 // behind the image
    bool unknown = false;  // a variable among the options may be any of them

    const std::string* value(std::initializer_list<std::string_view> names) const {
        const auto found = std::find_if(options.rbegin(), options.rend(), [&](const auto& option) {
            return one_of(option.first, names);
        });
        return found == options.rend() ? nullptr : &found->second;
    }
};

// All other options of `docker run` and `podman run` have a value.
bool is_flag(std::string_view option) {
    return one_of(option, {"--detach",
                           "--disable-content-trust",
                           "--env-host",
                           "--help",
                           "--http-proxy",
                           "--init",
                           "--interactive",
                           "--no-healthcheck",
                           "--no-hostname",
                           "--no-hosts",
                           "--oom-kill-disable",
                           "--passwd",
                           "--privileged",
                           "--publish-all",
                           "--quiet",
                           "--read-only",
                           "--read-only-tmpfs",
                           "--replace",
                           "--rm",
                           "--rmi",
                           "--rootfs",
                           "--sig-proxy",
                           "--tls-verify",
                           "--tty",
                           "-P",
                           "-d",
                           "-i",
                           "-q",
                           "-t"});
}

// Reads the option in words[at], and its value; returns the place of its last word.
std::size_t read_option(const Words& words, std::size_t at, ContainerRun& run) {
    const std::string& word = words[at];
    const auto next = [&] { return at + 1 < words.size() ? words[++at] : std::string(); };
    if (word.starts_with("--")) {
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        run.options.emplace_back(name, equals != word.npos ? word.substr(equals + 1)
                                       : is_flag(name)     ? std::string()
                                                           : next());
        return at;
    }
    for (std::size_t i = 1; i < word.size(); ++i) {
        const std::string name{'-', word[i]};
        if (is_flag(name)) {
            continue;
        }
        const std::size_t value = word.find_first_not_of('=', i + 1);
        run.options.emplace_back(name, value != word.npos ? word.substr(value) : next());
        break;
    }
    return at;
}

// Nothing of a container that is there already: there nothing is chosen.
std::optional<ContainerRun> container_run(const Words& command) {
    const std::string_view name = command.empty() ? "" : base_name(command.front());
    // Its own `run`, before that of `deft run`.
    const auto verb = std::find_if(command.begin(), command.end(), [](const std::string& word) {
        return one_of(word, {"run", "exec", "compose", "start"});
    });
    if (!is_container_client(name) || name == "kubectl" || verb == command.end() ||
        *verb != "run") {
        return std::nullopt;
    }
    ContainerRun run;
    auto at = static_cast<std::size_t>(verb - command.begin()) + 1;
    for (; at < command.size() && command[at].size() > 1 && command[at][0] == '-'; ++at) {
        at = read_option(command, at, run);
    }
    // Up to the image.
    const auto image = command.begin() + static_cast<std::ptrdiff_t>(std::min(at, command.size()));
    run.unknown = image != command.end() && image->find('$') != std::string::npos;
    run.job.assign(image == command.end() ? image : image + 1, command.end());
    return run;
}

bool is_known(const std::string& value) {
    return !value.empty() && value.find('$') == std::string::npos;
}

// The largest number of "2" or "1:4"; 0: none.
int most_hosts(const std::string& value) {
    return std::max(std::atoi(value.c_str()), std::atoi(value.c_str() + value.find(':') + 1));
}

// Whether an option or a variable of a launcher's leads to another host.
bool leads_elsewhere(const std::string& name, const std::string& value) {
    if (one_of(name, {"--master_addr", "--rdzv_endpoint", "--main_process_ip", "MASTER_ADDR"})) {
        return is_known(value) && !is_loopback(value);
    }
    if (one_of(name, {"-H", "-host", "--host"})) {  // an address alone may be a server's own
        return value.find(',') != std::string::npos;
    }
    return one_of(name, {"-hostfile", "--hostfile", "-machinefile", "--machinefile"});
}

// Whether a job says that it has several hosts; a number of them says so before all else.
bool names_hosts(const ContainerRun& run) {
    Words words;
    for (const auto& [option, value] : run.options) {
        if (option == "-e" || option == "--env") {
            words.push_back(value);
        }
    }
    for (const std::string& word : run.job) {  // of `sh -c TEXT` too
        std::istringstream text(word);
        for (std::string part; text >> part;) {
            words.push_back(part);
        }
    }
    bool elsewhere = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const auto equals = words[i].find('=');
        std::string name = words[i].substr(0, equals);
        const std::string value = equals != std::string::npos ? words[i].substr(equals + 1)
                                  : i + 1 < words.size()      ? words[i + 1]
                                                              : std::string();
        if (name.starts_with("--")) {
            std::replace(name.begin() + 2, name.end(), '-', '_');
        }
        if (one_of(name, {"--nnodes", "--num_nodes", "--num_machines"}) && most_hosts(value) > 0) {
            return most_hosts(value) > 1;
        }
        elsewhere = elsewhere || leads_elsewhere(name, value);
    }
    return elsewhere;
}

}  // namespace

bool is_container_client(std::string_view name) {
    return one_of(name, {"docker", "podman", "nerdctl", "kubectl"});
}

bool enters_image(const Words& command) {
    const std::string_view name = command.empty() ? "" : base_name(command.front());
    return one_of(name, {"apptainer", "ch-run", "enroot", "singularity"}) ||
           std::any_of(command.begin(), command.end(),
                       [](const std::string& word) { return word.starts_with("--container-"); });
}

std::string container_network(const Words& command) {
    const std::optional<ContainerRun> run = container_run(command);
    if (!run || run->unknown || run->value({"--pod", "--pod-id-file"}) != nullptr) {
        return {};
    }
    // Whoever has made a network by hand may have joined the hosts by it.
    const std::string* const network = run->value({"--network", "--net"});
    if (network != nullptr && !one_of(*network, {"bridge", "none", "slirp4netns"})) {
        return {};
    }
    if (!names_hosts(*run)) {
        return {};
    }
    const std::string_view name = base_name(command.front());
    return fmt::format(
        "{} run without --network=host gives the job a network of its own, which other hosts do "
        "not reach and whose one link is virtual; {} run --network=host --ipc=host ...",
        name, name);
}

std::string gpus_kept_out(const Words& command, const Environment& environment) {
    const std::optional<ContainerRun> run = container_run(command);
    // --gpus sets the variable anew; devices of CDI come whatever it says.
    const std::string* const device = run ? run->value({"--device"}) : nullptr;
    if (!run || run->unknown || run->value({"--gpus"}) != nullptr ||
        (device != nullptr && device->find("nvidia") != std::string::npos)) {
        return {};
    }
    std::string kept;
    for (const auto& [option, text] : run->options) {
        const auto equals = text.find('=');
        if ((option != "-e" && option != "--env") ||
            text.substr(0, equals) != "NVIDIA_VISIBLE_DEVICES") {
            continue;
        }
        const std::string value = equals != text.npos
                                      ? text.substr(equals + 1)
                                      : environment.get("NVIDIA_VISIBLE_DEVICES").value_or("");
        kept = one_of(value, {"void", "none"}) ? value : std::string();
    }
    return kept;
}

}  // namespace deft::tools::doctor
