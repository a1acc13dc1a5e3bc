// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/rendezvous.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

namespace deft::tools::doctor {
namespace {

// torchrun's options by their names with '_', and its variables PET_NAME.
std::map<std::string, std::string> options_of(const std::vector<std::string>& command,
                                              const Environment& environment) {
    std::map<std::string, std::string> options;
    for (const char* name : {"nnodes", "master_addr", "rdzv_endpoint", "standalone"}) {
        std::string variable = "PET_" + std::string(name);
        std::transform(variable.begin(), variable.end(), variable.begin(),
                       [](unsigned char letter) { return std::toupper(letter); });
        if (const auto value = environment.get(variable.c_str())) {
            options[name] = *value;
        }
    }
    for (std::size_t i = 1; i < command.size(); ++i) {
        if (!command[i].starts_with("--")) {
            continue;
        }
        const auto equals = command[i].find('=');
        std::string name = command[i].substr(2, equals == std::string::npos ? equals : equals - 2);
        std::replace(name.begin(), name.end(), '-', '_');
        options[name] = equals != std::string::npos ? command[i].substr(equals + 1)
                        : i + 1 < command.size()    ? command[i + 1]
                                                    : std::string();
    }
    return options;
}

// The least number of "2" or "1:4"; 0: no number.
int least_hosts(const std::string& text) {
    return std::atoi(text.c_str());
}

}  // namespace

bool is_loopback(const std::string& address) {
    return address == "localhost" || address.starts_with("localhost:") ||
           address.starts_with("127.") || address == "::1" || address.starts_with("[::1]");
}

std::string lonely_rendezvous(const std::vector<std::string>& command,
                              const Environment& environment) {
    std::map<std::string, std::string> options = options_of(command, environment);
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
