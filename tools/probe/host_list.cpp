// SPDX-License-Identifier: Apache-2.0
#include "tools/probe/host_list.h"

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tools/elf_file.h"
#include "tools/foreign.h"

namespace deft::tools::probe {
namespace {

void add(std::string name, std::vector<std::string>& hosts) {
    if (!name.empty() && std::find(hosts.begin(), hosts.end(), name) == hosts.end()) {
        hosts.push_back(std::move(name));
    }
}

std::string variable(const char* name) {
    const char* const value = ::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

std::vector<std::string> hosts_in(const std::string& text) {
    std::vector<std::string> hosts;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line.substr(0, line.find('#')));
        std::string name;
        words >> name;
        // "host:8", and not the colons of an IPv6 address.
        const auto colon = name.find(':');
        if (colon != name.npos && name.find(':', colon + 1) == name.npos) {
            name.erase(colon);
        }
        add(name, hosts);
    }
    return hosts;
}

std::string host_problem(const std::string& name) {
    if (name.empty() || name.starts_with('-')) {
        return "is no name of a host";
    }
    const bool odd = std::any_of(name.begin(), name.end(), [](unsigned char c) {
        return c <= ' ' || c > '~' ||
               std::string_view("'\"`$;|&<>()\\*?").find(static_cast<char>(c)) !=
                   std::string_view::npos;
    });
    return odd ? "has a character that no name of a host has" : "";
}

bool is_this_host(const std::string& name) {
    char text[256] = "";
    (void)::gethostname(text, sizeof text - 1);
    const std::string own = text;
    const auto shortened = [](const std::string& full) { return full.substr(0, full.find('.')); };
    const bool address = !name.empty() && name.find_first_not_of("0123456789.:") == name.npos;
    return name == "localhost" || name == own || (!address && shortened(name) == shortened(own));
}

std::vector<std::string> slurm_hosts(std::string& problem) {
    const std::string list = variable("SLURM_JOB_NODELIST");
    if (list.empty()) {
        problem = "no HOST given, and this is no Slurm job (SLURM_JOB_NODELIST)";
        return {};
    }
    const std::string scontrol = find_in_path("scontrol", variable("PATH"));
    const auto text = scontrol.empty() ? std::optional<std::string>("")
                                       : output_in_time({scontrol, "show", "hostnames", list});
    std::vector<std::string> hosts = hosts_in(text.value_or(""));
    if (hosts.empty()) {
        problem = "scontrol show hostnames " + list + " names no host; name the hosts";
    }
    return hosts;
}

}  // namespace deft::tools::probe
