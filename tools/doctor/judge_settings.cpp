// SPDX-License-Identifier: Apache-2.0
// Settings that are wrong, that have no effect, or that ask for opposite things.
#include <fmt/format.h>
#include <strings.h>
#include <algorithm>
#include <set>

#include "tools/doctor/judge.h"
#include "tools/settings_check.h"
#include "topology/listening.h"
#include "topology/nccl_settings.h"

namespace deft::tools::doctor {
namespace {

// As the user knows it: name, value, where it stands.
std::string said(const Config& config, Key key) {
    const Setting& setting = config.setting(key);
    return fmt::format("{}={} ({})", variable(key).name, setting.text, setting.origin);
}

// Where the command itself sets what a complaint is about; empty: it does not.
std::string where_set(const SettingsFacts& settings, const std::string& complaint) {
    for (const auto& [name, where] : settings.origins) {
        if (complaint.starts_with(name)) {
            return fmt::format("{} is set by {}", name, where);
        }
    }
    return {};
}

bool is_set(const Config& config, Key key) {
    return config.setting(key).source != ValueSource::Default;
}

// The operator's file may hold defaults for modes that this job does not use.
bool user_set(const Config& config, Key key) {
    return is_set(config, key) && config.setting(key).source != ValueSource::SystemFile;
}

void judge_wrong(const SettingsFacts& settings, Diagnoses& found) {
    const Config& config = settings.config;
    for (const std::string& problem : config.problems()) {
        found.push_back({Finding::SettingWrong, problem, "deft env", ""});
    }
    for (const TextProblem& problem : settings.texts) {
        if (!problem.line.empty()) {
            found.push_back(
                {Finding::SettingWrong, problem.line, config.setting(problem.key).origin, ""});
        }
    }
    for (const std::string& problem : settings.unwritable) {
        found.push_back({Finding::SettingWrong, problem, "its folder on this host", ""});
    }
    for (const std::string& warning : config.warnings()) {
        found.push_back({Finding::SettingUnknown, warning, "", ""});
    }
    for (const std::string& warning : settings.unknown) {
        found.push_back({Finding::SettingUnknown, warning, "", ""});
    }
    if (!config.central_problem().empty()) {
        found.push_back(
            {Finding::SettingsFileWrong, config.central_problem(), kSystemConfigFile, ""});
    }
    for (const std::string& line : config.ignored_lines()) {
        found.push_back({Finding::SettingsLineIgnored, line, kSystemConfigFile, ""});
    }
    for (const std::string& file : settings.unread_files) {
        found.push_back({Finding::SettingsFileUnread, file + " is there, and deft reads none of it",
                         kSystemConfigFile, ""});
    }
    for (const std::string& line : settings.contradictions) {
        found.push_back({Finding::SettingsContradict, line, "deft env", "take one of them out"});
    }
    for (const std::string& line : config.overruled()) {
        found.push_back({Finding::SettingOverruled, line, kSystemConfigFile, ""});
    }
}

// Empty: what the table of findings says.
std::string remedy_of_off(const std::string& origin) {
    if (origin.starts_with("forced by ")) {
        return "ask whoever keeps the file: a job cannot undo that";
    }
    if (origin.starts_with("DEFT_CANARY=0.")) {
        return "write 5% for five jobs in a hundred: 0.05 is 0.05%; DEFT_CANARY=100% takes the job "
               "in";
    }
    if (origin.starts_with("DEFT_CANARY=")) {
        return "DEFT_CANARY=100% takes the job in, unless a file forces the share";
    }
    return {};
}

void judge_off(const Config& config, Diagnoses& found) {
    if (!config.is(Key::Mode, "off") || !config.central_problem().empty()) {
        return;
    }
    const Key by = is_set(config, Key::Disable) && !config.text(Key::Disable).empty() ? Key::Disable
                                                                                      : Key::Mode;
    const std::string& origin = config.setting(by).origin;
    found.push_back({Finding::SwitchedOff, said(config, by) + " switches deft off", origin,
                     remedy_of_off(origin)});
    if (config.flag(Key::Require)) {
        found.push_back({Finding::SettingsContradict,
                         said(config, Key::Require) + " asks for deft, and " + said(config, by) +
                             " switches it off",
                         "", ""});
    }
}

// Settings of the modes that change when an update comes.
constexpr const char* kNetworks[] = {"IB", "Socket", "deft", "none"};
constexpr Key kOfLateModes[] = {Key::Gradients,      Key::MaxDelay,   Key::MaxMerge,
                                Key::Merge,          Key::Predict,    Key::Optimizer,
                                Key::Guard,          Key::WarmUp,     Key::Plan,
                                Key::MaxShadowBytes, Key::NoiseScale, Key::AgePrice};

// `provable`: the companion of a PyTorch job may prove what is a gradient.
void judge_mode(const Config& config, bool provable, Diagnoses& found) {
    const bool late = config.is(Key::Mode, "deft") || config.is(Key::Mode, "covap");
    for (const Key key : kOfLateModes) {
        if (!late && user_set(config, key)) {
            found.push_back({Finding::SettingIdle,
                             fmt::format("{} has no effect in mode {}", said(config, key),
                                         config.text(Key::Mode)),
                             said(config, Key::Mode),
                             "unset it, or choose DEFT_MODE=deft or covap"});
        }
    }
    if (!late) {
        return;
    }
    if (!config.is(Key::Gradients, "trust") && !provable) {
        found.push_back({Finding::GradientsUnproven,
                         fmt::format("mode {} does what exact does: no companion proves gradients, "
                                     "and DEFT_GRADIENTS is not trust",
                                     config.text(Key::Mode)),
                         said(config, Key::Mode), ""});
    }
    const std::string& plan = config.text(Key::Plan);
    if (plan != "auto" && plan.starts_with("covap") != config.is(Key::Mode, "covap")) {
        found.push_back(
            {Finding::SettingsContradict,
             fmt::format("{} is no plan of {}", said(config, Key::Plan), said(config, Key::Mode)),
             "", ""});
    }
    if (config.is(Key::Mode, "deft") && plan == "auto" && config.integer(Key::MaxDelay) == 0 &&
        config.integer(Key::MaxMerge) == 1) {
        found.push_back({Finding::SettingsContradict,
                         fmt::format("{} and {} leave mode deft nothing to do",
                                     said(config, Key::MaxDelay), said(config, Key::MaxMerge)),
                         "", ""});
    }
}

void judge_ucx_devices(const Config& config, Diagnoses& found) {
    if (user_set(config, Key::UcxDevices) && !config.is(Key::Ucx, "on")) {
        found.push_back(
            {Finding::SettingIdle,
             fmt::format("{} has no effect without DEFT_UCX=on", said(config, Key::UcxDevices)),
             "docs/ucx.md", "set DEFT_UCX=on on all hosts, or unset it"});
    }
}

void judge_layers(const Config& config, Diagnoses& found) {
    if (!config.is(Key::Layerwise, "auto") || !user_set(config, Key::Layerwise)) {
        return;
    }
    const bool alone = config.is(Key::Companion, "off");
    if (alone || !config.is(Key::Mode, "exact")) {
        const Key other = alone ? Key::Companion : Key::Mode;
        found.push_back({Finding::SettingIdle,
                         fmt::format("{} has no effect next to {}", said(config, Key::Layerwise),
                                     said(config, other)),
                         "docs/companion.md", ""});
    }
}

// {"eth0", "eth1"} of "eth0@25gbit, =eth1".
std::set<std::string> names_alone(const std::string& list) {
    std::set<std::string> names;
    for (std::size_t at = 0; at < list.size();) {
        const auto end = std::min(list.find(',', at), list.size());
        std::string name = list.substr(at, end - at);
        name = name.substr(0, name.find('@'));
        std::erase_if(name, [](char letter) { return letter == ' ' || letter == '='; });
        if (!name.empty()) {
            names.insert(std::move(name));
        }
        at = end + 1;
    }
    return names;
}

void judge_networks(const Config& config, const PluginFacts& plugin, Diagnoses& found) {
    const auto value = [&](const char* name) {
        const NcclValue* const setting = plugin.setting(name);
        return setting == nullptr ? std::string() : setting->value;
    };
    const std::string theirs = value("NCCL_SOCKET_IFNAME");
    const std::string& ours = config.text(Key::Interfaces);
    if (!ours.empty() && !theirs.empty() && names_alone(ours) != names_alone(theirs)) {
        found.push_back({Finding::SettingsContradict,
                         fmt::format("{} and NCCL_SOCKET_IFNAME={} name different interfaces",
                                     said(config, Key::Interfaces), theirs),
                         "deft's links follow the first, NCCL's start-up follows the second",
                         "name the same interfaces in both, or unset one"});
    }
    for (const char* name : {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}) {
        if (!value(name).empty() && value("NCCL_NET").empty()) {
            found.push_back({Finding::SettingIdle,
                             fmt::format("{}={} has no effect on deft's links", name, value(name)),
                             "it is one of NCCL's Socket transport",
                             "unset it, or set DEFT_STREAMS"});
        }
    }
    const bool ib_off = std::atoi(value("NCCL_IB_DISABLE").c_str()) != 0;
    const bool replace = config.is(Key::Rdma, "replace");
    if (replace && ib_off) {
        found.push_back({Finding::SettingIdle,
                         said(config, Key::Rdma) + " has no effect next to NCCL_IB_DISABLE=1", "",
                         ""});
    }
    if (replace && ::strcasecmp(value("NCCL_NET").c_str(), "IB") == 0) {
        found.push_back({Finding::SettingsContradict,
                         said(config, Key::Rdma) + " and NCCL_NET=IB ask for different networks",
                         "", ""});
    }
    if (ib_off && config.text(Key::Lanes).find("IB") != std::string::npos) {
        found.push_back({Finding::SettingsContradict,
                         said(config, Key::Lanes) + " asks for IB, and NCCL_IB_DISABLE=1 forbids "
                                                    "it",
                         "", ""});
    }
}

// NCCL has three networks; a vendor's plugin brings one under a name of its own.
void judge_lanes(const Config& config, const PluginFacts& plugin, Diagnoses& found) {
    const NcclValue* const named = plugin.setting("NCCL_NET_PLUGIN");
    if (!plugin.vendor.empty() || (named != nullptr && !names_deft(named->value, true))) {
        return;
    }
    std::string rest = config.text(Key::Lanes);
    while (!rest.empty()) {
        const auto end = rest.find(',');
        std::string name = rest.substr(0, end);
        rest = end == rest.npos ? "" : rest.substr(end + 1);
        std::erase(name, ' ');
        const bool known =
            std::any_of(std::begin(kNetworks), std::end(kNetworks),
                        [&](const char* each) { return ::strcasecmp(name.c_str(), each) == 0; });
        if (!known) {
            found.push_back(
                {Finding::SettingIdle,
                 fmt::format("{}: NCCL has no network '{}' here", said(config, Key::Lanes), name),
                 "networks are IB, Socket, deft, and what a vendor's plugin brings",
                 "name a network; interfaces belong into DEFT_INTERFACES"});
            return;
        }
    }
}

void judge_files_and_ports(const SettingsFacts& settings, Diagnoses& found) {
    for (const std::string& line : settings.unusable) {
        const auto split = line.find("; ");
        found.push_back({Finding::SettingIdle, line.substr(0, split),
                         "the file system of this host", line.substr(split + 2)});
    }
    if (!settings.kill_file.empty()) {
        found.push_back({Finding::KillSwitchPulled,
                         settings.kill_file + " is there: no plan is carried out",
                         "the file system of this host", ""});
    }
    PortRange range;
    const bool some = parse_ports(settings.config.text(Key::Ports), range) && !range.any();
    if (some && range.first < settings.first_port) {
        found.push_back({Finding::PortRange,
                         fmt::format("{} has ports below {}, which are root's",
                                     said(settings.config, Key::Ports), settings.first_port),
                         "/proc/sys/net/ipv4/ip_unprivileged_port_start",
                         "name higher ones: DEFT_PORTS=42000-42999"});
    }
    const auto launcher = settings.other.find("MASTER_PORT");
    const int taken = launcher == settings.other.end() ? 0 : std::atoi(launcher->second.c_str());
    if (some && taken >= range.first && taken <= range.last) {
        found.push_back({Finding::PortRange,
                         fmt::format("{} holds MASTER_PORT={}, on which the launcher listens",
                                     said(settings.config, Key::Ports), taken),
                         "environment", "name others: DEFT_PORTS=42000-42999"});
    }
    const int ports = range.last - range.first + 1;
    if (some && ports >= kFewPorts && settings.free_ports >= 0 && settings.free_ports < kFewPorts) {
        found.push_back({Finding::PortRange,
                         fmt::format("{} has {} ports, of which {} are free",
                                     said(settings.config, Key::Ports), ports, settings.free_ports),
                         "each was bound once, and given back",
                         "ss -tlnp says who listens there; name others, or more"});
    }
    if (some && ports < kFewPorts) {
        found.push_back({Finding::PortRange,
                         fmt::format("{} has {} ports for all ranks of a host",
                                     said(settings.config, Key::Ports), ports),
                         "each connection that NCCL accepts takes one",
                         "name more: DEFT_PORTS=42000-42999"});
    }
}

void judge_tuner(const SettingsFacts& settings, Diagnoses& found) {
    for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN"}) {
        const auto value = settings.other.find(name);
        if (value != settings.other.end() && !value->second.empty() &&
            !settings.config.is(Key::Tuner, "off")) {
            found.push_back({Finding::SettingIdle,
                             fmt::format("{} has no effect next to {}={}",
                                         said(settings.config, Key::Tuner), name, value->second),
                             "docs/tuner.md", ""});
        }
    }
}

void judge_other(const SettingsFacts& settings, Diagnoses& found) {
    const Config& config = settings.config;
    if (config.is(Key::Log, "none") && user_set(config, Key::LogFile) &&
        !config.text(Key::LogFile).empty()) {
        found.push_back({Finding::SettingsContradict,
                         said(config, Key::LogFile) + " stays empty with " + said(config, Key::Log),
                         "", ""});
    }
    for (const char* name :
         {"CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}) {
        const auto value = settings.other.find(name);
        if (value != settings.other.end() && std::atoi(value->second.c_str()) != 0) {
            found.push_back({Finding::LaunchBlocking,
                             fmt::format("{}={} lets nothing overlap", name, value->second),
                             "environment", ""});
        }
    }
    const auto debug = settings.other.find("TORCH_DISTRIBUTED_DEBUG");
    if (debug != settings.other.end() && ::strcasecmp(debug->second.c_str(), "DETAIL") == 0) {
        found.push_back({Finding::LaunchBlocking,
                         "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective with others",
                         "environment", ""});
    }
}

void judge_companion(const CommandFacts& command, const SettingsFacts& settings, Diagnoses& found) {
    if (!command.python) {
        return;
    }
    if (!command.python_ignores.empty()) {
        found.push_back({Finding::CompanionOff,
                         fmt::format("Python is started with {}, so it does not load deft's module",
                                     command.python_ignores),
                         "the words of the command", ""});
    } else if (const ScriptLine& reset = command.python_path_reset; !reset.text.empty()) {
        found.push_back(
            {Finding::CompanionOff,
             (reset.line > 0 ? fmt::format("{}:{}", reset.file, reset.line) : reset.file) +
                 " sets PYTHONPATH anew",
             reset.text, "append to it: PYTHONPATH=FOLDER:$PYTHONPATH"});
    } else if (!settings.shadowing_site.empty()) {
        found.push_back({Finding::CompanionOff,
                         settings.shadowing_site + " comes before deft's sitecustomize.py",
                         "PYTHONPATH", "put deft's folder first on PYTHONPATH"});
    } else if (wants_companion(settings.config) && !settings.observer_on_path &&
               !command.under_deft_run && !command.assumed) {
        found.push_back(
            {Finding::CompanionOff, "PYTHONPATH does not lead to deft's module", "PYTHONPATH", ""});
    }
}

}  // namespace

void judge_settings(const Facts& facts, Diagnoses& all) {
    if (!facts.settings) {
        return;
    }
    const SettingsFacts& settings = *facts.settings;
    Diagnoses found;
    if (facts.command && !facts.command->wrong_option.empty()) {
        found.push_back({Finding::SettingWrong,
                         "deft run has no option " + facts.command->wrong_option,
                         "the words of the command", "deft run --help lists them"});
    }
    judge_wrong(settings, found);
    judge_off(settings.config, found);
    if (!settings.config.is(Key::Mode, "off")) {
        // Where the companion is kept out, judge_companion() says so.
        const bool provable =
            facts.command && facts.command->python && settings.config.is(Key::Companion, "auto");
        judge_mode(settings.config, provable, found);
        judge_layers(settings.config, found);
        judge_ucx_devices(settings.config, found);
        judge_files_and_ports(settings, found);
        judge_tuner(settings, found);
        if (facts.plugin) {
            judge_networks(settings.config, *facts.plugin, found);
            judge_lanes(settings.config, *facts.plugin, found);
        }
    }
    judge_other(settings, found);
    if (facts.command) {
        judge_companion(*facts.command, settings, found);
    }
    for (Diagnosis& each : found) {
        const std::string where = where_set(settings, each.what);
        each.evidence = where.empty() ? each.evidence : where;
        all.push_back(std::move(each));
    }
}

}  // namespace deft::tools::doctor
