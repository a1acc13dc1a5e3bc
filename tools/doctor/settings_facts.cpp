// SPDX-License-Identifier: Apache-2.0
// Settings of the job, and the links that they choose.
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "tools/doctor/host_facts.h"
#include "tools/doctor/link_routes.h"
#include "tools/doctor/nccl_names.h"
#include "tools/doctor/queue_rules.h"
#include "tools/doctor/settings_files.h"
#include "tools/foreign.h"
#include "tools/input_file.h"
#include "tools/library.h"
#include "tools/output_file.h"
#include "tools/settings_check.h"
#include "topology/listening.h"
#include "topology/nccl_settings.h"

namespace deft::tools::doctor {
namespace {

int read_number(const std::string& path, int otherwise) {
    std::ifstream file(path);
    int number = otherwise;
    return file >> number ? number : otherwise;
}

// Whether PYTHONPATH leads Python to deft's module, and what stands before it.
void read_python_path(const Environment& environment, SettingsFacts& facts) {
    std::string list = environment.get("PYTHONPATH").value_or("");
    while (!list.empty()) {
        const auto end = list.find(':');
        const std::string folder = list.substr(0, end);
        list = end == list.npos ? "" : list.substr(end + 1);
        if (folder.ends_with("deft/observer") || folder.ends_with("python/observer") ||
            folder.ends_with("companion")) {
            facts.observer_on_path = true;
            return;
        }
        const std::string site = folder + "/sitecustomize.py";
        if (!folder.empty() && ::access(site.c_str(), R_OK) == 0 && facts.shadowing_site.empty()) {
            facts.shadowing_site = site;
        }
    }
    facts.shadowing_site.clear();  // nothing of deft's behind it
}

// Files that are looked for while the job runs; a job does without those that are not there.
void read_files(const Config& config, SettingsFacts& facts) {
    const auto look = [&](Key key, int access, const char* remedy) {
        const Setting& setting = config.setting(key);
        if (!setting.text.empty() && ::access(setting.text.c_str(), access) != 0) {
            const std::string why = std::strerror(errno);
            const bool tilde = setting.text.starts_with("~");  // the shell's alone, unquoted
            facts.unusable.push_back(
                std::string(variable(key).name) + "='" + setting.text + "' (" + setting.origin +
                "): " +
                (tilde ? "'~' is not replaced by a folder; write it out" : why + "; " + remedy));
        }
    };
    if (std::string problem = unusable_metrics(config); !problem.empty()) {
        facts.unusable.push_back(std::move(problem));
    }
    look(Key::Probe, R_OK, "make it with deft probe --json, on every host, or unset it");
    look(Key::Sysfs, R_OK | X_OK, "unset it, or no RDMA port is seen");
    const auto add = [&](Key key, const std::string& problem) {
        const Setting& setting = config.setting(key);
        facts.unusable.push_back(std::string(variable(key).name) + "='" + setting.text + "' (" +
                                 setting.origin + "): " + problem);
    };
    const std::string& probed = config.text(Key::Probe);
    if (!probed.empty() && ::access(probed.c_str(), R_OK) == 0) {
        constexpr std::size_t kLargest = std::size_t{8} << 20;  // as the plugin has it
        std::string text, problem;
        struct stat status {};
        if (!read_input(probed, kLargest, text, problem) || ::stat(probed.c_str(), &status) != 0) {
            problem += "; name a file that deft probe --json has made";
        } else {
            problem =
                probe_problem(text, status.st_mtim.tv_sec, ::time(nullptr), list_interfaces());
        }
        if (!problem.empty()) {
            add(Key::Probe, problem);
        }
    }
    for (const Key key : {Key::Out, Key::LogFile}) {
        const std::string part = unreplaced_part(config.text(key));
        if (!part.empty()) {
            add(key, "'" + part + "' is not replaced; name %h host, %j job, %r rank or %p process");
        }
    }
    const std::string& kill = config.text(Key::KillFile);
    const auto slash = kill.rfind('/');
    if (slash != kill.npos && slash > 0 && ::access(kill.substr(0, slash).c_str(), F_OK) != 0) {
        add(Key::KillFile, "folder " + kill.substr(0, slash) + ": " + std::strerror(errno) +
                               "; make it on every host, or nobody can pull the switch there");
    }
    for (const std::string& file : {std::string("/etc/deft/off"), kill}) {
        if (facts.kill_file.empty() && !file.empty() && ::access(file.c_str(), F_OK) == 0) {
            facts.kill_file = file;
        }
    }
}

// How many ports of DEFT_PORTS nobody listens on, as far as it matters.
int free_ports(const Config& config) {
    PortRange range;
    if (!parse_ports(config.text(Key::Ports), range) || range.any()) {
        return -1;
    }
    int free = 0;
    for (int port = range.first; port <= range.last && free < kFewPorts; ++port) {
        const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int yes = 1;  // what waits out a connection of before is no obstacle
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_port = htons(static_cast<std::uint16_t>(port));
        if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0) {
            return -1;
        }
        free += ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 ? 1 : 0;
    }
    return free;
}

// Names that a job's author took for deft's: in small letters, with the first letters in another
// order, with a '-' or nothing behind them.
std::vector<std::string> mistaken_names(const std::vector<const char*>& environment) {
    std::vector<std::string> lines;
    for (const char* entry : environment) {
        const std::string name(entry, std::string_view(entry).find('='));
        std::string meant = name;
        std::transform(meant.begin(), meant.end(), meant.begin(), [](unsigned char letter) {
            return letter == '-' ? '_' : std::toupper(letter);
        });
        if (meant.size() > 4 && meant[4] != '_') {
            meant.insert(4, "_");
        }
        std::string prefix = meant.substr(0, meant.find('_'));
        std::sort(prefix.begin(), prefix.end());
        meant = "DEFT_" + meant.substr(std::min(meant.find('_') + 1, meant.size()));
        const bool known =
            std::any_of(variables().begin(), variables().end(),
                        [&](const Variable& variable) { return meant == variable.name; });
        if (known && prefix == "DEFT" && name != meant) {
            lines.push_back(name + " is no variable of deft's; did you mean " + meant + "?");
        }
    }
    return lines;
}

// What an upgrade, an editor or a slip of memory leaves in the place of /etc/deft/deft.conf.
std::vector<std::string> unread_files() {
    std::vector<std::string> found;
    std::error_code ignored;
    if (std::filesystem::exists(kSystemConfigFile, ignored)) {
        return found;
    }
    for (const char* file :
         {"/etc/deft.conf", "/etc/deft/deft.cfg", "/etc/deft/deft.conf.rpmsave",
          "/etc/deft/deft.conf.dpkg-old", "/etc/deft/deft.conf.bak", "/etc/deft/deft.conf~",
          "/usr/local/etc/deft/deft.conf", "/opt/deft/etc/deft.conf"}) {
        if (std::filesystem::exists(file, ignored)) {
            found.emplace_back(file);
        }
    }
    return found;
}

void read_contradictions(const Job& job, SettingsFacts& facts) {
    const std::vector<const char*> environment = job.environment.entries();
    const JobIdentity identity(environment, job.command.words);
    const std::string& own = facts.config.text(Key::Conf);
    for (const std::string& file : {own, std::string(kSystemConfigFile)}) {
        if (!file.empty()) {
            for (std::string& line :
                 contradictions(read_config_file(file, identity, file != own))) {
                facts.contradictions.push_back(std::move(line));
            }
        }
    }
    // A ceiling takes away what the same file forces.
    const std::string& mode = facts.config.setting(Key::Mode).origin;
    if (mode.starts_with("capped by ") && mode.find("forced by ") != mode.npos) {
        facts.contradictions.push_back("DEFT_MODE is " + facts.config.text(Key::Mode) + " (" +
                                       mode + ")");
    }
}

}  // namespace

