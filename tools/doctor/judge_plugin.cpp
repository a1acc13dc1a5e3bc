// SPDX-License-Identifier: Apache-2.0
// Whether NCCL loads deft's plugin, and who carries the job.
#include <fmt/format.h>
#include <strings.h>

#include "tools/doctor/judge.h"
#include "topology/nccl_settings.h"

namespace deft::tools::doctor {
namespace {

std::string setting_text(const char* name, const NcclValue& value) {
    return fmt::format("{}='{}' ({})", name, value.value, value.origin);
}

// The job was started with deft run, or is judged as if it were.
bool under_deft_run(const Facts& facts) {
    return !facts.command || facts.command->under_deft_run || facts.command->assumed;
}

void judge_named(const Facts& facts, const NcclValue& named, Diagnoses& found) {
    const std::string text = setting_text("NCCL_NET_PLUGIN", named);
    if (!names_deft(named.value, false)) {
        found.push_back(
            {Finding::PluginOther, text + " keeps deft's plugin out", named.origin, ""});
        return;
    }
    const std::string first = named.value.substr(0, named.value.find(','));
    if (!names_deft(first, false) && !first.empty()) {
        found.push_back({Finding::PluginOrder, fmt::format("{} names {} before deft", text, first),
                         named.origin, ""});
    }
    if (!facts.plugin->named_path_exists) {
        found.push_back(
            {Finding::PluginFileMissing, text + ": the file cannot be read", named.origin, ""});
        return;
    }
    // A path that the loader splits is a finding of its own.
    const bool preloaded =
        facts.preload && (facts.preload->ours() != nullptr || !facts.preload->split_path.empty());
    if (under_deft_run(facts) || preloaded) {
        return;
    }
    if (!facts.plugin->findable && named.value.find('/') == std::string::npos) {
        found.push_back({Finding::PluginNotFound,
                         text + ": the loader finds no libnccl-net-deft.so",
                         "LD_PRELOAD, LD_LIBRARY_PATH, the loader's cache", ""});
    }
    found.push_back({Finding::PreloadAbsent, text + ", and LD_PRELOAD has nothing of deft's",
                     "LD_PRELOAD", ""});
}

void judge_rdma(const RdmaChoice& rdma, Diagnoses& found) {
    if (rdma.use == RdmaUse::Replace) {
        found.push_back({Finding::RdmaDisplaced,
                         fmt::format("RDMA is active ({}), and {} take the job from NCCL's IB ({})",
                                     rdma.usable_ports(), rdma.replacement(), rdma.reason),
                         rdma.reason, ""});
    } else if (rdma.use == RdmaUse::Aside) {
        found.push_back({Finding::RdmaAside,
                         fmt::format("RDMA is active ({}): NCCL's IB carries the job, deft's links "
                                     "serve lanes",
                                     rdma.usable_ports()),
                         rdma.reason, ""});
    }
    for (const RdmaPort& port : rdma.ports) {
        if (!port.usable() && port.state == "ACTIVE" && port.obstacle != kManagesSwitch) {
            found.push_back({Finding::RdmaUndriven,
                             fmt::format("RDMA port {} is active, and NCCL's IB cannot use it: {}",
                                         port.name(), port.obstacle),
                             "sysfs and libibverbs", ""});
        }
    }
}

}  // namespace

void judge_plugin(const Facts& facts, Diagnoses& found) {
    if (facts.links) {
        judge_rdma(facts.links->rdma, found);
    }
    if (!facts.plugin) {
        return;
    }
    const PluginFacts& plugin = *facts.plugin;
    const NcclValue* const named = plugin.setting("NCCL_NET_PLUGIN");
    if (named != nullptr) {  // set and empty keeps deft run from setting it
        judge_named(facts, *named, found);
    } else if (!under_deft_run(facts)) {
        found.push_back({Finding::PluginNotNamed,
                         "NCCL_NET_PLUGIN is not set, so NCCL does not load deft's plugin",
                         "the environment and NCCL's files", ""});
    } else if (!plugin.vendor.empty() && !plugin.replace_vendor) {
        found.push_back({Finding::PluginVendor,
                         plugin.vendor + " is the plugin that NCCL loads here, and is kept",
                         "LD_LIBRARY_PATH and the loader's cache", ""});
    }
    if (const NcclValue* const host = plugin.setting("NCCL_HOSTID");
        host != nullptr && !host->value.empty()) {
        found.push_back({Finding::HostId,
                         setting_text("NCCL_HOSTID", *host) + " stands for this host", host->origin,
                         ""});
    }
    const NcclValue* const net = plugin.setting("NCCL_NET");
    if (net != nullptr && !net->value.empty() && ::strcasecmp(net->value.c_str(), "deft") != 0) {
        found.push_back({Finding::NetOther,
                         setting_text("NCCL_NET", *net) + " keeps deft's plugin out", net->origin,
                         ""});
    }
}

}  // namespace deft::tools::doctor
