// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/rendezvous.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

namespace deft::tools::doctor {
namespace {

using Options = std::map<std::string, std::string>;

bool is_flag(const std::string& name) {
    return name == "standalone" || name == "no_python" || name == "module" || name == "run_path" ||
           name == "use_env" || name == "virtual_local_rank" || name == "help";
}

// torchrun's options by their names with '_', and its variables PET_NAME. Nothing where a shell
// puts in more words or a value, or where no script stands behind the options: who knows what the
// rest says.
std::optional<Options> options_of(const std::vector<std::string>& command,
                                  const Environment& environment) {
    Options options;
    for (const char* name : {"nnodes", "master_addr", "rdzv_endpoint", "standalone"}) {
        std::string variable = "PET_" + std::string(name);
        std::transform(variable.begin(), variable.end(), variable.begin(),
                       [](unsigned char letter) { return std::toupper(letter); });
        if (const auto value = environment.get(variable.c_str())) {
            options[name] = *value;
        }
    }
    std::size_t i = 1;
    for (; i < command.size() && command[i].starts_with("-"); ++i) {
        const std::string& word = command[i];
        if (word == "--") {
            ++i;
            break;
        }
        if (!word.starts_with("--")) {
            i += word == "-r" || word == "-t" ? 1 : 0;  // --redirects and --tee
            continue;
        }
        const auto equals = word.find('=');
        std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
        std::replace(name.begin(), name.end(), '-', '_');
        const bool apart = equals == std::string::npos && !is_flag(name);
        i += apart ? 1 : 0;
        options[name] = !apart               ? word.substr(std::min(equals, word.size() - 1) + 1)
                        : i < command.size() ? command[i]
                                             : std::string();
    }
    if (i >= command.size()) {
        return std::nullopt;
    }
    const auto script = command.begin() + static_cast<std::ptrdiff_t>(i);
    const bool known = std::none_of(command.begin(), script + 1, [](const std::string& word) {
        return word.find('$') != std::string::npos;
    });
    return known ? std::optional(options) : std::nullopt;
}

// The least number of "2" or "1:4"; 0: no number.
int least_hosts(const std::string& text) {
    return std::atoi(text.c_str());
}

}  // namespace

bool is_meeting_place(std::string_view name) {
    return name == "MASTER_ADDR" || name == "NCCL_COMM_ID";
}

bool is_loopback(const std::string& address) {
    return address == "localhost" || address.starts_with("localhost:") ||
           address.starts_with("127.") || address == "::1" || address.starts_with("[::1]");
}

std::string own_name_at(std::string_view hosts, std::string_view name) {
    std::string found;
    std::istringstream lines{std::string(hosts)};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line.substr(0, line.find('#')));
        std::string address;
        words >> address;
        for (std::string each; words >> each;) {
            // With or without the domain, on either side.
            const std::string_view short_name = name.substr(0, name.find('.'));
            if (std::string_view(each).substr(0, each.find('.')) != short_name) {
                continue;
            }
            if (!is_loopback(address)) {
                return {};
            }
            found = found.empty() || found.find(':') != found.npos ? address : found;
        }
    }
    return found;
}

std::string lonely_rendezvous(const std::vector<std::string>& command,
                              const Environment& environment) {
    std::optional<Options> read = options_of(command, environment);
    if (!read) {
        return {};
    }
    Options& options = *read;
    if (least_hosts(options["nnodes"]) < 2 || options.contains("standalone")) {
        return {};
    }
    std::string address = options["rdzv_endpoint"];
    std::string_view option = "--rdzv-endpoint";
    if (address.empty()) {
        address = options.contains("master_addr") ? options["master_addr"] : "127.0.0.1";
        option = options.contains("master_addr") ? "--master-addr" : "without --rdzv-endpoint";
    }
    if (!is_loopback(address)) {
        return {};
    }
    return fmt::format(
        "torchrun --nnodes {} {} has the hosts meet at {}, where each of them finds itself; name "
        "the first host by an address that the others reach: --rdzv-endpoint HOST:29500",
        options["nnodes"], option, address);
}

}  // namespace deft::tools::doctor