void adopt_environment(const Environment& environment) {
    const std::vector<const char*> entries = environment.entries();
    std::vector<std::string> kept(entries.begin(), entries.end());
    ::clearenv();
    for (const std::string& entry : kept) {
        const auto equals = entry.find('=');
        if (equals != entry.npos && equals > 0) {
            ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 0);
        }
    }
}

SettingsFacts read_settings(const Job& job) {
    SettingsFacts facts;
    facts.config = Config::load(job.environment.entries(), kSystemConfigFile,
                                text_settings_problems, job.command.words);
    const Config& config = facts.config;
    read_contradictions(job, facts);
    const bool off = config.is(Key::Mode, "off");
    if (!off) {
        facts.texts = text_settings_problems(config);
        std::erase_if(facts.texts, [](const TextProblem& each) {
            return each.line.empty() || each.key == Key::NcclLibrary;
        });
        const bool writes = config.is(Key::Mode, "observe") ||
                            config.setting(Key::Out).source != ValueSource::Default;
        for (const Key key : {Key::Out, Key::LogFile}) {
            std::string problem = key == Key::Out && !writes
                                      ? std::string()
                                      : unwritable(config, key, job.command.under_deft_run);
            if (!problem.empty()) {
                facts.unwritable.push_back(std::move(problem));
            }
        }
    }
    if (!off) {
        read_files(config, facts);
        facts.free_ports = free_ports(config);
    }
    if (::geteuid() != 0) {
        facts.first_port = read_number("/proc/sys/net/ipv4/ip_unprivileged_port_start", 1024);
    }
    for (const char* name : {"CUDA_LAUNCH_BLOCKING",
                             "TORCH_NCCL_BLOCKING_WAIT",
                             "NCCL_BLOCKING_WAIT",
                             "TORCH_DISTRIBUTED_DEBUG",
                             "MASTER_PORT",
                             "NCCL_ALGO",
                             "NCCL_PROTO",
                             "NCCL_TUNER_PLUGIN",
                             "LD_AUDIT",
                             "MASTER_ADDR",
                             "NCCL_COMM_ID",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "PET_NNODES",
                             "SLURM_JOB_NUM_NODES",
                             "SLURM_STEP_NUM_NODES",
                             "RANK",
                             "NODE_RANK",
                             "PET_NODE_RANK",
                             "SLURM_NODEID"}) {
        if (const auto value = job.environment.get(name)) {
            facts.other[name] = *value;
        }
    }
    std::vector<std::string> names;
    for (const char* entry : job.environment.entries()) {
        const std::string_view pair(entry);
        if (pair.starts_with("NCCL_")) {
            names.emplace_back(pair.substr(0, pair.find('=')));
        }
    }
    facts.unknown = unknown_nccl_names(names);
    for (std::string& line : mistaken_names(job.environment.entries())) {
        facts.unknown.push_back(std::move(line));
    }
    facts.unread_files = unread_files();
    facts.origins = job.origins;
    read_python_path(job.environment, facts);
    return facts;
}

