// SPDX-License-Identifier: Apache-2.0
#include "tools/probe/probe_command.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/config.h"
#include "tools/doctor/peer.h"
#include "tools/input_file.h"
#include "tools/number_in.h"
#include "tools/probe/host_list.h"
#include "tools/probe/probe_links.h"
#include "tools/probe/remote.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using namespace probe;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostHosts = 256;
constexpr auto kStart = 40s;  // for ssh or srun to start a program
constexpr int kUnanswered = 3;

class ProbeHelp : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: deft probe [OPTIONS] [HOST... | --hostfile FILE]\n"
               "       deft probe --listen PORT\n"
               "       deft probe [--json] --connect HOST:PORT\n";
    }
};

std::chrono::milliseconds flow_time(const ProbeOptions& options) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(options.seconds * 1e3));
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        if (!part.empty()) {
            parts.push_back(part);
        }
    }
    return parts;
}

int show(const ProbeResult& result, bool json) {
    if (Config::process().is(Key::Ucx, "on")) {
        complain(
            "DEFT_UCX=on: what is measured is TCP; paths over UCX learn their rates in the job");
    }
    const int printed = print(json ? json_text(result) : human_text(result));
    return printed == kSuccess ? exit_code(result) : printed;
}

// A host that listens, and where it can be asked.
struct Listener {
    std::string host;
    RemoteProgram program;
    std::vector<std::string> places;
    std::string problem;
};

// What it says first: "listening on port N; ...", and a line of JSON with its addresses.
void read_places(Listener& listener) {
    const auto deadline = Clock::now() + kStart;
    constexpr std::string_view kBegin = "listening on port ";
    std::string line;
    int port = 0;
    while (port == 0 && listener.program.read_line(line, deadline)) {
        if (line.starts_with(kBegin)) {  // what a shell prints at its start does not
            std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), port);
        }
    }
    doctor::PeerInfo info;
    if (port == 0 || !listener.program.read_line(line, deadline) ||
        !doctor::parse_peer_info(line, info)) {
        listener.problem = fmt::format(
            "{}: no deft answered there; remedy: see what stands above, name deft's path on that "
            "host (--deft), or start deft probe --listen PORT there by hand",
            listener.host);
        return;
    }
    const auto place = [&](const std::string& name) {
        // Of its two ports the one within DEFT_PORTS: a firewall may stop the other.
        return name.find(':') == name.npos ? fmt::format("{}:{}", name, info.port)
                                           : fmt::format("[{}]:{}", name, info.port);
    };
    if (!is_this_host(listener.host)) {
        listener.places.push_back(place(listener.host));
    }
    for (const doctor::PeerInfo::Link& link : info.links) {
        for (const Address& address : link.addresses) {
            if (!address.link_local()) {
                listener.places.push_back(place(address.text()));
            }
        }
    }
}

// The first asks the second.
void ask(const Starter& starter, const std::string& from, const Listener& to,
         const ProbeOptions& options, ProbeResult& result) {
    if (is_this_host(from)) {
        HostPair pair = probe_host(to.places, flow_time(options));
        pair.to = pair.problem.empty() ? pair.to : to.host;
        result.pairs.push_back(std::move(pair));
        return;
    }
    std::string places;
    for (const std::string& place : to.places) {
        places += (places.empty() ? "" : ",") + place;
    }
    RemoteProgram program(starter.words(
        from,
        {"probe", "--json", "--seconds", fmt::format("{}", options.seconds), "--connect", places}));
    const std::string text = program.read_all(Clock::now() + kStart + 600s);
    // A shell may have printed something before.
    const auto begin = text.find("{\n  \"format\": \"deft-probe\"");
    std::string problem;
    if (!add_json(begin == text.npos ? "" : text.substr(begin), result, problem)) {
        result.problems.push_back(fmt::format("{} could not ask {}: {}", from, to.host, problem));
    }
}

ProbeResult probe_all(const Starter& starter, const std::vector<std::string>& hosts,
                      const ProbeOptions& options) {
    ProbeResult result;
    std::vector<Listener> listeners;
    // The first host asks all others, the second all but the first, and the last one only answers.
    for (std::size_t i = 1; i < hosts.size(); ++i) {
        listeners.push_back(
            {hosts[i],
             RemoteProgram(starter.words(hosts[i], {"probe", "--listen", "0", "--for-program"})),
             {},
             {}});
    }
    for (Listener& listener : listeners) {
        read_places(listener);
        if (!listener.problem.empty()) {
            result.problems.push_back(listener.problem);
        }
    }
    // One pair after the other: two at once would share links.
    for (std::size_t i = 0; i < hosts.size(); ++i) {
        const bool silent = i > 0 && !listeners[i - 1].problem.empty();
        for (std::size_t j = i; j < listeners.size() && !silent; ++j) {
            if (listeners[j].problem.empty()) {
                ask(starter, hosts[i], listeners[j], options, result);
            }
        }
    }
    return result;
}

