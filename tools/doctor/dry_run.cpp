// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/dry_run.h"

#include <fmt/format.h>
#include <strings.h>
#include <unistd.h>
#include <algorithm>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/job_facts.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/supervised.h"
#include "tools/foreign.h"
#include "tools/text_output.h"
#include "topology/nccl_settings.h"

namespace deft::tools {
namespace doctor {
namespace {

std::string row(const char* name, const std::string& text) {
    return fmt::format("# {:<9} {}\n", name, printable(text));
}

std::string library_rows(const Launch& launch, const Facts& facts) {
    if (launch.library.empty()) {
        return row("library", launch.central_mistake
                                  ? "none: /etc/deft/deft.conf has a mistake, so the command runs "
                                    "without deft"
                                  : "none is preloaded");
    }
    const std::string version = facts.preload ? facts.preload->library_version : std::string();
    return row("library", fmt::format("{} {}, preloaded", launch.library, version));
}

std::string nccl_rows(const Facts& facts) {
    std::string text;
    for (const NcclCopy& copy : facts.nccl ? facts.nccl->copies : std::vector<NcclCopy>()) {
        text += row("NCCL", fmt::format("{} at {}{}, {}{}", nccl_version_text(copy.version),
                                        copy.path, copy.is_static ? " (static)" : "", copy.found_by,
                                        text.empty() ? "" : "; also in reach"));
    }
    return text.empty() ? row("NCCL", "none was found for this command") : text;
}

// Who carries the job between hosts.
std::string network_row(const Launch& launch, const Facts& facts) {
    const auto value = [&](const char* name) { return launch.after.get(name).value_or(""); };
    if (launch.library.empty() || launch.off) {
        return row("network", "NCCL's own choice");
    }
    if (value("NCCL_NET_PLUGIN").empty()) {
        const std::string vendor = facts.plugin ? facts.plugin->vendor : std::string();
        return row("network", vendor.empty() ? "NCCL's own choice" : vendor + ", which NCCL loads");
    }
    if (!names_deft(value("NCCL_NET_PLUGIN"), false)) {
        return row("network", fmt::format("as NCCL_NET_PLUGIN={} says", value("NCCL_NET_PLUGIN")));
    }
    if (!value("NCCL_NET").empty() && ::strcasecmp(value("NCCL_NET").c_str(), "deft") != 0) {
        return row("network", fmt::format("NCCL_NET={}", value("NCCL_NET")));
    }
    const RdmaUse use = facts.links ? facts.links->rdma.use : RdmaUse::None;
    std::string text = "deft's plugin over the links below";
    if (use == RdmaUse::Aside) {
        text = "NCCL's IB; deft's links stand aside for it";
    } else if (use == RdmaUse::Replace) {
        const RdmaChoice& rdma = facts.links->rdma;
        text = fmt::format(
            "deft's plugin over {}the links below, in the place of NCCL's IB",
            rdma.drives_ports ? fmt::format("the RDMA ports {} and ", rdma.usable_ports()) : "");
    }
    return row("network", fmt::format("{} (NCCL_NET_PLUGIN={})", text, value("NCCL_NET_PLUGIN")));
}

std::string rate_text(const Interface& link) {
    const std::int64_t mbps = link.nominal_speed();
    if (mbps <= 0) {
        return "rate not known";
    }
    return mbps % 1000 == 0 ? fmt::format("{} Gbit/s", mbps / 1000)
                            : fmt::format("{} Mbit/s", mbps);
}

std::string link_rows(const Facts& facts) {
    if (!facts.links) {
        return {};
    }
    std::string text;
    for (const Interface& link : facts.links->chosen.links) {
        std::string addresses;
        for (const Address& address : link.addresses) {
            addresses += " " + address.text();
        }
        text += row("link", fmt::format("{}, {}, MTU {}, {}{}", link.name, rate_text(link),
                                        link.mtu, link.up ? "up" : "down", addresses));
    }
    for (const auto& skipped : facts.links->chosen.skipped) {
        text += row("no link", fmt::format("{}: {}", skipped.name, skipped.reason));
    }
    if (!facts.links->chosen.problem.empty()) {
        text += row("no link", facts.links->chosen.problem);
    }
    return text;
}

// What is not left at its default, and where it comes from.
std::string setting_rows(const Facts& facts) {
    if (!facts.settings) {
        return {};
    }
    const Config& config = facts.settings->config;
    const Setting& mode = config.setting(Key::Mode);
    std::string text = row("mode", fmt::format("{} ({})", mode.text, mode.origin));
    for (const Variable& variable : variables()) {
        const Setting& setting = config.setting(variable.key);
        if (setting.source != ValueSource::Default && variable.key != Key::Mode) {
            text += row("setting",
                        fmt::format("{}={} ({})", variable.name, setting.text, setting.origin));
        }
    }
    const std::string& named = config.text(Key::Conf);
    const bool central = ::access(kSystemConfigFile, R_OK) == 0;
    return text +
           row("sources", fmt::format("the environment, {}, {}{}",
                                      named.empty() ? "no file of the user's (DEFT_CONF)" : named,
                                      kSystemConfigFile, central ? "" : " (not there)"));
}

std::string variable_rows(const Launch& launch) {
    std::string text;
    for (const char* entry : launch.after.entries()) {
        const std::string name(entry, std::string_view(entry).find('='));
        if (launch.before.get(name) != launch.after.get(name)) {
            text += row("sets", fmt::format("{}={}", name, launch.after.get(name).value_or("")));
        }
    }
    return text;
}

std::string program_row(const RunOptions& options, const Facts& facts) {
    const bool found = facts.command && !facts.command->programs.empty() &&
                       !facts.command->programs.front().file.empty();
    return row("starts", found ? facts.command->programs.front().file
                               : options.command.front() + " (no such command is found)");
}

}  // namespace

std::string dry_run_text(const RunOptions& options, const Launch& launch, const Facts& facts,
                         const Diagnoses& diagnoses) {
    std::string text = "# deft run would do this; nothing was started\n";
    text += library_rows(launch, facts) + setting_rows(facts) + nccl_rows(facts);
    text += network_row(launch, facts) + link_rows(facts);
    if (makes_folder(options, launch)) {
        text += row("folder", "of " + options.out + ": made where it is not there");
    }
    text += variable_rows(launch) + program_row(options, facts);
    for (const Diagnosis& each : diagnoses) {
        const FindingKind& kind = kind_of(each.finding);
        text += row(to_string(kind.severity),
                    fmt::format("{}: {}; remedy: {}", kind.name, each.what,
                                each.remedy.empty() ? kind.remedy : each.remedy));
    }
    for (const std::string& line : facts.started) {
        text += row("started", line);
    }
    return text + shell_line(options, launch);
}

}  // namespace doctor

int dry_run(const RunOptions& options) {
    Launch launch;
    if (const int refused = prepare(options, launch); refused != kSuccess) {
        return refused;
    }
    return doctor::supervised("run --dry-run", [&] {
        doctor::Facts facts;
        looking_at("the command, and the scripts that it starts");
        doctor::Job job = doctor::read_command(options.command, launch.after);
        job.library = options.library;
        job.replace_vendor = options.replace_plugin;
        job.command.under_deft_run = true;
        doctor::look_at_job(std::move(job), facts);
        const doctor::Diagnoses diagnoses = doctor::judge(facts);
        // What is wrong for deft keeps no job from running without it.
        return doctor::Outcome{doctor::dry_run_text(options, launch, facts, diagnoses), "",
                               launch.off ? kSuccess : doctor::exit_code(diagnoses)};
    });
}

}  // namespace deft::tools