LinkFacts read_links(const Config& config) {
    LinkFacts facts;
    facts.all = list_interfaces();
    facts.chosen = process_links();
    facts.rdma = process_rdma();
    const std::string& ours = config.text(Key::Interfaces);
    const std::string theirs = nccl_setting("NCCL_SOCKET_IFNAME").value_or("");
    facts.list = !ours.empty()     ? "DEFT_INTERFACES=" + ours
                 : !theirs.empty() ? "NCCL_SOCKET_IFNAME=" + theirs
                                   : std::string();
    facts.without_list = select_interfaces(facts.all, "", "", false);
    for (const char* const tc : {"/usr/sbin/tc", "/sbin/tc"}) {
        if (::access(tc, X_OK) == 0) {
            facts.shaped = shaped_links(output_in_time({tc, "qdisc", "show"}).value_or(""));
            break;
        }
    }
    facts.astray = astray_links(facts.chosen.links);
    const std::string root = "/proc/sys/net/ipv4/conf/";
    const int all = read_number(root + "all/rp_filter", 0);
    for (const Interface& link : facts.chosen.links) {
        // The kernel takes the larger of the two.
        facts.reverse_path[link.name] =
            std::max(all, read_number(root + link.name + "/rp_filter", 0));
    }
    return facts;
}

}  // namespace deft::tools::doctor