// Empty, and why, if there are none.
std::vector<std::string> hosts_of(const ProbeOptions& options, std::string& problem) {
    std::vector<std::string> hosts;
    if (!options.hostfile.empty()) {
        std::string text;
        if (!read_input(options.hostfile, 1 << 20, text, problem)) {
            problem = options.hostfile + ": " + problem;
            return {};
        }
        hosts = hosts_in(text);
        if (hosts.empty()) {
            problem = options.hostfile + ": names no host";
        }
    } else if (!options.hosts.empty()) {
        // This host with them, and they with each other.
        hosts.emplace_back("localhost");
        for (const std::string& host : options.hosts) {
            if (!is_this_host(host) && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
                hosts.push_back(host);
            }
        }
    } else {
        hosts = slurm_hosts(problem);
    }
    for (const std::string& host : hosts) {
        if (const std::string why = host_problem(host); !why.empty()) {
            problem = fmt::format("'{}' {}", host, why);
        }
    }
    if (problem.empty() && (hosts.size() < 2 || hosts.size() > kMostHosts)) {
        problem = fmt::format("{} host{}; name 2 to {}", hosts.size(), hosts.size() == 1 ? "" : "s",
                              kMostHosts);
    }
    return hosts;
}

int listen(const ProbeOptions& options) {
    doctor::Listening how;
    const char* const end = options.listen.data() + options.listen.size();
    const auto read = std::from_chars(options.listen.data(), end, how.port);
    if (read.ec != std::errc() || read.ptr != end || how.port < 0 || how.port > 65535) {
        complain(fmt::format("probe: --listen '{}' is not a port from 1 to 65535, or 0 for any",
                             options.listen));
        return kUsage;
    }
    how.for_program = options.for_program;
    how.command = "probe --listen";
    how.other = "probe --connect HOST";
    how.names_port = true;
    return doctor::answer_peers(how);
}

Starter starter_of(const ProbeOptions& options) {
    Starter starter;
    const bool in_slurm = ::getenv("SLURM_JOB_ID") != nullptr;
    starter.slurm = options.by.empty() ? in_slurm : options.by == "srun";
    starter.ssh = split(options.ssh, ' ');
    if (starter.ssh.size() == 1) {
        // No question may come up: nobody would see it.
        starter.ssh.insert(starter.ssh.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
    }
    std::error_code error;
    starter.deft = !options.deft.empty()
                       ? options.deft
                       : std::filesystem::read_symlink("/proc/self/exe", error).string();
    return starter;
}

}  // namespace

void ProbeCommand::add_to(CLI::App& app) {
    probe = app.add_subcommand("probe", "Measure every link between hosts, before a job runs")
                ->allow_extras();
    probe->formatter(std::make_shared<ProbeHelp>());
    probe->add_option("hosts", options.hosts,
                      "This host with each of them, and they with each other; none: those of the "
                      "Slurm job");
    probe->add_option("--hostfile", options.hostfile, "Hosts, one a line, as mpirun reads them");
    probe->add_option("--listen", options.listen,
                      "Answer `deft probe --connect` of other hosts at this port, until "
                      "interrupted; 0: any port");
    probe->add_option("--connect", options.connect,
                      "HOST:PORT at which `deft probe --listen` answers");
    probe
        ->add_option("--seconds", options.seconds,
                     "How long each link is kept full, in each direction; default 0.5")
        ->check(number_in(0.05, 10.0));
    probe->add_option("--by", options.by, "Start deft on the hosts by ssh or srun")
        ->check(CLI::IsMember({"ssh", "srun"}));
    probe->add_option("--ssh", options.ssh, "The ssh command with its options");
    probe->add_option("--deft", options.deft,
                      "Path of deft on the other hosts; default: as on this one");
    probe->add_flag("--for-program", options.for_program,
                    "Of --listen: end when standard input ends, and print what links there are");
    probe->add_flag("--json", options.json, "For programs");
    probe->footer(
        "Rates are of one TCP connection at a time, in both directions. Exit status: 0 all is "
        "well,\n"
        "1 something does not pass or is lost, 2 wrong usage, 3 a host gave no answer.");
}

int probe_command(const ProbeOptions& options) {
    const int subjects = !options.hosts.empty() + !options.hostfile.empty() +
                         !options.listen.empty() + !options.connect.empty();
    if (subjects > 1) {
        complain("probe: choose one of HOST..., --hostfile, --listen and --connect");
        return kUsage;
    }
    if (!options.listen.empty()) {
        return listen(options);
    }
    ProbeResult result;
    if (!options.connect.empty()) {
        result.pairs.push_back(probe_host(split(options.connect, ','), flow_time(options)));
        return show(result, options.json);
    }
    std::string problem;
    const std::vector<std::string> hosts = hosts_of(options, problem);
    if (!problem.empty()) {
        complain("probe: " + problem);
        return kUsage;
    }
    const Starter starter = starter_of(options);
    if (!starter.slurm && starter.ssh.empty()) {
        complain("probe: --ssh names no command; leave it out for ssh itself");
        return kUsage;
    }
    result = probe_all(starter, hosts, options);
    const int status = show(result, options.json);
    return result.problems.empty() ? status : std::max(status, kUnanswered);
}

}  // namespace deft::tools
